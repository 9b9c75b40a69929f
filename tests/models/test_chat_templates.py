"""A chat template computes within limits, and its text is what transformers would make."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from rollout.tokenizers_like import TEMPLATES, tokenizer_like
from seeupo.cli import main
from seeupo.errors import ModelError
from seeupo.models import chat_templates
from seeupo.models.chat_templates import TemplateLimitError, render
from seeupo.models.loading import load_policy
from seeupo.rollout.chat import chat_format
from seeupo.types import Message, Tool
from waiting import wait_until

LATE = "{% if messages | length > 6 or tools %}"
HOSTILE = {
    "loops": "{% set r = range(99999) %}" + "{% for a in r %}" * 3 + "{% endfor %}" * 3,
    "macro": "{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n else 'x' }}{% endmacro %}{{ f(60) }}",
    "power": "{% set x = 7 %}{{ x ** (10 ** 9) % 3 }}",
    "constant": "{{ 'x' * 10 ** 11 }}",
    "product": "{% set x = 10 ** 10 %}{{ 'x' * x }}",
    "doubling": "{% set n = namespace(x='x') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "format": "{{ '%5000000000d' % 1 }}",
    "center": "{{ 'x' | center(5000000000) }}",
    "lipsum": "{{ lipsum(n=1000000, html=False) }}",
    "long": "{{ 'x' * 3000000 }}",
}


@pytest.fixture
def hasty(monkeypatch):
    """A renderer with a second of computing time."""
    monkeypatch.setattr(chat_templates, "_renderers", {})
    monkeypatch.setattr(chat_templates, "SECONDS", 1.0)


def tokenizer_with(template):
    tokenizer = tokenizer_like("llama")
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_one_error_and_is_not_replaced(name, hasty):
    tokenizer = tokenizer_with(HOSTILE[name])
    with pytest.raises(TemplateLimitError, match=r"the chat template of .* is not usable: it ") as raised:
        chat_format(tokenizer)
    assert len(raised.value.lines) == 1


@pytest.mark.parametrize("name", ["loops", "long"])
def test_a_template_that_turns_hostile_later_is_one_error(name, hasty):
    ordinary = TEMPLATES["llama"]
    tokenizer = tokenizer_with(f"{ordinary}{LATE}{HOSTILE[name]}{{% endif %}}")
    messages = [Message("user", "the cat?")]
    with pytest.raises(TemplateLimitError):  # the probe for tools
        chat_format(tokenizer)
    tokenizer = tokenizer_with(f"{ordinary}{LATE.replace(' or tools', '')}{HOSTILE[name]}{{% endif %}}")
    chat = chat_format(tokenizer)
    with pytest.raises(TemplateLimitError):
        chat.opening(messages * 7, ())
    assert chat.opening(messages, ())  # in a new process


def test_the_command_line_prints_one_line(tmp_path, hasty):
    folder = tmp_path / "model"
    policy = load_policy("tiny")
    policy.model.save_pretrained(folder)
    policy.tokenizer.chat_template = HOSTILE["power"]
    policy.tokenizer.save_pretrained(folder)
    data = tmp_path / "data.jsonl"
    data.write_text('{"prompt": "a", "completion": "b"}\n')
    result = CliRunner().invoke(main, ["data", "check", str(data), "--model", str(folder)], env={"COLUMNS": "500"})
    assert result.exit_code == 1
    (line,) = result.output.strip().splitlines()
    assert line.startswith("Error: the chat template of ")
    assert "more than 1 s of computing time" in line


@pytest.mark.parametrize("name", [name for name in TEMPLATES if TEMPLATES[name]])
def test_texts_are_those_of_transformers(name):
    tokenizer = tokenizer_like(name)
    hello = [{"role": "system", "content": "be é \ud83d brief\r\n"}, {"role": "user", "content": " a\u2028b \x00\n"}]
    schema = {"type": "function", "function": {"name": "look", "parameters": {"a": [1, 2.5, None, True]}}}
    for messages, tools in ((hello, None), (hello * 50, [schema])):
        expected = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False)
        assert render(tokenizer, tokenizer.chat_template, messages, tools) == expected


def test_the_process_has_no_secrets_and_serves_all_templates(monkeypatch):
    monkeypatch.setattr(chat_templates, "_renderers", {})
    monkeypatch.setenv("OPENAI_API_KEY", "very-secret")
    for name in ("llama", "qwen2.5"):
        chat_format(tokenizer_like(name))
    (renderer,) = chat_templates._renderers.values()
    environment = Path(f"/proc/{renderer._process.pid}/environ")
    if environment.exists():
        assert b"very-secret" not in environment.read_bytes()


def test_the_process_ends_with_its_parent():
    code = """if True:
        import os, signal
        from rollout.tokenizers_like import tokenizer_like
        from seeupo.models import chat_templates
        from seeupo.rollout.chat import chat_format
        chat_format(tokenizer_like("llama"))
        (renderer,) = chat_templates._renderers.values()
        print(renderer._process.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment, check=False)
    assert done.returncode == -9
    pid = int(done.stdout)
    wait_until(lambda: not Path(f"/proc/{pid}").exists() or state_of(pid) == "Z")


def state_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_the_plain_format_starts_no_process(monkeypatch):
    monkeypatch.setattr(chat_templates, "_renderers", {})
    chat_format(load_policy("tiny").tokenizer)
    assert chat_templates._renderers == {}


def test_values_that_are_not_json_are_a_model_error():
    chat = chat_format(tokenizer_like("qwen2.5"))
    tool = Tool("look", "", {"type": object()})
    with pytest.raises(ModelError, match="the chat template failed: TypeError"):
        chat.opening([Message("user", "a")], [tool])
