"""Tasks with one decisive choice: its turn, and nothing else, depends on the options."""

import pytest

from envs.pocket.examples import act, factory, rollout
from seeupo.envs.pocket.decisions import ALL_KINDS
from seeupo.envs.pool.serve import load_factory
from seeupo.errors import EnvError

WRONG = {"wrong_choice": 1.0, "wrong_word": 0.0, "skipped_lookup": 0.0, "stops_early": 0.0, "wrong_tool": 0.0}
DECISIVE_TURNS = {
    "early": {3: 2, 4: 2, 5: 2, 6: 2, 7: 2, 8: 2},
    "middle": {3: 2, 4: 2, 5: 3, 6: 3, 7: 4, 8: 4},
    "late": {3: 2, 4: 3, 5: 4, 6: 5, 7: 6, 8: 7},
}


@pytest.mark.parametrize("surface", ["terse", "natural"])
@pytest.mark.parametrize("decision", DECISIVE_TURNS)
def test_the_wrong_choice_is_at_the_decisive_turn_only(decision, surface):
    world = factory(decision=decision, turns=(3, 8), surface=surface, train_tasks=120)
    env, lengths = world.make(), set()
    for split in world.splits:
        for task in world.tasks(split):
            _, right = rollout(env, task, world.expert(task))
            assert env.score() == 1.0
            _, wrong = rollout(env, task, world.noisy_expert(task, seed=0, rates=WRONG))
            assert env.score() == 0.0
            differ = [turn for turn, pair in enumerate(zip(right, wrong, strict=True), 1) if pair[0] != pair[1]]
            assert differ == [DECISIVE_TURNS[decision][len(right)]]
            lengths.add(len(right))
    assert lengths == set(range(3, 9))


def test_declining_is_safe_until_something_wrong_was_done():
    world = factory(decision="middle", turns=(7, 7), deceptive=0.3, max_turns=9)
    env, task = world.make(), world.tasks("train")[0]
    _, actions = rollout(env, task, world.expert(task))
    for right in range(len(actions)):
        act(env, task, *actions[:right], "decline")
        assert env.score() == 0.3
    wrong = actions[3].replace("text", "mail")
    for prefix in ([*actions[:3], wrong], [actions[1]], [*actions[:2], actions[0]]):
        act(env, task, *prefix, "decline")
        assert env.score() == 0.0


def test_terse_requests_use_known_words_only():
    world = factory(decision="late", turns=(8, 8))
    words, env = set(world.vocabulary()), world.make()
    assert words == set(factory().vocabulary())
    for task in world.tasks("train"):
        results, actions = rollout(env, task, world.expert(task))
        texts = [message.content for result in results for message in result.messages]
        assert {word for text in (*texts, *actions) for word in text.split()} <= words


def test_an_episode():
    world = factory(decision="middle", turns=(5, 5))
    task = world.tasks("train")[0]
    given = task.payload["given"]
    results, actions = rollout(world.make(), task, world.expert(task))
    first = f"mail {given['name_1']} {given['word_1']}"
    last = f"mail {given['name_2']} {given['word_2']}"
    (request,) = results[0].messages
    assert request.content == f"{first} text the {given['role']} {given['topic']} {last}"
    assert [actions[0], actions[1], actions[3], actions[4]] == [first, f"who {given['role']}", last, "done"]
    assert actions[2].startswith("text ")
    assert actions[2].endswith(given["topic"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decision": "first", "turns": (3, 4)}, "decision='first': expected 'early' or 'middle' or 'late' or None"),
        ({"decision": "early"}, r"turns is \(2, 6\); expected .* from 3 to 8"),
        ({"decision": "early", "turns": (8, 9)}, "from 3 to 8"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(EnvError, match=message):
        load_factory("seeupo.envs.pocket:PocketFactory", options)


def test_kinds_have_names_of_their_own():
    assert len(ALL_KINDS) == 28
    assert all(name == kind.name for name, kind in ALL_KINDS.items())
