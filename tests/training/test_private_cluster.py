"""A Ray cluster that a run starts: other machines and users cannot reach it."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from seeupo.distributed.ray_cluster import private_folder
from seeupo.errors import TrainingError

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="sockets are listed on Linux only"),
]

TRAIN = """
import json, os, stat, subprocess, sys, tempfile
from pathlib import Path

import ray
import seeupo
from listening import family, listeners
from seeupo.config.process_settings import EngineSettings, SamplerSettings
from training.small_runs import small

CONNECT = '''
import sys
from ray._raylet import GcsClient
GcsClient(address=sys.argv[1]).internal_kv_put(b"key", b"value", True, None)
'''

def connect(**variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")} | variables
    address = ray.get_runtime_context().gcs_address
    done = subprocess.run([sys.executable, "-c", CONNECT, address], env=environment, capture_output=True, text=True)
    return done.stderr.strip().splitlines()[-1] if done.returncode else "connected"

def shows(token, pids):
    files = [Path(f"/proc/{pid}/{name}") for pid in pids for name in ("cmdline", "environ")]
    logs = [file for file in Path(tempfile.gettempdir()).rglob("*") if file.is_file() and file.suffix != ".token"]
    return [str(file) for file in (*files, *logs) if token.encode() in file.read_bytes()]

class Look(seeupo.Callback):
    def on_record(self, record):
        if record["kind"] != "iteration":
            return
        pids = family(os.getpid())
        path = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
        token = path.read_text()
        print(json.dumps({
            "listeners": [(*map(str, found), found.is_private) for found in listeners(pids)],
            "modes": [stat.S_IMODE(item.stat().st_mode) for item in (path.parent, path)],
            "token": len(token),
            "shown": shows(token, pids),
            "without": connect(RAY_AUTH_MODE="disabled"),
            "wrong": connect(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="wrong"),
            "with": connect(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token),
            "path": str(path),
        }))

recipe = small(
    run={"iterations": 1}, evaluation={"every": 0}, warm_start=None, sampler=SamplerSettings(count=1),
    engine=EngineSettings(kind="cluster", trainers=2, call_seconds=300),
)
seeupo.train(recipe, run_dir=sys.argv[1], callback=Look(), progress=False)
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What a run of two ranks and a sampler shows to other processes."""
    folder = tmp_path_factory.mktemp("private")
    short = tempfile.TemporaryDirectory(dir="/tmp")  # the paths of sockets have a limit
    tests = Path(__file__).parent.parent
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"HOME": str(folder), "PYTHONPATH": str(tests), "TMPDIR": short.name}
    command = [sys.executable, "-c", TRAIN, str(folder / "run")]
    with short:
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=600, check=True)
        seen = json.loads(done.stdout) | {"home": folder}
        yield seen | {"left": Path(seen["path"]).exists()}


def test_a_run_listens_on_the_loopback_interface_only(seen):
    names = [name for _, _, name, _ in seen["listeners"]]
    assert sum(name.startswith("ray::Rank") for name in names) >= 3  # their own ports, and the store of rank 0
    for part in ("gcs_server", "raylet", "ray::"):
        assert any(part in name for name in names)
    assert [found for found in seen["listeners"] if not found[3]] == []


def test_a_cluster_that_a_run_starts_requires_its_token(seen):
    assert "AuthenticationError" in seen["without"]
    assert "AuthenticationError" in seen["wrong"]
    assert seen["with"] == "connected"


def test_the_token_is_in_a_file_of_the_user_only(seen):
    assert seen["modes"] == [0o700, 0o600]
    assert seen["token"] == 64
    assert seen["shown"] == []  # in arguments, environment variables or logs
    assert not seen["left"]  # once the run has ended
    assert not (seen["home"] / ".ray").exists()  # where Ray would write one that everyone can read


@pytest.mark.parametrize("kind", ["link", "readable"])
def test_a_folder_that_others_can_access_is_refused(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / f"seeupo-{os.getuid()}"
    if kind == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.mkdir()
        folder.chmod(0o755)
    with pytest.raises(TrainingError, match="mode 0700"):
        private_folder()
