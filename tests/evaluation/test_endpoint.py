import contextlib
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from click.testing import CliRunner

from agents.worlds import EchoFactory
from seeupo.agents.template import REMINDER, Template
from seeupo.cli import main
from seeupo.envs.pool.pool import EnvPool
from seeupo.errors import EndpointError
from seeupo.evaluation.endpoint import Endpoint, text_of
from seeupo.evaluation.policies import endpoint_player
from seeupo.runs.evaluations import attempts
from seeupo.types import Message


class Server:
    """A server on loopback that answers by a script: status and body for each request, the last one for ever."""

    def __init__(self, *script):
        self.script, self.requests, self.lock, self.delay = list(script), [], threading.Lock(), 0.0
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with server.lock:
                    server.requests.append((self.path, dict(self.headers), body))
                    status, answer = server.script[0] if len(server.script) == 1 else server.script.pop(0)
                time.sleep(server.delay)
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                if status == 429:
                    self.send_header("Retry-After", "0")
                with contextlib.suppress(OSError):  # whoever asked may have gone
                    self.end_headers()
                    self.wfile.write(data)

            def log_message(self, *_): ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"

    def __enter__(self):
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()


def said(text, **more):
    return 200, {"choices": [{"message": {"role": "assistant", "content": text, **more}}]}


def ask(server, **options):
    endpoint = Endpoint(url=server.url, model="m", first_pause_seconds=0.001, **options)
    return endpoint.complete([Message("user", "hello")], seed=2**40 + 3)


def test_a_question_and_its_answer():
    with Server(said("hi")) as server:
        assert ask(server, temperature=0.5, max_tokens=7, key="secret") == "hi"
    path, headers, body = server.requests[0]
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == "Bearer secret"
    assert body["messages"] == [{"role": "user", "content": "hello"}]
    assert (body["temperature"], body["max_tokens"], body["model"], body["seed"]) == (0.5, 7, "m", 3 + 2**40 % 2**31)
    assert "secret" not in repr(Endpoint(url=server.url, model="m", key="secret"))


def test_a_server_in_trouble_is_asked_again():
    trouble = [(429, {}), (503, b"busy"), (200, b"rubbish"), (200, {"choices": []}), (200, {"choices": [{}]})]
    with Server(*trouble, said("at last")) as server:
        assert ask(server) == "at last"
    assert len(server.requests) == 6


@pytest.mark.parametrize(
    ("script", "asked", "message"),
    [
        ((429, b"slow down"), 3, "status 429: slow down"),
        ((200, b"rubbish"), 3, "JSONDecodeError"),
        ((200, {"choices": [{"message": {"content": 5}}]}), 3, "content is no text"),
        ((401, b"wrong key"), 1, "status 401: wrong key"),
    ],
)
def test_what_does_not_get_better_is_a_clear_error(script, asked, message):
    with Server(script) as server, pytest.raises(EndpointError, match=message):
        ask(server, attempts=3)
    assert len(server.requests) == asked


def test_a_server_that_is_too_slow_is_given_up():
    with Server(said("too late")) as server:
        server.delay = 1.0
        with pytest.raises(EndpointError, match="timed out"):
            ask(server, attempts=2, timeout_seconds=0.05)
    assert len(server.requests) == 2


def test_a_server_that_is_down():
    with Server(said("x")) as server:
        pass
    with pytest.raises(EndpointError, match="did not answer for model 'm'"):
        ask(server, attempts=2)


def test_calls_that_the_server_took_out_are_put_back():
    calls = [{"function": {"name": "f", "arguments": '{"a": 1}'}}, {"function": {"name": "g", "arguments": {}}}]
    text = text_of({"choices": [{"message": {"content": None, "tool_calls": calls}}]})
    first, second = '{"name": "f", "arguments": {"a": 1}}', '{"name": "g", "arguments": {}}'
    assert text == f"<tool_call>{first}</tool_call><tool_call>{second}</tool_call>"


def test_a_conversation_leaves_thoughts_out_and_reminds_once():
    with Server(said("<think>why</think>because")) as server, EnvPool(EchoFactory()) as pool:
        endpoint = Endpoint(url=server.url, model="m")
        player, executor = endpoint_player(pool, endpoint, Template(), 3, concurrency=2)
        (episode,) = list(player.play(attempts(pool.tasks("train")[2:3], 1, seed=0)))
        executor.shutdown()
    assert (episode.score, episode.turns) == (1.0, 3)
    messages = server.requests[-1][2]["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant", "user"]
    assert [message["content"] for message in messages if message["role"] == "assistant"] == ["because"] * 2
    assert messages[-1]["content"] == f"7 letters at step 2\n{REMINDER}"
    assert sum(REMINDER in message["content"] for message in messages) == 1


def test_an_error_keeps_what_was_played_and_the_key_is_written_nowhere(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "very-secret")
    monkeypatch.setattr("seeupo.evaluation.endpoint.RETRIED", ())
    out = tmp_path / "r.json"
    # Eight attempts of up to two turns get through, then the server breaks.
    with Server(*[said("done")] * 8, (500, b"broken")) as server:
        arguments = ["eval", "--env", "pocket", "--endpoint", server.url, "--model", "m", "--tasks", "20",
                     "--samples", "1", "-k", "1", "--concurrency", "1", "--out", str(out)]  # fmt: skip
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 1
        assert "status 500: broken" in done.output
        assert "are kept in" in done.output
        kept = json.loads(out.read_text())
        assert 0 < len(kept["episodes"]) < 20
        server.script[:] = [said("done")]
        done = CliRunner().invoke(main, [*arguments, "--resume"])
    assert done.exit_code == 0, done.output
    assert len(json.loads(out.read_text())["episodes"]) == 20
    assert "very-secret" not in out.read_text() + done.output
    assert server.requests[0][1]["Authorization"] == "Bearer very-secret"


def test_requests_are_made_side_by_side():
    """Two requests wait for one another: one at a time would never end."""
    barrier = threading.Barrier(2, timeout=20)

    class Meeting(Endpoint):
        def complete(self, messages, *, seed):
            barrier.wait()
            return "done"

    with ThreadPoolExecutor(1), EnvPool(EchoFactory()) as pool:
        player, executor = endpoint_player(
            pool, Meeting(url="http://localhost/v1", model="m"), Template(), 1, concurrency=2
        )
        assert len(list(player.play(attempts(pool.tasks("train")[:4], 1, seed=0)))) == 4
        executor.shutdown()
