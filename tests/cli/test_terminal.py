"""Text from servers, models, environments, files and paths reaches the terminal as visible text only."""

import ast
import io
import logging
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

import seeupo
from cli.hostile import NAME, TEXT, check_printed
from evaluation.test_endpoint import Server, completion
from rollout.tokenizers_like import tokenizer_like
from seeupo.cli import main
from seeupo.cli.terminal import Terminal, echo
from seeupo.cli.token_view import print_tokens
from seeupo.config.loader import recipe_to_toml
from seeupo.envs import registry
from seeupo.envs.registry import EnvSpec
from seeupo.rollout.chat import chat_format
from seeupo.training.train_display import make_display
from seeupo.types import Trajectory, Turn
from seeupo.utils.diagnostics import visible_diagnostics
from training.small_runs import small

RECIPE = r"""
[environment.options]
"a\u001b[2J\u202e" = "\u001b[2J\u202e\n[bold]"
[trackers]
"\u001b[2J\n" = "\u009b"
"""


@pytest.fixture
def hostile(monkeypatch):
    spec = EnvSpec(
        name="hostile", factory="cli.hostile:HostileFactory", summary=TEXT, license=TEXT, tasks=TEXT, in_process=True
    )
    monkeypatch.setattr(registry, "BUILT_IN", {**registry.BUILT_IN, "hostile": spec})


def run(*arguments, code, styled=False, text=""):
    # With color=True, click does not remove escape sequences itself.
    environment = {"COLUMNS": "1000"} | ({"FORCE_COLOR": "1"} if styled else {})
    done = CliRunner().invoke(main, list(map(str, arguments)), color=True, env=environment, input=text)
    assert done.exit_code == code, done.output
    return check_printed(done.stdout_bytes + done.stderr_bytes, styled=styled)


@pytest.mark.parametrize("styled", [False, True], ids=["plain", "styled"])
@pytest.mark.parametrize(
    ("command", "code", "shown"),
    [
        ("envs list", 0, "[bold]"),
        ("envs check hostile", 1, r"failed: "),
        ("envs play hostile", 0, r"calls \x1b]0;"),
        ("envs play hostile --task none", 1, r"\x1b]0;title\x07"),
        ("eval expert --env hostile -k 1 --attempts 1 --split {split} --out {out}", 0, r"[bold]"),
        ("agents show --env hostile --model tiny --max-turns 1", 0, r"\x1b·]·0·;·t·i·t·l·e·\x07"),
    ],
)
def test_environments(hostile, tmp_path, *, command, code, shown, styled):
    places = {"split": f"train{NAME}", "out": tmp_path / f"{NAME}.json"}
    assert shown in run(*(word.format(**places) for word in command.split()), code=code, styled=styled, text="look\n")


@pytest.mark.parametrize(
    ("script", "code", "shown"),
    [
        ((401, TEXT.encode(errors="replace")), 1, r"status 401: \x1b]0;title\x07"),
        (completion(TEXT[:-1]), 0, "episodes"),
    ],
    ids=["error", "completion"],
)
def test_model_servers(tmp_path, script, code, shown):
    with Server(script) as server:
        options = ["--env", "pocket", "--endpoint", server.url, "--model", NAME, "--tasks", 1, "--attempts", 1, "-k", 1]
        assert shown in run("eval", *options, "--out", tmp_path / "out.json", code=code)


@pytest.mark.parametrize(
    "command",
    [
        "train --resume",
        "train --out",
        "eval --env pocket",
        "report",
        "models check",
        "eval expert --env pocket --out",
        "train",
    ],
)
def test_paths_in_errors(tmp_path, command):
    path = tmp_path / NAME
    path.mkdir()
    (path / "file").touch()
    assert r"title\x07" in run(*command.split(), path, code=2 if command.startswith("eval expert") else 1)


@pytest.mark.parametrize("arguments", [[NAME], [f"--{NAME}"], ["eval", f"--{NAME}"], ["train", f"--{NAME}.a", "1"]])
def test_arguments_in_usage_errors(arguments):
    done = CliRunner().invoke(main, arguments, color=True)
    assert done.exit_code in (1, 2)
    assert "]0;title" in done.output
    assert not {"\x1b", "\x9b", "\r", "\u202e"} & set(done.output)


def test_recipes(tmp_path):
    path = tmp_path / f"{NAME}.toml"
    path.write_text(RECIPE)
    for command in (["train", path], ["train", path, "--dry-run"]):
        assert r'trackers."\u001b[2J\n": unknown key' in run(*command, code=1)


@pytest.mark.parametrize("styled", [False, True], ids=["plain", "styled"])
def test_results_of_training(tmp_path, styled):
    recipe = tmp_path / f"{NAME}.toml"
    recipe.write_text(recipe_to_toml(small(run={"iterations": 1})))
    out = tmp_path / f"run{NAME}"
    printed = run("train", recipe, "--out", out, code=0, styled=styled)
    assert "policy    " in printed
    assert r"Error: fake --run.iterations 2" in printed
    assert "trajectories included" in run("report", out, code=0)


def test_answers_of_models(monkeypatch):
    answer = SimpleNamespace(parameters=1, packing="row", text=TEXT.replace("\n", " "), tokens=1, tokens_per_second=1.0)
    monkeypatch.setattr("seeupo.engines.model_check.generate_answer", lambda *_, **__: answer)
    assert r"\x1b]0;title\x07" in run("models", "check", "tiny", code=0)


@pytest.mark.parametrize("styled", [False, True], ids=["plain", "styled"])
def test_tokens(styled):
    chat, out = chat_format(tokenizer_like("qwen2.5")), io.StringIO()
    turn = Turn("x", 0, chat.encode("\x1b[2J\u202e[bold]"), chat.encode("\x9b\r\x07"))
    print_tokens(Trajectory("x", "g", "t", (turn,), 0.0, 0.0), chat, Terminal(file=out, force_terminal=styled))
    printed = check_printed(out.getvalue().encode(), styled=styled).replace("·", "")
    assert r"\x1b[2J" in printed
    assert "[bold]" in printed


@pytest.mark.parametrize("styled", [False, True], ids=["plain", "live"])
def test_training_display(styled):
    out = io.StringIO()
    display = make_display(Terminal(file=out, force_terminal=styled, width=200))
    name, run = SimpleNamespace(name=TEXT), SimpleNamespace(total_iterations=2)
    display.on_start(SimpleNamespace(model=name, environment=name, run=run), Path(TEXT))
    display.on_phase(TEXT, 2)
    display.on_progress(1, TEXT)
    display.on_note(TEXT)
    print(TEXT.replace("\n", " "))  # a live display shows text that is printed meanwhile
    display.on_record({"kind": "warm_start", "iteration": 0, "loss": 1.0})
    display.on_end()
    assert r"note: \x1b]0;title\x07" in check_printed(out.getvalue().encode(), styled=styled)


def test_warnings_logs_and_tracebacks(capsys, monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    logger = logging.getLogger("hostile")
    with visible_diagnostics():
        logger.addHandler(logging.StreamHandler(sys.stderr))
        logger.warning("log %s", TEXT)
        warnings.simplefilter("default")
        warnings.warn(TEXT, stacklevel=1)
        sys.excepthook(RuntimeError, RuntimeError(TEXT), None)
    printed = check_printed(capsys.readouterr().err.encode())
    for start in ("log ", "warning: ", "RuntimeError: "):
        assert start + r"\x1b]0;title\x07" in printed


def test_layout_of_styled_text_stays():
    out = io.StringIO()
    Terminal(file=out, width=20).print("[bold]\n", soft_wrap=True)
    echo()
    assert out.getvalue() == "[bold]\\n\n"


@pytest.mark.parametrize("charset", ["ascii", "latin-1"])
def test_terminals_without_unicode(tmp_path, charset):
    recipe = tmp_path / "naïve-天気.toml"
    for arguments in (
        ["algorithms", "list"],
        ["algorithms", "show", "seeupo"],
        ["envs", "list"],
        ["train", str(recipe)],
    ):
        done = CliRunner(charset=charset).invoke(main, arguments)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert rb"-\u5929\u6c17.toml does not exist" in done.stderr_bytes


def test_commands_print_through_the_terminal_module_only():
    """Calls that would print text as it is."""
    source = Path(seeupo.__file__).parent
    # They write to another process, or to its log.
    pipes = {
        "envs/appworld/engine_client.py",
        "envs/appworld/engine_process.py",
        "comparison/training_process.py",
        "comparison/execution.py",
    }
    calls = {"print", "Console", "echo", "secho", "echo_via_pager", "prompt", "confirm", "get_text_stream"}
    found = []
    for path in source.rglob("*.py"):
        name = path.relative_to(source).as_posix()
        if name in {"cli/terminal.py", "utils/diagnostics.py", *pipes}:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Name(id="print" | "Console")):
                    found.append(f"{name}:{node.lineno}")
                case ast.Call(func=ast.Attribute(value=ast.Name(id="click"), attr=attribute)) if attribute in calls:
                    found.append(f"{name}:{node.lineno}")
                case ast.Attribute(value=ast.Name(id="sys"), attr="stdout" | "stderr") if name.startswith("cli/"):
                    found.append(f"{name}:{node.lineno}")
    assert found == []
