"""Models are found in folders and on the model hub, which is asked once."""

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from models.test_loading import saved, with_full_vocabulary

LOAD = """
from seeupo.errors import ModelError
from seeupo.models.loading import load_policy
try:
    print(load_policy("owner/name").model.num_parameters())
except ModelError as error:
    print(error)
"""


class Hub(BaseHTTPRequestHandler):
    def do_GET(self):
        if "owner/name" in self.path:  # others are the client's own
            self.server.requests.append(self.path)
        self.send_response(self.server.status)
        self.send_header("X-Error-Code", "RepoNotFound" if self.server.status == 404 else "")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_):
        pass


@pytest.fixture
def hub():
    """A model hub that answers every request with its status, and records those for the model."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.requests, server.status = [], 503
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def loaded(hub, home):
    """Return what loading the model owner/name prints, with a hub and a cache of downloaded models."""
    address = f"http://127.0.0.1:{hub.server_port}"
    environment = {**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0"}
    done = subprocess.run([sys.executable, "-c", LOAD], capture_output=True, text=True, check=True, env=environment)
    return done.stdout.strip()


def test_a_hub_without_an_answer_is_asked_once_and_one_sentence_says_so(hub, tmp_path):
    message = loaded(hub, tmp_path)
    assert hub.requests == ["/api/models/owner/name"]
    assert message.startswith("there is no folder 'owner/name' and no downloaded model of that name")
    assert len(message.splitlines()) == 1
    assert "503" in message


def test_a_model_that_the_hub_does_not_have_is_an_error(hub, tmp_path):
    hub.status = 404
    message = loaded(hub, tmp_path)
    assert hub.requests == ["/api/models/owner/name"]
    assert message.startswith("there is no folder 'owner/name' and no such model on the hub")


def test_a_downloaded_model_is_loaded_without_a_hub(hub, tmp_path):
    model = with_full_vocabulary("llama")
    saved(tmp_path / "hub/models--owner--name/snapshots/1234", model)
    (tmp_path / "hub/models--owner--name/refs").mkdir()
    (tmp_path / "hub/models--owner--name/refs/main").write_text("1234")
    assert loaded(hub, tmp_path) == str(model.num_parameters())
    assert hub.requests == ["/api/models/owner/name"]
