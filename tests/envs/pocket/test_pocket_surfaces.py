"""Both surfaces: what they show, what they parse, and that no text breaks them."""

import json
import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.pocket.examples import SETTINGS, factory, random_policy, rollout, task_of
from seeupo.envs.pocket.apps import TOOLS, ActionError, Call
from seeupo.envs.pocket.kinds import KINDS
from seeupo.envs.pocket.natural_tools import WORDINGS
from seeupo.envs.pocket.tasks import solution
from seeupo.envs.pocket.terse import vocabulary

TERSE = factory()
NATURAL = factory(surface="natural")


def call_text(name, arguments):
    return json.dumps({"name": name, "arguments": arguments})


NONSENSE = [
    "",
    " \t\n",
    "\x00",
    "\x00" * 50,
    "\ud800",
    "pay \udfff 5",
    "a" * 1_000_000,
    "pay " * 300_000,
    "{" * 1_000_000,
    "[" * 1900,
    '{"name":' * 240,
    '{"name": ' + "[" * 1900,
    "done" + " " * 3000,
    '{"name": "finish", "arguments": {}}' + " " * 3000,
    '{"name": "finish", "arguments": ' + "[" * 900 + "]" * 900 + "}",
    '{"name": "finish", "arguments": {"answer": ' + "[" * 900 + "]" * 900 + "}}",
    '{"name": ' + "[" * 900 + "]" * 900 + ', "arguments": {}}',
    '{"name": ' + "9" * 1500 + ', "arguments": {}}',
    call_text("send_money", {"to": "Bob", "amount": math.nan}),
    call_text("send_money", {"to": "Bob", "amount": math.inf}),
    call_text("send_money", {"to": "Bob", "amount": 10**1500}),
    call_text("send_money", {"to": "Bob", "amount": -5}),
    call_text("send_money", {"to": "Bob", "amount": 5.0}),
    call_text("send_money", {"to": "Bob", "amount": True}),
    call_text("send_money", {"to": "Bob", "amount": None}),
    call_text("send_money", {"to": "Bob", "amount": [5]}),
    call_text("send_money", {"to": {"name": "Bob"}, "amount": 5}),
    call_text("send_money", {"to": "Bob", "amount": "5 "}),
    call_text("send_money", {"to": "Bob"}),
    call_text("send_money", {"to": "Bob", "amount": 5, "currency": "EUR"}),
    call_text("send_money", {"TO": "Bob", "amount": 5}),
    call_text("send_money", ["Bob", 5]),
    call_text("send_money", "Bob"),
    call_text("send_money", None),
    call_text("send_money", {"to": "\ud800", "amount": 5}),
    call_text("send_money", {"to": "Bob" * 400, "amount": 5}),
    call_text("send_money", {"to": "Monday", "amount": 5}),
    call_text("send_money", {"to": 5, "amount": "Bob"}),
    call_text("finish", {"answer": "maybe"}),
    call_text("zahl\u00e9", {}),
    call_text("__class__", {}),
    call_text("apply", {}),
    call_text("pay", {"name": "bob", "amount": 5}),
    call_text("decline", {}),
    call_text(None, {}),
    call_text(7, {}),
    call_text({}, {}),
    call_text(["finish"], {}),
    '{"arguments": {}}',
    "{}",
    "[]",
    "null",
    "NaN",
    '"finish"',
    "<tool_call></tool_call>",
    "<tool_call>{</tool_call>",
    "<tool_call>" * 100,
    "</tool_call>{",
    '{"name": "finish"',
    "{'name': 'finish', 'arguments': {}}",
    "finish()",
    "__import__('os').system('true')",
    "'; DROP TABLE notes; --",
    "{0.__class__} %s {given}",
    "decline",
    "DONE",
    "done done",
    "done 5 5",
    "done\u200b",
    "pay bob \uff15",
    "pay bob 05",
    "pay bob -5",
    "pay bob 5.0",
    "pay bob nan",
    "pay bob 1e400",
    "pay 5 bob",
    "pay bob",
    "pay",
    "pay bob 5 done",
    "read rent",
    "who ann",
    "text ann text",
    "channel ann mon",
    "send ann mon",
    "self._world.acts",
    "score 1.0",
]
OTHER_THINGS = [None, 5, math.nan, b"done", ["done"], {"name": "finish"}, object()]


def state(env):
    return env._world.copy(), env.score()


@pytest.mark.parametrize("world", [TERSE, NATURAL], ids=["terse", "natural"])
def test_invalid_actions_change_nothing(world):
    assert len(NONSENSE) > 40
    env = world.make()
    for action in [*NONSENSE, *OTHER_THINGS]:
        env.reset(task_of(world, "bill"), seed=0)
        before = state(env)
        result = env.step(action)
        (message,) = result.messages
        assert message.role == "tool"
        assert message.content.startswith("Error: ")
        assert len(message.content) < 400
        assert message.content.isascii()
        assert not result.done
        assert state(env) == before


def test_invalid_actions_cost_turns():
    for world in (TERSE, NATURAL):
        results, _ = rollout(world.make(), world.tasks("train")[0], lambda _: "nonsense")
        assert len(results) == 1 + 8
        assert results[-1].truncated
        assert not results[-1].terminated


ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=60)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=8,
)
WORD = st.sampled_from(vocabulary())
NAME = st.sampled_from([wording.name for wording in WORDINGS.values()])
ARGUMENT = st.sampled_from(["Ann", "ann", "Monday", "mon", "rent", "red", "coach", 5, "5", "", 1.5, None, {}])
KEYS = sorted({key for wording in WORDINGS.values() for key in wording.parameters})
CALLS = st.builds(call_text, NAME | ANY_JSON, st.dictionaries(st.sampled_from(KEYS), ARGUMENT, max_size=3) | ANY_JSON)
ACTIONS = (
    ANY_TEXT
    | st.lists(WORD, max_size=5).map(" ".join)
    | CALLS
    | CALLS.map("<tool_call>{}</tool_call>".format)
    | st.builds(lambda text, cut: text[:cut], CALLS, st.integers(0, 40))
)


@pytest.mark.parametrize("world", [TERSE, NATURAL], ids=["terse", "natural"])
@given(st.integers(0, 59), st.lists(ACTIONS, min_size=1, max_size=8))
def test_any_text_gives_a_valid_result(world, index, actions):
    env = world.make()
    env.reset(world.tasks("train")[index], seed=0)
    for action in actions:
        before = state(env)
        result = env.step(action)
        (message,) = result.messages
        message.content.encode()
        assert len(message.content) < 400
        if message.content.startswith("Error: "):
            assert state(env) == before
        if result.done:
            break
    assert env.score() in (0.0, 1.0)


@pytest.mark.parametrize("options", SETTINGS)
def test_written_calls_are_parsed(options):
    world = factory(**options)
    for task in world.tasks("train"):
        for call in solution(task)[1]:
            assert world.surface.parse(world.surface.write(call)) == call


def test_the_terse_vocabulary_is_closed_and_small():
    words = set(TERSE.vocabulary())
    assert 60 <= len(words) <= 120
    assert all(word == word.strip() and " " not in word for word in words)
    seen = set()
    for deceptive in (0.0, 0.3):
        world = factory(deceptive=deceptive, train_tasks=200)
        env = world.make()
        for seed, task in enumerate(world.tasks("train")):
            policies = (world.expert(task), random_policy(world.surface, Random(seed)), lambda _: "pay", lambda _: "hm")
            for policy in policies:
                results, actions = rollout(env, task, policy)
                (request,) = results[0].messages
                assert 6 <= len(request.content.split()) <= 20
                assert results[0].tools == ()
                texts = [message.content for result in results[1:] for message in result.messages]
                assert all(1 <= len(text.split()) <= 8 for text in texts)
                actions = [action for action in actions if action != "hm"]
                assert all(1 <= len(action.split()) <= 4 for action in actions)
                seen.update(*(text.split() for text in (request.content, *texts, *actions)))
    assert seen == words


def test_only_the_terse_vocabulary_is_closed():
    assert NATURAL.vocabulary() == ()


def test_requests_come_in_several_wordings_and_name_their_words():
    world = factory(surface="natural", train_tasks=300)
    env = world.make()
    seen = {kind: set() for kind in KINDS}
    for task in world.tasks("train"):
        system, user = env.reset(task, seed=0).messages
        assert (system.role, user.role) == ("system", "user")
        given = {slot: word.capitalize() if slot == "name" else word for slot, word in task.payload["given"].items()}
        wordings = [wording.format(**given) for wording in KINDS[task.kind].natural]
        assert len(set(wordings)) == 3
        seen[task.kind].add(wordings.index(user.content))
    assert all(found == {0, 1, 2} for found in seen.values())


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "send_money", "arguments": {"to": "Bob", "amount": 5}}</tool_call>',
        '<tool_call>\n{"name": "send_money", "arguments": {"to": "Bob", "amount": 5}}\n</tool_call>',
        '{"name": "send_money", "arguments": {"to": "Bob", "amount": 5}}',
        '{"arguments": {"amount": "5", "to": "BOB"}, "name": "send_money"}',
        'I will pay.\n{"name": "send_money", "arguments": {"to": "bob", "amount": 5}}',
        'Or {this}? <tool_call>{"name": "send_money", "arguments": {"to": "Bob", "amount": 5}}',
        '<tool_call>{"name": "send_money", "arguments": {"to": "Bob", "amount": 5}}</tool_call>\n'
        '<tool_call>{"name": "finish", "arguments": {}}</tool_call>',
    ],
)
def test_natural_calls_are_parsed_in_several_forms(text):
    assert NATURAL.surface.parse(text) == Call("pay", ("bob", "5"))


def test_a_call_without_arguments():
    for text in ('{"name": "finish"}', '{"name": "finish", "arguments": {}}'):
        assert NATURAL.surface.parse(text) == Call("done")
    assert NATURAL.surface.parse('{"name": "finish", "arguments": {"answer": "Friday"}}') == Call("done", ("fri",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"name": "fly", "arguments": {}}', "there is no tool 'fly'; the tools are find_contact, show_contact"),
        ('{"name": "find_contact", "arguments": {"role": "king"}}', "role is 'king'; it must be a role, such as coach"),
        ('{"name": "find_contact", "arguments": {"who": 1}}', r"are 'who'; call it as find_contact\(role\)"),
        ('{"name": "send_money", "arguments": 5}', "the arguments of send_money are '5'; they must be a JSON object"),
        ("hello", "no tool call; write one as JSON with name and arguments"),
        ("x" * 2001, "the action has 2001 characters; at most 2000 are read"),
    ],
)
def test_natural_errors_name_the_problem(text, message):
    with pytest.raises(ActionError, match=message):
        NATURAL.surface.parse(text)


@pytest.mark.parametrize(("text", "message"), [("fly", "unknown tool"), ("pay bob rent", "wrong words")])
def test_terse_errors_are_two_words(text, message):
    with pytest.raises(ActionError, match=f"^{message}$"):
        TERSE.surface.parse(text)


def test_schemas_describe_what_is_accepted():
    world = NATURAL
    schemas = world.make().reset(world.tasks("train")[0], seed=0).tools
    assert [schema.name for schema in schemas] == [WORDINGS[tool].name for tool in world.surface.tools]
    for schema, tool in zip(schemas, world.surface.tools, strict=True):
        assert json.loads(json.dumps(schema.parameters)) == schema.parameters
        assert tuple(schema.parameters["properties"]) == WORDINGS[tool].parameters
        assert schema.parameters.get("required", []) == (
            [] if TOOLS[tool].optional else list(WORDINGS[tool].parameters)
        )


def test_signatures_replace_schemas():
    compact = factory(surface="natural", tools="signatures", turns=(2, 3), distractors=False)
    opening = compact.make().reset(compact.tasks("train")[0], seed=0)
    assert opening.tools == ()
    assert len(opening.messages[0].content) < 500
    assert all(WORDINGS[tool].name in opening.messages[0].content for tool in compact.surface.tools)


def test_tools_that_are_not_offered_cannot_be_called():
    few = factory(turns=(2, 2), distractors=False)
    assert few.surface.tools == ("inbox", "event", "done")
    with pytest.raises(ActionError, match="unknown tool"):
        few.surface.parse("pay bob 5")
    assert len(TERSE.surface.tools) == 15
    assert factory(deceptive=0.3).surface.tools == (*TERSE.surface.tools, "decline")
