"""The apps: actions change what they should and nothing else."""

import pytest

from seeupo.envs.pocket.apps import TOOLS, ActionError, Call
from seeupo.envs.pocket.kinds import KINDS
from seeupo.envs.pocket.tasks import draw_world
from seeupo.envs.pocket.words import CHANNELS, SORT_OF, WORDS, words_of


def test_every_word_has_one_sort_and_is_not_a_tool():
    assert len(SORT_OF) == sum(map(len, WORDS.values()))
    assert not set(SORT_OF) & {*TOOLS, *CHANNELS}


def test_lookups_return_the_promised_labels():
    world = draw_world(3)
    assert {call.tool for call in world.facts} == {"who", "card", "inbox", "notes", "read", "event"}
    for call, facts in world.facts.items():
        spec = TOOLS[call.tool]
        assert spec.fits(call.words)
        assert {label for label, _ in facts} == set(spec.tells)
        assert all(word in words_of(spec.tells[label]) for label, word in facts)


def test_lookups_change_nothing():
    world = draw_world(3)
    before = world.copy()
    for tool, spec in TOOLS.items():
        if spec.tells and tool != "read":
            for word in words_of(spec.takes[0]):
                world.apply(Call(tool, (word,)))
    assert world == before


def test_outdated_words_differ_from_current_ones_in_random_order():
    first = dict.fromkeys(("now", "new", "reads", "was", "old", "has"), 0)
    for seed in range(20):
        for call, facts in draw_world(seed).facts.items():
            if call.tool in ("card", "notes", "event", "inbox"):
                (label, word), (_, other) = facts[-2:]
                assert word != other
                first[label] += 1
    assert all(count > 50 for count in first.values())


def test_old_and_new_notes_name_other_people_and_sums():
    world = draw_world(5)
    for topic in WORDS["topic"]:
        notes = [world.apply(Call("read", (topic, colour))) for _, colour in world.apply(Call("notes", (topic,)))]
        (_, (sum_, payee)), (_, (other_sum, other_payee)) = ((0, [word for _, word in note]) for note in notes)
        assert sum_ != other_sum
        assert payee != other_payee


def test_acts_are_recorded_in_order():
    world = draw_world(1)
    acts = [
        Call("pay", ("ann", "5")),
        Call("ask", ("ann", "5")),
        Call("mail", ("bob", "mon")),
        Call("text", ("bob", "7")),
    ]
    for call in acts:
        assert world.apply(call) == ()
    assert world.acts == acts
    assert world != draw_world(1)


def test_a_moved_event_can_be_moved_back():
    world = draw_world(1)
    day = dict(world.apply(Call("event", ("trip",))))["now"]
    other = next(word for word in WORDS["day"] if word != day)
    world.apply(Call("move", ("trip", other)))
    assert dict(world.apply(Call("event", ("trip",))))["now"] == other
    assert world != draw_world(1)
    world.apply(Call("move", ("trip", day)))
    assert world == draw_world(1)


def test_a_canceled_event_is_removed():
    world = draw_world(1)
    world.apply(Call("cancel", ("trip",)))
    after = world.copy()
    for call in (Call("event", ("trip",)), Call("move", ("trip", "mon")), Call("cancel", ("trip",))):
        with pytest.raises(ActionError, match="no such event"):
            world.apply(call)
    assert world == after
    assert world.acts == [Call("cancel", ("trip",))]


def test_distractor_lookups_reflect_the_state():
    world = draw_world(1)
    assert world.apply(Call("paid", ("ann",))) == (("got", "nothing"),)
    world.apply(Call("pay", ("ann", "5")))
    world.apply(Call("pay", ("ann", "6")))
    assert world.apply(Call("paid", ("ann",))) == (("got", "6"),)
    for topic in WORDS["topic"]:
        world.apply(Call("move", (topic, "mon")))
    assert world.apply(Call("day", ("mon",))) == (("is", "busy"),)
    assert world.apply(Call("day", ("tue",))) == (("is", "free"),)


def test_a_missing_note_is_an_error():
    world = draw_world(1)
    there = {colour for _, colour in world.apply(Call("notes", ("rent",)))}
    for colour in set(WORDS["colour"]) - there:
        with pytest.raises(ActionError, match="no such note"):
            world.apply(Call("read", ("rent", colour)))


def test_no_kind_needs_distractors():
    needed = {step.tool for kind in KINDS.values() for step in kind.steps} - {"channel"} | set(CHANNELS)
    assert set(TOOLS) - needed == {"day", "cancel", "ask", "paid", "decline"}
