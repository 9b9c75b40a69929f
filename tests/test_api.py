"""`seeupo.train` and `seeupo.resume`: display, warnings, signature and Ctrl-C."""

import inspect
import json
import logging
import os
import pty
import pydoc
import signal
import subprocess
import sys
import threading
import warnings

import pytest

import seeupo
from seeupo.callbacks import Callback
from seeupo.errors import UserError
from training.small_runs import small

RECIPE = small(run={"iterations": 2})
UNTRAINED = small(run={"iterations": 1}, collect={"tasks": 1, "group_size": 2}, warm_start=None)
"""A random policy fails every attempt, so there are no differences to learn from."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("api") / "run"
    return seeupo.train(RECIPE, run_dir=run_dir, progress=False)


@pytest.mark.parametrize("name", ["train", "resume"])
def test_help_shows_a_signature_and_all_arguments(name):
    function = getattr(seeupo, name)
    parameters = inspect.signature(function).parameters
    assert {"run_dir", "environment", "callback", "progress"} <= set(parameters)
    text = pydoc.render_doc(function, renderer=pydoc.plaintext)
    assert f"{name}(" in text
    for parameter in parameters:
        assert f"{parameter}:" in text or f"{parameter}," in text, parameter
    assert "partial" not in text


def test_public_names_are_listed():
    assert set(seeupo.__all__) <= set(dir(seeupo))


def test_progress_is_shown_by_default_and_the_result_at_the_end(tmp_path, capsys):
    seeupo.train(RECIPE, run_dir=tmp_path / "run")
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = shown.err.splitlines()
    assert lines[0] == f"tiny on pocket: {tmp_path / 'run'}: 2 iterations"
    assert any("iteration 2 of 2: success" in line for line in lines)
    assert "avg@2 on held-out tasks" in lines[-2]
    assert "2 iterations done" in lines[-2]
    assert lines[-1] == f"report: {tmp_path / 'run' / 'report.html'}"


def test_progress_can_be_silenced(finished, capsys):
    assert finished.summary["iterations"] == 2
    seeupo.resume(finished.run_dir, progress=False)
    shown = capsys.readouterr()
    assert shown.out == shown.err == ""


def test_a_callback_observes_the_run_besides_the_display(finished, capsys):
    kinds = []

    class Kinds(Callback):
        def on_resume(self, records):
            kinds.extend(record["kind"] for record in records)

    seeupo.resume(finished.run_dir, callback=Kinds())
    assert kinds.count("iteration") == 2
    assert "pocket" in capsys.readouterr().err


def test_notes_are_logged_without_a_display(tmp_path, caplog):
    class Noisy(Callback):
        def on_phase(self, name, total=None):
            warnings.warn("a warning\nof two lines", stacklevel=2)

    with caplog.at_level(logging.WARNING, logger="seeupo"):
        seeupo.train(RECIPE, run_dir=tmp_path / "run", callback=Noisy(), progress=False)
    assert r"a warning\nof two lines" in caplog.messages


def test_a_run_without_an_optimizer_step_says_so(tmp_path, capsys):
    message = r"no optimizer step was made in 1 iteration .*did not change the policy"
    with pytest.warns(UserWarning, match=message) as caught:
        result = seeupo.train(UNTRAINED, run_dir=tmp_path / "run")
    assert caught[0].filename == __file__
    assert "no optimizer step was made in 1 iteration" not in capsys.readouterr().err  # the warning is enough
    stored = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert stored["warnings"] == list(result.summary["warnings"])
    assert stored["optimizer_steps"] == 0


def test_a_run_that_trained_has_no_warnings(finished):
    assert finished.summary["warnings"] == []


class InterruptAt(Callback):
    """Sends SIGINT to this process when an iteration is recorded."""

    def __init__(self, *iterations):
        self.iterations = iterations

    def on_record(self, record):
        if record["kind"] == "iteration" and record["iteration"] in self.iterations:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("progress", [True, False])
def test_ctrl_c_saves_a_checkpoint_and_says_how_to_continue(tmp_path, progress):
    before = signal.getsignal(signal.SIGINT)
    recipe, run_dir = small(run={"iterations": 2, "checkpoint_every": 100}), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt, match=r"seeupo\.resume") as stopped:
        seeupo.train(recipe, run_dir=run_dir, callback=InterruptAt(1), progress=progress)
    assert repr(str(run_dir)) in str(stopped.value)
    assert (run_dir / "checkpoints" / "00001").is_dir()
    assert signal.getsignal(signal.SIGINT) is before
    assert seeupo.resume(run_dir, progress=False).summary["iterations"] == 2


def test_errors_end_the_display(tmp_path, capsys):
    threads = threading.active_count()
    with pytest.raises(UserError):
        seeupo.train(small(model={"name": "no-such-model"}), run_dir=tmp_path / "run")
    assert threading.active_count() == threads
    assert not (tmp_path / "run").exists()


SCRIPT = """
import sys
sys.path[:0] = {path!r}
import seeupo
from seeupo.errors import UserError
from seeupo.callbacks import Callback
from training.small_runs import small

class Print(Callback):
    def on_record(self, record):
        print("printed", record["kind"])

if __name__ == "__main__":
    seeupo.train(small(run={{"iterations": 1}}), run_dir="run", callback=Print())
"""


def test_a_terminal_gets_the_live_display_and_redirected_prints_stay_in_their_file(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT.format(path=[path for path in sys.path if path]))
    parent, child = pty.openpty()
    environment = {**os.environ, "COLUMNS": "100", "TERM": "xterm-256color"}
    with (tmp_path / "out.txt").open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "script.py"], cwd=tmp_path, stdin=child, stdout=out, stderr=child, env=environment
        )
    os.close(child)
    seen = b""
    while True:
        try:
            data = os.read(parent, 65536)
        except OSError:  # the other end is gone
            break
        if not data:
            break
        seen += data
    os.close(parent)
    assert process.wait(timeout=600) == 0, seen.decode()
    assert b"iteration 1 of 1" in seen
    assert b"\x1b[" in seen
    assert b"printed" not in seen
    assert "printed iteration" in (tmp_path / "out.txt").read_text()
