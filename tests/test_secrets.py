"""Nothing that a run writes names the machine, its user or its directories, or has a value of the environment."""

import base64
import gzip
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

import seeupo
from comparison.small_study import write_study
from secret_scan import find_secrets
from seeupo.config.loader import recipe_to_toml
from seeupo.config.schema import TrackerSettings
from training.small_runs import small

KEYS = ("WANDB_API_KEY", "HF_TOKEN", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "MY_SETTING", "SLURM_JOB_ID")
PLACES = {
    "name": lambda path, text: (path / f"events.{text}.0").write_text(""),
    "folder": lambda path, text: (path / text).mkdir(),
    "text": lambda path, text: (path / "a").write_text(f"x{text}y"),
    "json": lambda path, text: (path / "a").write_text(json.dumps({"a": [text]})),
    "gzip": lambda path, text: (path / "a.jsonl.gz").write_bytes(gzip.compress(text.encode())),
    "base64": lambda path, text: (path / "a.html").write_bytes(b"<p>" + base64.b64encode(b"a" * 99 + text.encode())),
    "deflated": lambda path, text: (path / "a").write_bytes(
        b"'" + base64.b64encode(zlib.compress(os.urandom(99) + text.encode())) + b"'"
    ),
    "gzip in base64": lambda path, text: (path / "a").write_bytes(
        b'"' + base64.b64encode(gzip.compress(os.urandom(99) + text.encode())) + b'"'
    ),
    "link": lambda path, text: (path / "a").symlink_to(f"/nowhere/{text}"),
}


@pytest.mark.parametrize("place", PLACES)
def test_the_scan_finds_a_planted_secret(place, tmp_path):
    secret = secrets.token_hex(8)
    assert find_secrets(tmp_path, [secret]) == []
    PLACES[place](tmp_path, secret)
    (match,) = find_secrets(tmp_path, [secret])
    assert match.endswith(f": {secret}")
    assert find_secrets(tmp_path, [secrets.token_hex(8)]) == []


def test_no_file_of_a_run_contains_a_secret_or_names_the_machine(tmp_path):
    """Paths are given as a user types them, relative ones; as typed, they are in recipes, results and model cards.

    Runs that `compare --keep-runs` keeps are left out: they name their warm start by its full path, from which they are
    resumed in any working directory.
    """
    pytest.importorskip("tensorboard")
    pytest.importorskip("wandb")
    planted = {name: f"{name.lower()}-{secrets.token_hex(12)}" for name in KEYS}
    user, host, home, cwd = (f"{part}{secrets.token_hex(6)}" for part in ("user", "host", "home", "cwd"))
    out = tmp_path / cwd / "out"
    for folder in (tmp_path / home, tmp_path / cwd, out):
        folder.mkdir()
    named = tmp_path / "site"
    named.mkdir()
    (named / "sitecustomize.py").write_text(
        f"import os, platform, socket\nname = lambda: {host!r}\n"
        "socket.gethostname = socket.getfqdn = platform.node = name\n"
    )
    environment = {
        **planted,
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join([str(named), str(Path(seeupo.__file__).parent.parent)]),
        "HOME": str(tmp_path / home),
        "USER": user,
        "LOGNAME": user,
        "USERNAME": user,
        "HOSTNAME": host,
        "OMP_NUM_THREADS": "1",
        "WANDB_MODE": "offline",
    }

    def run(*arguments):
        command = [sys.executable, "-P", "-m", "seeupo", *map(str, arguments)]
        done = subprocess.run(command, cwd=tmp_path / cwd, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    trackers = TrackerSettings(tensorboard=True, wandb="project")
    (tmp_path / cwd / "mine.toml").write_text(recipe_to_toml(small(run={"iterations": 1}, trackers=trackers)))
    run("train", "mine.toml", "--out", "out/run")
    run("train", "--resume", "out/run", "--run.iterations", "2")
    run("export", "out/run", "out/exported")
    run("report", "out/run", "--out", "out/report.html")
    run("eval", "out/run", "--tasks", "2", "--attempts", "1", "-k", "1", "--out", "out/result.json")
    study = """recipe = "small.toml"\nseeds = [5]\n[arms.seeupo.algorithm]\nname = "seeupo"
    [arms.grpo.algorithm]\nname = "grpo"\nkl_coef = 0.0\n"""
    write_study(tmp_path / cwd, study, run={"iterations": 1}, warm_start={"batches": 2}, trackers=trackers)
    run("compare", "study.toml", "--out", "out/compared", "--jobs", "1")

    expected = ("run/tensorboard", "run/wandb", "exported/README.md", "report.html", "compared/comparison.html")
    assert [name for name in expected if not (out / name).exists()] == []
    assert list((out / "compared").rglob("*.log"))
    real = [socket.gethostname()] if len(socket.gethostname()) > 5 else []  # a short one may be any word
    sought = [*planted.values(), user, host, home, cwd, tmp_path.name, str(Path.home()) + "/", *real]
    assert find_secrets(out, sought) == []
    # The scan reads these files: what was planted there is found.
    shutil.copy(next((out / "run/wandb").rglob("*.wandb")), out / "copy.wandb")
    assert find_secrets(out, ["iteration/success"])
