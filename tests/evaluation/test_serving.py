import subprocess
import sys
import threading

import pytest

from rollout.worlds import EchoFactory
from seeupo.config.model_settings import TinyConfig
from seeupo.errors import UserError
from seeupo.evaluation.evaluate import evaluate
from seeupo.evaluation.serving import ServeOptions, serve
from seeupo.models.loading import load_policy
from seeupo.models.saving import save_model


def test_an_evaluation_through_the_server_equals_one_in_the_process(tmp_path):
    """Greedily: the server draws its own seeds."""
    policy = load_policy("tiny", tiny=TinyConfig(width=32, layers=2, heads=2, context=512))
    save_model(policy.model, policy.tokenizer, tmp_path)
    options = {"attempts": 1, "k": 1, "temperature": 0, "max_tokens": 8, "max_turns": 1, "plain": True}
    addresses = []
    started = threading.Event()
    finished = threading.Event()

    def start(address):
        addresses.append(address)
        started.set()

    server = threading.Thread(
        target=serve,
        args=(ServeOptions(policy=str(tmp_path), port=0, key="sk-1"), start),
        kwargs={"running": lambda: not finished.is_set()},
    )
    server.start()
    try:
        assert started.wait(120)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OPENAI_API_KEY", "sk-1")
            through = evaluate(environment=EchoFactory(), endpoint=addresses[0], model="any", **options)
    finally:
        finished.set()
        server.join()
    direct = evaluate(tmp_path, EchoFactory(), **options)
    assert through.summary()["failures"] == 0
    assert through.summary()["avg@1"] == direct.summary()["avg@1"]
    assert {key: result.score for key, result in through.results.items()} == {
        key: result.score for key, result in direct.results.items()
    }


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setattr("seeupo.rollout.gateway.PACKAGES", ("openai", "no_such_package"))
    with pytest.raises(UserError, match=r"no_such_package: pip install 'seeupo\[agents\]'"):
        serve(ServeOptions(policy="tiny", port=0), print)


def test_an_unknown_model_is_a_user_error():
    with pytest.raises(UserError, match="nosuch"):
        serve(ServeOptions(policy="nosuch", port=0), print)


def test_the_command_prints_the_addresses_and_stops_at_ctrl_c():
    command = [sys.executable, "-m", "seeupo", "serve", "tiny", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        lines = [process.stdout.readline() for _ in range(3)]
        process.send_signal(2)
        output, problems = process.communicate(timeout=120)
    assert lines[0].startswith("serving tiny at http://127.0.0.1:")
    assert lines[2].startswith("Anthropic client: ANTHROPIC_BASE_URL=http://127.0.0.1:")
    assert (output, problems, process.returncode) == ("stopped\n", "", 0)
