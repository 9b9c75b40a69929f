"""Every command with bad input: one message, no traceback, a non-zero exit code, nothing written."""

import re

import click
import pytest
from click.testing import CliRunner

from seeupo.cli import main
from seeupo.errors import ConfigError, UserError

BAD_RECIPE = '[agent]\nmax_turns = "many"\n'

CASES = [
    ("train bad.toml", "agent.max_turns"),
    ("train bad.toml --dry-run", "agent.max_turns"),
    ("train missing.toml", "missing.toml"),
    ("train not-text.toml", "not-text.toml"),
    ("train no-such-recipe", "no-such-recipe"),
    ("train tiny-pocket --out file", "file"),
    ("train tiny-pocket --model.name no-such-model", "no-such-model"),
    ("train tiny-pocket --model.name empty", "empty"),
    ("train tiny-pocket --model.name bad-adapter", "bad-adapter"),
    ("train tiny-pocket --environment.name no-such-env", "no-such-env"),
    ("train tiny-pocket --environment.options.no_such_option 1", "no_such_option"),
    ("train tiny-pocket --warm_start.file missing.jsonl", "missing.jsonl"),
    ("train tiny-pocket --warm_start.file file", "file, line 1: not JSON"),
    ("train --resume missing", "missing"),
    ("train --resume file", "file"),
    ("train --resume empty", "empty"),
    ("train --resume bad-run", "agent.max_turns"),
    ("plan bad.toml", "agent.max_turns"),
    ("plan missing.toml", "missing.toml"),
    ("plan tiny-pocket --model.name no-such-model", "no-such-model"),
    ("plan tiny-pocket --model.name empty", "empty"),
    ("plan tiny-pocket --environment.options.no_such_option 1", "no_such_option"),
    ("report missing", "missing"),
    ("report empty", "empty"),
    ("report file", "file"),
    ("export missing out", "missing"),
    ("export file out", "file"),
    ("export empty out", "empty"),
    ("export bad-run file", "already exists"),
    ("export bad-run out", "no final policy"),
    ("export bad-run --checkpoint 3 out", "no checkpoint 3"),
    ("export bad-run --best out", "bad-run"),
    ("eval bad-run", "agent.max_turns"),
    ("eval missing --env pocket", "missing"),
    ("eval tiny --env pocket --checkpoint best", "run directory"),
    ("eval tiny --env pocket --checkpoint last", "'last'"),
    ("eval bad-adapter --env pocket", "bad-adapter"),
    ("eval empty --env pocket", "empty"),
    ("eval expert --env no-such-env", "no-such-env"),
    ("eval expert --env pocket --split no-such-split", "no-such-split"),
    ("eval expert --env pocket -o no_such_option=1", "no_such_option"),
    ("eval expert --env pocket --out file", "file"),
    ("eval expert --env pocket --resume --out file", "file"),
    ("eval expert --env pocket --samples 4", "--attempts"),
    ("eval --compare missing file", "missing"),
    ("serve missing --port 0", "missing"),
    ("serve empty --port 0", "empty"),
    ("serve bad-run --port 0", "agent.max_turns"),
    ("train --agent-program missing.py:solve --tasks file", "not JSON"),
    ("agents show --model bad-run", "agent.max_turns"),
    ("agents show --model missing --env pocket", "missing"),
    ("agents show --model bad-adapter --env pocket", "bad-adapter"),
    ("agents show --model tiny --env no-such-env", "no-such-env"),
    ("agents show --model tiny --env pocket --task no-such-task", "no-such-task"),
    ("models fetch no-such-model", "no-such-model"),
    ("models check no-such-model", "no-such-model"),
    ("models check empty", "empty"),
    ("data check missing.jsonl", "missing.jsonl"),
    ("data check empty", "empty"),
    ("data check file", "file, line 1: not JSON"),
    ("data check chat.jsonl", "chat.jsonl, line 2: no assistant message"),
    ("data check pair.jsonl --model no-such-model", "no-such-model"),
    ("data check pair.jsonl --model bad-run", "bad-run"),
    ("envs install no-such-env", "no-such-env"),
    ("envs check no-such-env", "no-such-env"),
    ("envs check pocket --split no-such-split", "no-such-split"),
    ("envs check pocket -o no_such_option=1", "no_such_option"),
    ("envs check gymnasium -o make=no_such_module:make", "no_such_module"),
    ("envs check no_such_module:Factory", "no_such_module"),
    ("envs new not-a-name", "not-a-name"),
    ("envs play no-such-env", "no-such-env"),
    ("envs play pocket --task no-such-task", "no-such-task"),
    ("recipes show no-such-recipe", "no-such-recipe"),
    ("algorithms show no-such-algorithm", "no-such-algorithm"),
    ("algorithms new not-a-name", "not-a-name"),
    ("train tiny-pocket --environment.name poket", "did you mean 'pocket'? Name your own"),
    ("train tiny-pocket --algorithm.name pppo", "did you mean 'ppo'? Name your own"),
    ("compare no-such-study", "no-such-study"),
    ("compare bad.toml", "agent: unknown key; available: recipe"),
]
WITHOUT_INPUT = {"doctor", "envs list", "models list", "recipes list", "recipes schema", "algorithms list"}
"""Commands that take no recipe, path, model or environment."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "bad.toml").write_text(BAD_RECIPE)
    (tmp_path / "not-text.toml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "file").write_text("not a run, not a result")
    (tmp_path / "pair.jsonl").write_text('{"prompt": "2 + 2 =", "completion": "4"}')
    messages = '{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}'
    (tmp_path / "chat.jsonl").write_text(messages + "\n" + messages.replace("assistant", "user"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad-adapter").mkdir()
    (tmp_path / "bad-adapter" / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 1, "lora_alpha": 1}')
    (tmp_path / "bad-run").mkdir()
    (tmp_path / "bad-run" / "recipe.toml").write_text(BAD_RECIPE)
    (tmp_path / "bad-run" / "env_info.json").write_text('{"format": "seeupo-run", "version": 2}')
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("command", "named"), CASES, ids=[command for command, _ in CASES])
def test_bad_input_is_one_message(folder, command, named):
    before = sorted(folder.rglob("*"))
    result = CliRunner().invoke(main, command.split(), env={"COLUMNS": "300"})
    assert result.exit_code in (1, 2), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert "Traceback" not in result.output
    (message,) = [line for line in result.output.splitlines() if line.startswith("Error: ")]
    assert named in message
    assert not re.search(r"(?<!\.)[?!.]\.(\s|$)", message)
    assert sorted(folder.rglob("*")) == before


def test_every_command_has_a_case():
    def names(group, prefix):
        for name, command in group.commands.items():
            if isinstance(command, click.Group):
                yield from names(command, f"{prefix}{name} ")
            else:
                yield f"{prefix}{name}"

    tested = {name for name in names(main, "") if any(f"{case} ".startswith(f"{name} ") for case, _ in CASES)}
    assert set(names(main, "")) - tested <= WITHOUT_INPUT


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("did you mean 'a'?. Do this", "did you mean 'a'? Do this"),
        ("it failed: no disk.. Try again.", "it failed: no disk. Try again."),
        ("'..' and ../a, .. , and so on... and f(...). End", "'..' and ../a, .. , and so on... and f(...). End"),
    ],
)
def test_messages_have_no_double_marks(text, shown):
    assert str(UserError(text)) == str(ConfigError([text])) == shown
