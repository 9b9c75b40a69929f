"""Checks against the official code: results, scores, isolation, and hostile actions without a sandbox."""

import copy
import json
import random
import tempfile
from collections.abc import Iterable
from pathlib import Path

from envs.bfcl import hostile
from seeupo.envs.bfcl import official, tools
from seeupo.envs.bfcl.bfcl_env import BfclEnv, BfclFactory
from seeupo.envs.bfcl.calls import Call, canonical, parse_python, write_action
from seeupo.envs.bfcl.execution import Backends
from seeupo.types import Task

FILES_AND_MATH = "multi_turn_base_16"
WEIRD = [None, True, -1, 0, 2**63 - 1, 1e308, -0.0, "", "x", "\x00'\"\\\n", "2024-01-01", [], [1, "a"], {}, {"k": [{}]}]


def fresh(task: str, *, factory: BfclFactory | None = None) -> BfclEnv:
    env = (factory or BfclFactory()).make()
    env.reset(Task(task, "base"), seed=0)
    return env


def official_results(entry: official.Entry, calls: Iterable[str], name: str) -> list[str]:
    """Return the official executor's results of calls; calls under the same name share state."""
    results, _ = official.multi_turn_utils.execute_multi_turn_func_call(
        list(calls),
        entry["initial_config"],
        entry["involved_classes"],
        name,
        entry["id"],
        long_context="long_context" in entry["id"],
    )
    return list(results)


def state(backends: Backends) -> dict[str, object]:
    owners = {id(owner): owner for owner in backends._owners.values()}.values()
    return {
        f"{type(owner).__name__}.{name}": copy.deepcopy(value)
        for owner in owners
        for name, value in vars(owner).items()
        if name != "_random"
    }


def sample_of_tasks() -> list[str]:
    return [task for category in official.CATEGORIES for task in official.task_ids(category)[::8]]


def check_results_are_those_of_the_official_executor() -> None:
    for task in sample_of_tasks():
        entry, backends = official.load_entry(task), Backends(official.load_entry(task))
        for turn in official.ground_truth(task):
            ours = [backends.execute(call).text for source in turn for call in parse_python(source)]
            assert ours == official_results(entry, turn, "parity"), task


def check_weird_values_give_the_official_results() -> None:
    """Call every function of every class with every unusual value."""
    tasks = {name: task for task in official.task_ids("base") for name in official.classes_of(task)}
    assert len(tasks) == 8
    for task in set(tasks.values()):
        entry, backends = official.load_entry(task), Backends(official.load_entry(task))
        for function in entry["function"]:
            for value in WEIRD:
                call = Call(function["name"], dict.fromkeys(function["parameters"]["properties"], copy.deepcopy(value)))
                outcome = backends.execute(call)
                (expected,) = official_results(entry, [outcome.checked], "weird")
                assert outcome.text == expected, (call, outcome.text, expected)


def check_scores_are_those_of_the_official_checker() -> None:
    """Correct answers, and answers with a call removed, repeated or moved."""
    rng = random.Random(0)
    seen = set()
    for task in sample_of_tasks():
        turns = copy.deepcopy(official.ground_truth(task))
        match rng.choice(["right", "left out", "twice", "moved"]):
            case "left out":
                rng.choice([turn for turn in turns if turn]).pop()
            case "twice":
                turn = rng.choice([turn for turn in turns if turn])
                turn.insert(0, rng.choice(turn))
            case "moved":
                turn = rng.choice([turn for turn in turns if turn])
                rng.choice(turns).append(turn.pop(0))
        entry = official.load_entry(task)
        steps = [[turn] if turn else [] for turn in turns]
        name = f"direct_{task}"
        expected = official.multi_turn_checker(steps, official.ground_truth(task), entry, "", name)["valid"]
        env = fresh(task, factory=BfclFactory(turn_reward=0.25))
        rewards = []
        for turn in turns:
            if turn:
                assert env.step(f"[{', '.join(turn)}]").reward == 0
            last = env.step("Done.")
            rewards.append(last.reward)
        assert env.score() == float(expected), task
        prefixes = [official.check(entry, steps[:count]) == "valid" for count in range(1, len(steps) + 1)]
        assert rewards == [0.25 * right for right in prefixes], task
        assert last.info["right_user_turns"] == sum(prefixes)
        short, ended = fresh(task, factory=BfclFactory(end_at_mistake=True)), []
        for turn in turns[: sum(prefixes) + 1]:
            if turn:
                ended.append(short.step(f"[{', '.join(turn)}]"))
            ended.append(short.step("Done."))
        assert [each.terminated for each in ended] == [False] * (len(ended) - 1) + [True], task
        for name in ("verdict", "right_user_turns"):
            assert ended[-1].info[name] == last.info[name], task
        assert ended[-1].info["stop"] == ("finished" if sum(prefixes) >= len(turns) - 1 else "mistake")
        assert short.score() == float(expected), task
        seen |= {expected, sum(prefixes) / len(prefixes)}
    assert {True, False} < seen  # and some that go wrong on the way


def check_the_verdict_on_a_part_is_that_on_the_whole() -> None:
    """The checker stops at the first wrong user turn, so what follows it changes nothing."""
    task = "multi_turn_base_0"
    entry, (first, second, *rest) = official.load_entry(task), official.ground_truth(task)
    wrong_second = [[first], [second[:1]], *([turn] for turn in rest)]
    assert official.check(entry, wrong_second[:1]) == "valid"
    assert official.check(entry, wrong_second[:2]) == official.check(entry, wrong_second) != "valid"


def check_a_refused_call_counts_as_a_call() -> None:
    """As officially, an unknown function is an error, but its turn is not empty."""
    entry = official.load_entry("multi_turn_base_0")
    outcome = Backends(entry).execute(Call("no_such_function", {"a": 1}))
    assert outcome.text == "Error during execution: name 'no_such_function' is not defined"
    assert official_results(entry, [outcome.checked], "refused") == [outcome.text]
    assert official_results(entry, ["no_such_function(a=1)"], "refused") == [outcome.text]


def check_episodes_do_not_touch_one_another() -> None:
    """Two interleaved episodes of the same task, one of which goes wrong."""
    for task in ("multi_turn_base_0", "multi_turn_long_context_150"):
        alone, right, astray = (fresh(task) for _ in range(3))
        actions = list(BfclFactory(expert_step="call")._replay(task))
        expected = [alone.step(action).messages for action in actions]
        for action, messages in zip(actions, expected, strict=True):
            astray.step(action if action == "[]" else f"{action[:-1]}, {action[1:]}")
            assert right.step(action).messages == messages
        assert right.score() == alone.score() == 1.0


def check_shared_tables_are_left_as_they_were() -> None:
    """Long-context travel tasks use cards and bookings that all episodes would share."""
    task = next(task for task in official.task_ids("long_context") if "TravelAPI" in official.classes_of(task))
    entry = official.load_entry(task)
    entry["initial_config"]["TravelAPI"].update(access_token="x", token_expires_in=2, budget_limit=None)
    cards = official.PRISTINE[0]
    arguments = {
        "access_token": "x",
        "card_id": max(cards, key=lambda card: cards[card]["balance"]),
        "travel_date": "2024-01-01",
        "travel_from": "SFO",
        "travel_to": "LAX",
        "travel_class": "economy",
    }
    outcome = Backends(entry).execute(Call("book_flight", arguments))
    assert '"booking_status": true' in outcome.text, outcome.text
    assert official.SHARED == official.PRISTINE
    official.check(entry, [[[outcome.checked]] for _ in official.ground_truth(task)])
    assert official.SHARED == official.PRISTINE


def check_nothing_is_left_in_the_checkers_module() -> None:
    before = set(vars(official.multi_turn_utils))
    for task in sample_of_tasks()[:10]:
        env = fresh(task)
        for action in BfclFactory()._replay(task):
            env.step(action)
        env.close()
    assert set(vars(official.multi_turn_utils)) == before


def check_hostile_actions_change_nothing() -> None:
    """Each gives an ordinary result or ends the user turn; no state changes and no file appears."""
    with tempfile.TemporaryDirectory() as folder:
        canary = Path(folder) / "canary"
        python = [
            *hostile.refused_python(str(canary)),
            *[f"[{name}()]" for name in hostile.UNREACHABLE],
            *[f"[{name}(scenario={{}})]" for name in hostile.UNREACHABLE],
            *[f"[{name}('/', [1])]" for name in hostile.UNREACHABLE],
            *[f"[{call}]" for call in hostile.unharmful_calls(str(canary))],
        ]
        tool_calls = [
            *hostile.refused_tool_calls(str(canary)),
            *[
                hostile.tool_call(json.dumps({"name": name, "arguments": {"path": "/"}}))
                for name in hostile.UNREACHABLE
            ],
        ]
        for action_format, actions in (("python", python), ("tool_call", tool_calls)):
            factory = BfclFactory(action_format=action_format)  # type: ignore[arg-type]
            for action in actions:
                env = fresh(FILES_AND_MATH, factory=factory)
                before, turns = state(env._backends), copy.deepcopy(env._calls)
                result = env.step(action)
                assert state(env._backends) == before, action
                roles = {message.role for message in result.messages}
                assert roles == ({"user"} if len(env._calls) > len(turns) else {"tool"}), action
                assert not canary.exists(), action
                assert env.score() == 0.0
        # Unreachable names and harmless calls do not change the score of a correct answer.
        for action in [f"[{name}()]" for name in hostile.UNREACHABLE[:10]]:
            env = fresh(FILES_AND_MATH)
            env.step(action)
            for step in BfclFactory()._replay(FILES_AND_MATH):
                env.step(step)
            assert env.score() == 1.0
        assert list(Path(folder).iterdir()) == []


def check_files_that_contain_themselves_are_no_trap() -> None:
    env = fresh(FILES_AND_MATH)
    _, copied = env.step("[mkdir(dir_name='a'), cp(source='a', destination='a')]").messages
    assert "copied" in copied.content
    double = "cp(source='a', destination='b'), mkdir(dir_name='c'), mv(source='a', destination='c'), "
    double += "mv(source='b', destination='c'), mv(source='c', destination='a')"
    for _ in range(5):
        env.step(f"[{', '.join([double] * 5)}]")
    for action in ("[find()]", "[du()]", "[find(path='a')]"):
        (message,) = env.step(action).messages
        assert message.content == "Error during execution: too many files and directories"
    while not env.step("Done.").done:
        pass
    assert env.score() == 0.0


def check_positional_arguments_follow_the_documentation() -> None:
    backends = Backends(official.load_entry("multi_turn_base_0"))
    named = backends.named(Call("mv", {}, ("a", "b")))
    assert canonical(named) == "mv(source='a', destination='b')"
    assert backends.named(Call("mv", {"destination": "b"}, ("a",))) == named
    for call in (Call("mv", {}, ("a", "b", "c")), Call("mv", {"source": "b"}, ("a",))):
        assert backends.execute(call).text.startswith("Error during execution: mv()")


def check_every_function_is_documented_and_reachable() -> None:
    for task in official.task_ids("base"):
        entry = official.load_entry(task)
        public = {
            name
            for owner in official.backends(entry)
            for name in dir(owner)
            if not name.startswith("_") and callable(getattr(owner, name))
        }
        assert public == {function["name"] for function in entry["function"]} == set(Backends(entry)._owners)


def check_a_task_is_its_own_copy() -> None:
    first = official.load_entry("multi_turn_miss_func_0")
    kept = copy.deepcopy(first)
    first["function"].clear()
    first["question"].clear()
    first["missed_function"].clear()
    assert official.load_entry("multi_turn_miss_func_0") == kept


def check_tools_of_all_tasks_are_json_schemas() -> None:
    kinds = {"object", "array", "string", "integer", "number", "boolean"}

    def types(schema: dict) -> Iterable[str]:  # type: ignore[type-arg]
        yield schema["type"]
        for inner in [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]:
            yield from types(inner)

    for task in official.task_ids("base"):
        for tool in tools.as_tools(official.load_entry(task)["function"]):
            assert set(types(tool.parameters)) <= kinds  # type: ignore[arg-type]


def check_the_expert_writes_what_is_parsed() -> None:
    for task in sample_of_tasks():
        for turn in official.ground_truth(task):
            calls = [Backends(official.load_entry(task)).named(c) for source in turn for c in parse_python(source)]
            assert parse_python(write_action(calls, "python")) == calls
