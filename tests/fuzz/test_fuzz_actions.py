"""The parsers of a model's text: any text is an action or a declared error, and is never executed."""

import json
import warnings
from contextlib import suppress
from functools import cache
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fuzz.guard import nothing_executes
from fuzz.mutation import ODD_TEXTS, TEXTS, damaged, mutated_json
from report.made_runs import tokenizer
from rollout.tokenizers_like import TEMPLATES, tokenizer_like
from seeupo.envs.appworld.code_block import first_code_block
from seeupo.envs.bfcl.calls import PARSERS, Call, DecodeError, canonical, write_action
from seeupo.envs.pocket import PocketFactory
from seeupo.envs.pocket.apps import ActionError
from seeupo.envs.textworld.commands import LONGEST_COMMAND, PLAIN_WORDS, CommandError, read_command
from seeupo.errors import ModelError
from seeupo.rollout.chat import chat_format
from seeupo.rollout.reasoning import CLOSE, OPEN, action_of, thought_ranges, without_thoughts
from seeupo.types import Message

PIECES = st.sampled_from(
    [
        "[", "]", "(", ")", "{", "}", ",", "=", "*", "**", "-", "+", "not ", "lambda: ", "f", "f(", "a=", "1", "1.5",
        "1j", "1e999", "0x" + "f" * 40, "9" * 5000, "'x'", '"', "'''", "b'x'", "f'{x}'", "None", "True", "...", ":=",
        "#", "\\", "\n", ";", "`", "```", "```python\n", "\t", "await ", "yield ", "__import__('os')", ".system", "if ",
        "else ", "for x in ", "<tool_call>", "</tool_call>", '{"name": "f", "arguments": ', "<think>", "</think>", ">",
        "look", "go north", "then", "take all", "\u0661", "\ufb01", "\ud800", "\x00", "\x0c", "\u2028",
    ]
)  # fmt: skip
REPEATED = st.tuples(PIECES, st.sampled_from([1, 1, 1, 50, 300, 5000])).map(lambda part: part[0] * part[1])
WRITTEN = st.sampled_from(
    [
        "[f(a=1, b='x'), g([1, (2, {'k': None})], -3.5)]",
        '<tool_call>{"name": "f", "arguments": {"a": [1, {"b": null}]}}</tool_call>',
        "<think>why</think>\n```python\nprint(apis.mail.show())\n```\n```text\nno\n```",
        "I will look.\n> take brass lantern",
        "pay bob 5",
    ]
).flatmap(lambda text: damaged(text.encode()).map(lambda content: content.decode(errors="surrogateescape")))
CALL = {"name": "f", "arguments": {"a": [1, {"b": None}], "c": "x"}}
TOOL_CALLS = mutated_json(CALL).map(lambda text: f"<tool_call>{text}</tool_call>")
MIXED = st.lists(REPEATED | TEXTS | ODD_TEXTS, max_size=8).map(lambda parts: "".join(parts)[:200_000])
ACTIONS = MIXED | WRITTEN | TOOL_CALLS


@given(ACTIONS, st.sampled_from(sorted(PARSERS)))
def test_any_text_is_calls_or_a_decode_error(text, action_format):
    with nothing_executes():
        try:
            calls = PARSERS[action_format](text)
        except DecodeError as error:
            assert len(str(error)) < 1000  # noqa: PT017
            return
        named = [Call(call.name, call.arguments) for call in calls]
        assert PARSERS["python"](f"[{', '.join(map(canonical, named))}]") == named
        if action_format == "tool_call":
            assert PARSERS["tool_call"](write_action(named, "tool_call")) == named


@cache
def surfaces():
    return [
        PocketFactory(surface=surface, train_tasks=32, test_tasks=0, deceptive=0.5).surface
        for surface in ("terse", "natural")
    ]


POCKET_CALL = {"name": "send_money", "arguments": {"to": "Ann", "amount": 5}}


@given(ACTIONS | mutated_json(POCKET_CALL), st.integers(0, 1))
def test_any_text_is_a_pocket_call_or_an_action_error(text, number):
    surface = surfaces()[number]
    with nothing_executes():
        try:
            call = surface.parse(text)
        except ActionError as error:
            assert len(str(error)) < 1000  # noqa: PT017
            return
        assert surface.parse(surface.write(call)) == call


@given(ACTIONS)
def test_any_text_is_a_harmless_command_or_a_command_error(text):
    with nothing_executes():
        try:
            command = read_command(text)
        except CommandError as error:
            assert len(str(error)) < 1000  # noqa: PT017
            return
    assert len(command) <= LONGEST_COMMAND
    assert PLAIN_WORDS.fullmatch(command)
    assert command.isascii()
    assert read_command(command) == command


@given(ACTIONS)
def test_any_text_has_a_code_block_or_none(text):
    with nothing_executes():
        code = first_code_block(text)
    assert code is None or code in text


@given(ACTIONS)
def test_thoughts_are_separated_from_any_text(text):
    ranges = thought_ranges(text)
    assert all(0 <= start < end <= len(text) for start, end in ranges)
    assert all(one[1] <= other[0] for one, other in pairwise(ranges))
    action = action_of(text)
    assert len(action) <= len(text)
    # What surrounds a thought may form a new tag; the parser that follows must not see a complete one otherwise.
    if OPEN not in text and CLOSE not in text:
        assert action == text.strip()


JINJA = st.sampled_from(
    ["{{ 1 / 0 }}", "{{ x }}", "{% for i in range(99999999) %}{% endfor %}", "{{ messages + 1 }}", "{{ ''.__class__ }}",
     "{{ cycler.__init__.__globals__ }}", "{% include 'x' %}", "{{ 'a' | map('b') }}", "{%", "{{ (1).bit_length() }}"]
)  # fmt: skip


@cache
def chat_tokenizer():
    return tokenizer_like("llama")


@given(st.sampled_from([text for text in TEMPLATES.values() if text]), st.data(), TEXTS | ODD_TEXTS)
def test_any_chat_template_is_used_or_replaced(template, data, text):
    changed = data.draw(damaged(template.encode())).decode(errors="replace")
    place = data.draw(st.integers(0, len(changed)))
    changed = changed[:place] + data.draw(st.just("") | JINJA) + changed[place:]
    chat_tokenizer().chat_template = changed
    with warnings.catch_warnings(), suppress(ModelError):
        warnings.simplefilter("ignore", UserWarning)
        chat = chat_format(chat_tokenizer())
        chat.opening([Message("user", text)], ())
        chat.between([Message("tool", text)])


@given(st.lists(st.integers(0, 319), max_size=30) | ACTIONS.map(lambda text: _ids(text[:2000])))
def test_thoughts_are_removed_from_any_tokens(ids):
    decode = tokenizer().decode
    rest, kept = without_thoughts(tuple(ids), decode)
    assert kept == tuple(ids[len(ids) - len(kept) :])
    assert OPEN not in rest
    json.dumps(rest)


def _ids(text):
    return tokenizer().encode(text.encode(errors="replace").decode()).ids
