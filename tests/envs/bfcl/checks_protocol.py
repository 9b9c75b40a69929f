"""Checks of episodes: messages, tools, termination and scores."""

from collections import Counter
from typing import Any

from seeupo.envs.bfcl import official
from seeupo.envs.bfcl.bfcl_env import BfclEnv, BfclFactory
from seeupo.errors import EnvError
from seeupo.types import StepResult, Task

HOLDS_OUT = "multi_turn_miss_func_0"  # `sort`, until the fourth user turn


def start(task: str, **options: Any) -> tuple[BfclEnv, StepResult]:
    env = BfclFactory(**options).make()
    return env, env.reset(Task(task, "base"), seed=0)


def until_offered(**options: Any) -> tuple[StepResult, StepResult]:
    """Return the first result, and the one that offers the held-out function."""
    env, first = start(HOLDS_OUT, **options)
    for _ in range(3):
        offering = env.step("I go on.")
    return first, offering


def check_step_cap_ceilings() -> None:
    """The expert's score under the paper's limit of 10 steps."""
    for expert_step, ceiling in (("turn", 187), ("call", 133)):
        factory = BfclFactory(max_steps=10, expert_step=expert_step)  # type: ignore[arg-type]
        scores = Counter()
        for task in factory.tasks("base"):
            env, expert = factory.make(), factory.expert(task)
            result = env.reset(task, seed=0)
            while not result.done:
                result = env.step(expert(result))
            assert result.truncated == (env.score() == 0.0)
            scores[env.score()] += 1
        assert scores[1.0] == ceiling, scores


def check_splits() -> None:
    factory = BfclFactory()
    assert tuple(factory.splits) == ("base", "miss_func", "miss_param", "long_context", "train", "test", "even", "odd")
    base = [task.id for task in factory.tasks("base")]
    assert base == [f"multi_turn_base_{number}" for number in range(200)]
    assert [task.id for task in factory.tasks("train")] == base[:100]
    assert [task.id for task in factory.tasks("test")] == base[100:]
    assert [task.id for task in factory.tasks("even")] == base[::2]
    assert [task.id for task in factory.tasks("odd")] == base[1::2]
    assert {task.split for task in factory.tasks("test")} == {"test"}
    assert all(len(factory.tasks(split)) == 200 for split in official.CATEGORIES)
    assert factory.tasks("miss_func")[0].kind == "miss_func/TwitterAPI+GorillaFileSystem"
    assert all(not task.payload for task in factory.tasks("base")), "no answers travel with a task"


def check_tasks_of_some_apps() -> None:
    factory = BfclFactory(apps=["GorillaFileSystem", "MathAPI"])
    kinds = Counter(task.kind for task in factory.tasks("base"))
    assert kinds == {"base/GorillaFileSystem": 13, "base/GorillaFileSystem+MathAPI": 12}
    assert not factory.tasks("test"), "the tasks of train and test use other apps"
    assert len(factory.tasks("even")) + len(factory.tasks("odd")) == 25


def check_misuse_is_a_user_error() -> None:
    factory = BfclFactory()
    for wrong in (
        lambda: factory.expert(Task("multi_turn_base_200", "base")),
        lambda: factory.make().reset(Task("../multi_turn_base_0", "base"), seed=0),
        lambda: factory.make().reset(Task("simple_python_0", "base"), seed=0),
        lambda: BfclFactory(max_steps=0),
        lambda: BfclFactory(turn_reward=1.5),
        lambda: BfclFactory(apps=[]),
        lambda: BfclFactory(apps="MathAPI"),
        lambda: BfclFactory(apps=["MathApi"]),
        lambda: BfclFactory(apps=[{}]),  # type: ignore[list-item]
    ):
        try:
            wrong()
        except EnvError:
            continue
        raise AssertionError("no error")


def check_the_first_messages() -> None:
    for documentation, action_format, system, offers in (
        ("official", "python", True, False),
        ("signatures", "python", True, False),
        ("official", "tool_call", False, True),
        ("signatures", "tool_call", True, False),
    ):
        _, first = start("multi_turn_base_0", documentation=documentation, action_format=action_format)
        roles = [message.role for message in first.messages]
        assert roles == (["system", "user"] if system else ["user"]), (documentation, action_format)
        assert first.tools is not None
        assert bool(first.tools) == offers
        assert first.messages[-1].content.startswith("Move 'final_report.pdf'")


def check_sizes_of_the_documentation() -> None:
    sizes = [
        len(start("multi_turn_base_0", documentation=documentation)[1].messages[0].content)
        for documentation in ("official", "signatures")
    ]
    assert sizes[0] > 9 * sizes[1], sizes


def check_each_call_has_a_tool_message() -> None:
    env, _ = start("multi_turn_base_0")
    result = env.step("[ls(), pwd(), nothing()]")
    assert [message.role for message in result.messages] == ["tool", "tool", "tool"]
    assert [message.content for message in result.messages] == [
        '{"current_directory_content": ["document", "archive"]}',
        '{"current_working_directory": "/workspace"}',
        "Error during execution: name 'nothing' is not defined",
    ]
    assert not result.done


def check_prose_ends_the_user_turn() -> None:
    for text in ("The file was moved.", "[]", "[ls(", "", "<think>[ls()]</think>[ls()]"):
        env, first = start("multi_turn_base_0")
        result = env.step(text)
        assert [message.role for message in result.messages] == ["user"]
        assert result.info["user_turn"] == first.info["user_turn"] + 1
        assert ("no_call" in result.info) == (text not in ("[]", ""))


def check_only_the_chosen_format_makes_calls() -> None:
    env, _ = start("multi_turn_base_0", action_format="tool_call")
    assert env.step("[ls()]").messages[0].role == "user"
    env, _ = start("multi_turn_base_0", action_format="python")
    assert env.step('<tool_call>{"name": "ls", "arguments": {}}</tool_call>').messages[0].role == "user"


def check_held_out_functions_are_announced() -> None:
    for documentation in ("official", "signatures"):
        first, offering = until_offered(documentation=documentation)
        (message,) = offering.messages
        assert "sort" not in [line.strip(' ",').partition("(")[0] for line in first.messages[0].content.splitlines()]
        assert '"name": "sort"' not in first.messages[0].content
        assert '"name":"sort"' not in first.messages[0].content
        assert message.role == "user"
        assert "sort" in message.content
        assert message.content.endswith("What about now?")
        assert offering.tools is None


def check_held_out_functions_become_tools() -> None:
    first, offering = until_offered(action_format="tool_call")
    assert first.tools
    assert offering.tools
    assert "sort" not in [tool.name for tool in first.tools]
    assert [tool.name for tool in offering.tools] == [*[tool.name for tool in first.tools], "sort"]
    assert offering.messages[0].content.startswith("I have updated")


def check_more_steps_in_a_user_turn_than_allowed_score_zero() -> None:
    """As officially, the step beyond the limit is still executed."""
    env, _ = start("multi_turn_base_0")
    for _ in range(20):
        assert not env.step("[ls()]").done
    result = env.step("[ls()]")
    assert result.truncated
    assert not result.terminated
    assert result.messages[0].role == "tool"
    assert result.info["stop"] == "steps_per_user_turn"
    assert env.score() == 0.0


def check_a_forced_stop_in_the_last_user_turn_scores_zero_too() -> None:
    env, result = start("multi_turn_base_0")
    actions = list(BfclFactory()._replay("multi_turn_base_0"))
    for action in actions[:-1]:
        env.step(action)
    while not result.done:
        result = env.step("[pwd()]")
    assert result.info["stop"] == "steps_per_user_turn"
    assert env.score() == 0.0


def check_step_rewards_are_declared() -> None:
    assert BfclFactory(turn_reward=0.1).separate_step_rewards
    assert not BfclFactory().separate_step_rewards


def check_max_steps() -> None:
    actions = list(BfclFactory()._replay("multi_turn_base_0"))
    for cap, score in ((len(actions), 1.0), (len(actions) - 1, 0.0)):
        env, result = start("multi_turn_base_0", max_steps=cap)
        for action in actions[:cap]:
            result = env.step(action)
        assert (result.terminated, result.truncated) == (score == 1.0, score == 0.0)
        assert env.score() == score


def check_no_step_after_the_end() -> None:
    env, _ = start("multi_turn_base_0", max_steps=1)
    env.step("[ls()]")
    try:
        env.step("[ls()]")
    except RuntimeError:
        return
    raise AssertionError("no error")


def check_a_stop_from_outside_scores_zero() -> None:
    env, _ = start("multi_turn_base_0")
    assert env.score() == 0.0
    for action in list(BfclFactory()._replay("multi_turn_base_0"))[:-1]:
        env.step(action)
        assert env.score() == 0.0


def check_long_results_are_cut() -> None:
    env, _ = start("multi_turn_base_0")
    (message,) = env.step(f"[echo(content='{'x' * 40_000}')]").messages
    assert message.content == '{"terminal_output": "' + "x" * 39_979 + "[... 23 characters cut]"


def check_an_environment_can_be_reused() -> None:
    env, _ = start("multi_turn_base_0")
    env.step("[rm(file_name='document')]")
    env.close()
    env.reset(Task("multi_turn_base_0", "base"), seed=1)
    for action in BfclFactory()._replay("multi_turn_base_0"):
        result = env.step(action)
    assert result.terminated
    assert result.info["verdict"] == "valid"
    assert env.score() == 1.0
