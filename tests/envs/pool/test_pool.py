import os
import signal
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import seeupo
from envs.toy import ToyFactory
from envs.worlds import (
    TOY,
    alive,
    children,
    everywhere,
    failing,
    generous,
    kill,
    needs_sandbox,
    time_out_hangs,
    worker_pids,
)
from seeupo.envs.failures import FailureCause, WorkerFailure
from seeupo.envs.pool.pool import EnvPool, Mistakes
from seeupo.envs.pool.watchdog import Watchdog
from seeupo.errors import EnvError
from seeupo.types import FailureKind, Task


@pytest.fixture
def pool_of():
    """Make pools, close them, and check that no process is left of them."""
    pools = []

    def make(environment=TOY, *, unsandboxed=True, workers=1, **options):
        pools.append(EnvPool(environment, workers=workers, unsandboxed=unsandboxed, **options))
        return pools[-1]

    before = children()
    yield make
    family = children() - before
    for pool in pools:
        pool.close()
    assert not alive(family | (children() - before))


def started(pool, task=None, seed=0):
    episode = pool.start(task or pool.tasks("train")[0], seed)
    episode.reset().result()
    return episode


def say(episode, text):
    return episode.step(text).result().messages[0].content


def task_with(**payload):
    return Task("special", "train", payload={"target": 3, **payload})


@everywhere
def test_an_expert_solves_a_task(pool_of, unsandboxed):
    pool = pool_of(unsandboxed=unsandboxed)
    for task in pool.tasks("test"):
        env = pool.env()
        expert = pool.expert(task)
        result = env.reset(task, seed=0)
        assert result.tools[0].name == "add"
        while not result.done:
            result = env.step(expert(result))
        assert env.score() == 1.0
        env.close()


def test_an_expert_solves_a_task_in_this_process(pool_of):
    pool = pool_of(ToyFactory())
    assert pool.splits == ("train", "test")
    assert worker_pids(pool) == []
    task = pool.tasks("train")[1]
    env, expert = pool.env(), pool.expert(task)
    result = env.reset(task, seed=0)
    while not result.done:
        result = env.step(expert(result))
    assert env.score() == 1.0
    env.close()


def test_an_in_process_spec_takes_options(pool_of):
    trusted = replace(TOY, in_process=True)
    pool = pool_of(trusted, options={"size": 2})
    assert len(pool.tasks("test")) == 2
    assert worker_pids(pool) == []
    with pytest.raises(EnvError, match="option size='x': expected int"):
        pool_of(trusted, options={"size": "x"})


def test_an_exception_in_this_process_fails_the_episode_and_keeps_its_cause(pool_of):
    pool = pool_of(ToyFactory())
    episode, other = started(pool), started(pool)
    with failing(FailureKind.RAISED, match=r"ToyFactory\(\.\.\.\), task train-0, last action 'raise wrong'") as raised:
        episode.step("raise wrong").result()
    assert isinstance(raised.value.__cause__, ValueError)
    with failing(FailureKind.RAISED, match="wrong"):
        episode.score().result()
    assert say(other, "add 1") == "1"


def test_expert_is_none_if_the_environment_has_none(pool_of):
    assert pool_of(options={"has_expert": False}).expert(task_with()) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": "3"}, "option size='3': expected int"),
        ({"sise": 3}, "did you mean 'size'"),
        ({"note": "refuse"}, "the data is missing; fetch it"),
    ],
)
def test_wrong_options_raise_when_the_pool_is_created(pool_of, options, message):
    with pytest.raises(EnvError, match=message):
        pool_of(options=options)


def test_a_broken_factory_raises_when_the_pool_is_created(pool_of):
    with failing(FailureKind.RAISED, match="the factory is broken"):
        pool_of(options={"note": "raise"})
    with pytest.raises(EnvError, match=r"there is no module 'envs\.nowhere'"):
        pool_of(replace(TOY, factory="envs.nowhere:Factory"))


@pytest.mark.parametrize("environment", [TOY, ToyFactory()], ids=["worker", "in-process"])
def test_user_errors_of_an_environment_stay_user_errors(pool_of, environment):
    with pytest.raises(EnvError, match="fetch the data"):
        started(pool_of(environment)).step("usage fetch the data").result()


def test_misuse_is_an_error(pool_of):
    pool = pool_of()
    with pytest.raises(EnvError, match="toy has no split 'tran'; did you mean 'train'"):
        pool.tasks("tran")
    with pytest.raises(EnvError, match="workers=0"):
        pool_of(workers=0)
    with pytest.raises(EnvError, match="a factory object takes none"):
        pool_of(ToyFactory(), options={"size": 1})
    with pytest.raises(EnvError, match="call reset first"):
        pool.env().step("add 1")
    episode = pool.start(pool.tasks("train")[0], 0)
    with pytest.raises(EnvError, match="has not started; call reset first"):
        episode.step("add 1").result()
    episode.reset().result()
    with pytest.raises(EnvError, match="has already started"):
        episode.reset().result()
    assert episode.step("add 3").result().terminated
    with pytest.raises(EnvError, match="is over"):
        episode.step("add 3").result()
    assert episode.score().result() == 1.0
    episode.close().result()
    episode.close().result()
    with pytest.raises(EnvError, match="is closed"):
        episode.score().result()


# Failures that an action causes.


@everywhere
@pytest.mark.parametrize(
    ("action", "words"),
    [
        ("hang", "longer than the time limit"),
        ("exit 0", "process end"),
        ("segfault", "process end"),
        ("sysexit", "process end"),
        ("memory", "more memory"),
        ("recurse", "nested too deeply"),
        ("huge 20000000", "process end"),
    ],
)
def test_an_action_that_breaks_its_worker_ends_the_episode_with_its_score(
    pool_of, monkeypatch, unsandboxed, *, action, words
):
    time_out_hangs(monkeypatch)
    pool = pool_of(unsandboxed=unsandboxed)
    solved, unsolved, other = started(pool), started(pool), started(pool)
    assert say(other, "add 1") == "1"
    assert say(unsolved, "add 2") == "2"
    # The count is right before the action: not terminated, because the episode started with it.
    right = started(pool, seed=3)
    for episode, score in ((unsolved, 0.0), (right, 1.0)):
        result = episode.step(action).result()
        assert result.terminated
        assert not result.truncated
        assert result.info["ended_by"] == "action"
        assert words in result.messages[0].content
        assert result.messages[0].content.startswith("Error: ")
        assert episode.score().result() == score
        with pytest.raises(EnvError, match="is over"):
            episode.step("add 1").result()
    assert say(other, "add 1") == "2"
    assert say(solved, "add 1") == "1"


# Infrastructure failures.


@everywhere
def test_an_episode_survives_one_kill_per_call(pool_of, unsandboxed):
    pool = pool_of(unsandboxed=unsandboxed)
    episode, expert = started(pool), pool.expert(pool.tasks("train")[0])
    result = episode.step("add 1").result()
    assert expert(result) == "add 1"
    for expected in ("2", "3"):
        kill(*worker_pids(pool))
        assert say(episode, "add 1") == expected
    kill(*worker_pids(pool))
    assert episode.score().result() == 1.0
    assert [expert(result) for _ in range(3)] == ["add 1", "add 1", "done"]


@everywhere
def test_two_kills_in_one_call_fail_the_episode(pool_of, unsandboxed):
    pool = pool_of(unsandboxed=unsandboxed)
    episode, other = started(pool), started(pool)
    say(episode, "add 1")
    future = episode.step("hang")
    killed = set()
    while len(killed) < 2:
        killed |= {pid for pid in worker_pids(pool) if pid not in killed and kill(pid)}
    with failing(FailureKind.WORKER_LOST) as lost:
        future.result()
    assert (lost.value.environment, lost.value.task, lost.value.action) == ("toy", "train-0", "hang")
    assert "SIGKILL" in lost.value.reason
    with failing(FailureKind.WORKER_LOST):
        episode.score().result()
    episode.close().result()
    assert say(other, "add 1") == "1"


@pytest.mark.parametrize("how", ["exit", "hang", "raise", "memory"])
def test_a_call_that_fails_once_is_retried(pool_of, monkeypatch, tmp_path, how):
    time_out_hangs(monkeypatch)
    pool = pool_of()
    episode = started(pool)
    say(episode, "add 1")
    assert say(episode, f"once {how} {tmp_path / 'flag'}") == "survived"
    assert say(episode, "add 1") == "2"


def test_a_reset_that_fails_once_is_retried(pool_of, tmp_path):
    pool = pool_of()
    assert say(started(pool, task_with(breaks_first_reset=str(tmp_path / "flag"))), "add 1") == "1"


def test_a_reset_that_fails_twice_is_an_infrastructure_failure(pool_of):
    with failing(FailureKind.WORKER_LOST, match="reset failed: the worker exited with code 3"):
        started(pool_of(), task_with(breaks_reset=True))


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("raise wrong", r"step raised ValueError: wrong \(.*toy.py:\d+\)"),
        ("shapeless", "step returned a Message with role 'stranger'"),
        ("unsendable", "it must be a table of JSON values"),
    ],
)
def test_an_exception_of_the_environment_fails_the_episode(pool_of, action, reason):
    pool = pool_of()
    episode, other = started(pool), started(pool)
    with failing(FailureKind.RAISED, match=reason) as raised:
        episode.step(action).result()
    assert raised.value.action == action
    assert say(other, "add 1") == "1"


@pytest.mark.parametrize(
    ("bad_score", "kind", "reason"),
    [
        ("nan", FailureKind.RAISED, "score must return a number from 0 to 1, got nan"),
        ("text", FailureKind.RAISED, "score must return a number from 0 to 1, got str"),
        ("raise", FailureKind.RAISED, "the checker is broken"),
        ("exit", FailureKind.WORKER_LOST, "exited with code 9"),
    ],
)
def test_an_invalid_score_fails_the_episode(pool_of, bad_score, kind, reason):
    episode = started(pool_of(options={"bad_score": bad_score}))
    say(episode, "add 1")
    with failing(kind, match=reason) as raised:
        episode.score().result()
    assert raised.value.action == "add 1"


def test_an_episode_that_cannot_be_replayed_fails(pool_of):
    pool = pool_of()
    episode = started(pool)
    say(episode, "random")
    kill(*worker_pids(pool))
    with failing(FailureKind.NOT_REPRODUCIBLE, match="replaying its step"):
        episode.step("add 1").result()


def test_info_may_differ_when_an_episode_is_replayed(pool_of):
    pool = pool_of()
    episode = started(pool)
    say(episode, "noise")
    kill(*worker_pids(pool))
    assert say(episode, "add 1") == "1"


def test_a_close_that_raises_is_reported_and_frees_the_worker(pool_of):
    pool = pool_of(replace(TOY, episodes_per_worker=1), options={"close_raises": True})
    for _ in range(2):
        episode = started(pool)
        with failing(FailureKind.RAISED, match="close is broken"):
            episode.close().result()


@pytest.mark.parametrize("cause", [FailureCause.MEMORY, FailureCause.STOPPED])
def test_a_worker_that_the_watchdog_kills_during_a_close_is_no_failure(pool_of, monkeypatch, cause):
    pool = pool_of(options={"blocks": "close"})
    episode = started(pool)
    with monkeypatch.context() as patch:
        patch.setattr(Watchdog, "check", lambda dog: WorkerFailure(cause, "too much"))
        episode.close().result()
    assert say(started(pool), "add 1") == "1"


def test_a_start_that_hangs_is_a_failure(pool_of):
    with failing(FailureKind.TIMED_OUT, match="no answer within 1 s"):
        pool_of(options={"note": "hang"}, limits=generous(start_seconds=1))


# Scheduling.


def test_episodes_wait_for_room(pool_of):
    pool = pool_of(replace(TOY, episodes_per_worker=1), workers=2)
    task = pool.tasks("train")[0]
    episodes = [pool.start(task, 0) for _ in range(5)]
    resets = [episode.reset() for episode in episodes]
    assert [reset.result().messages[0].content for reset in resets[:2]] == ["count to 3"] * 2
    assert len(worker_pids(pool)) == 2
    assert not any(reset.done() for reset in resets[2:])
    for episode, reset in zip(episodes, resets, strict=True):
        reset.result()
        assert episode.step("add 3").result().terminated
        episode.close()


def test_a_failed_episode_makes_room(pool_of):
    pool = pool_of(replace(TOY, episodes_per_worker=1))
    failing, waiting = pool.start(task_with(breaks_reset=True), 0), pool.start(task_with(), 0)
    first, second = failing.reset(), waiting.reset()
    assert first.exception().kind is FailureKind.WORKER_LOST
    assert second.result()
    failing.close().result()
    assert say(waiting, "add 1") == "1"


def test_an_episode_closed_while_it_waits_is_not_started(pool_of):
    pool = pool_of(replace(TOY, episodes_per_worker=1))
    first, second = started(pool), pool.start(task_with(), 0)
    reset = second.reset()
    closed = second.close()
    first.close().result()
    closed.result()
    with pytest.raises(EnvError, match="closed before it started"):
        reset.result()
    assert say(started(pool), "add 1") == "1"


def test_workers_are_started_when_they_are_needed(pool_of):
    pool = pool_of(workers=3)
    for count in (1, 1, 1):
        episode = started(pool)
        assert len(worker_pids(pool)) == count
        episode.close().result()
    episodes = [started(pool) for _ in range(6)]
    assert len(worker_pids(pool)) == 3
    assert {say(episode, "add 1") for episode in episodes} == {"1"}


def test_callbacks_may_make_the_next_call(pool_of):
    pool = pool_of()
    finished = threading.Event()
    episode = pool.start(pool.tasks("train")[0], 0)
    seen = []

    def follow(future):
        seen.append(future.result().messages[0].content)
        if future.result().done:
            finished.set()
        else:
            episode.step("add 1").add_done_callback(follow)

    episode.reset().add_done_callback(follow)
    assert finished.wait(600)
    assert seen == ["count to 3", "1", "2", "3"]


def test_an_expert_ends_with_its_last_reference(pool_of):
    pool = pool_of()
    expert = pool.expert(pool.tasks("train")[0])
    slot = expert._slot
    assert slot.experts == 1
    del expert
    pool.env().reset(pool.tasks("train")[0], seed=0)  # behind it in the same slot
    assert slot.experts == 0


# The judge.


@everywhere
def test_a_separate_judge_scores_the_saved_state(pool_of, unsandboxed, tmp_path):
    answers = tmp_path / "answers" / "answer"
    answers.parent.mkdir()
    answers.write_text("2")
    spec = replace(TOY, factory="envs.toy:JudgedToyFactory", separate_judge=True, mounts="envs.toy:mounts")
    pool = pool_of(spec, unsandboxed=unsandboxed, options={"answers": str(answers)})
    right, wrong = started(pool), started(pool)
    say(right, "add 2")
    say(wrong, "add 1")
    assert (right.score().result(), wrong.score().result()) == (1.0, 0.0)
    assert len(worker_pids(pool)) == 2
    if not unsandboxed:
        assert say(wrong, f"read {answers}") == "Error: No such file or directory"
    answers.unlink()
    with failing(FailureKind.RAISED, match="FileNotFoundError") as raised:
        right.score().result()
    assert (raised.value.task, raised.value.action) == ("train-0", "add 2")


# Closing.


@everywhere
def test_closing_kills_running_calls(pool_of, unsandboxed):
    before = children()
    pool = pool_of(replace(TOY, episodes_per_worker=1), unsandboxed=unsandboxed)
    episode = started(pool)
    say(episode, "fork 2")
    waiting = pool.start(pool.tasks("train")[0], 0).reset()
    hanging, queued = episode.step("hang"), episode.score()
    family = children() - before
    assert len(family) >= 3
    pool.close()
    for future in (hanging, queued, waiting, episode.score(), episode.close()):
        assert future.exception(timeout=600).kind is FailureKind.POOL_CLOSED
    with failing(FailureKind.POOL_CLOSED):
        pool.expert(pool.tasks("train")[0])
    assert not alive(family)
    pool.close()


@everywhere
@pytest.mark.parametrize("how", ["exception", "exit", "interrupt"])
def test_a_program_that_ends_leaves_no_process_behind(unsandboxed, how, tmp_path):
    """Even without closing the pool, and while a call hangs."""
    program = f"""
        import os, signal, sys, threading
        from envs.worlds import TOY, children
        from seeupo.envs.pool.pool import EnvPool
        pool = EnvPool(TOY, workers=2, unsandboxed={unsandboxed})
        for _ in range(2):
            episode = pool.start(pool.tasks("train")[0], 0)
            episode.reset().result()
            future = episode.step("hang")
        print(*children(), flush=True)
        if {how!r} == "exception":
            raise ValueError("wrong")
        if {how!r} == "exit":
            sys.exit(5)
        threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
        future.result()
    """
    places = [Path(__file__).parents[2], Path(seeupo.__file__).parent.parent]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places)), "TMPDIR": str(tmp_path)},
    )
    expected = {"exception": "ValueError: wrong", "exit": "", "interrupt": "KeyboardInterrupt"}[how]
    assert done.stderr.strip().endswith(expected), done.stderr
    assert done.returncode == {"exception": 1, "exit": 5, "interrupt": -signal.SIGINT}[how]
    family = {int(pid) for pid in done.stdout.split()}
    assert len(family) >= 2
    assert not alive(family)
    assert not list(tmp_path.iterdir())


@needs_sandbox
def test_a_sandbox_is_used_where_there_is_one(pool_of):
    pool = pool_of(unsandboxed=False)
    assert started(pool).step("look").result().info["uid"] != os.getuid()


USES_A_LIBRARY = """
from seeupo import Message, StepResult, Task
{at_start}
class Factory:
    splits = ("train",)

    def tasks(self, split):
        return [Task("train-0", "train", "kind", 0, {{}})]

    def make(self):
        {in_a_call}
"""


@needs_sandbox
@pytest.mark.parametrize("place", ["at_start", "in_a_call"])
def test_a_module_that_the_sandbox_hides_is_named_with_its_place_and_the_remedy(place, tmp_path, monkeypatch):
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "hidden_helpers.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "library")  # as an editable install does
    imports = {"at_start": "", "in_a_call": "pass", place: "import hidden_helpers"}
    (tmp_path / "game").mkdir()
    (tmp_path / "game" / "game.py").write_text(USES_A_LIBRARY.format(**imports))
    reference = f"{tmp_path}/game/game.py:Factory"
    with pytest.raises(EnvError) as error, EnvPool(reference, trust=[reference], workers=1) as pool:
        pool.try_task(pool.tasks("train")[0])
    problem = str(error.value).partition("\n")[0]
    assert "No module named 'hidden_helpers'" in problem
    assert f"The sandbox hides {tmp_path}/library/hidden_helpers.py: install the package" in problem
    (tmp_path / "library" / "hidden_helpers.py").unlink()
    with pytest.raises(EnvError) as error, EnvPool(reference, trust=[reference], workers=1) as pool:
        pool.try_task(pool.tasks("train")[0])
    assert "The sandbox hides" not in str(error.value)


def test_a_noisy_expert_makes_the_requested_mistakes():
    with EnvPool("pocket", options={"test_tasks": 10}) as pool:
        for task in pool.tasks("test"):
            others = dict.fromkeys(("wrong_choice", "wrong_word", "skipped_lookup", "wrong_tool"), 0.0)
            expert = pool.expert(task, mistakes=Mistakes(0, {**others, "stops_early": 1.0}))
            assert expert(pool.env().reset(task, seed=0)) == "done"
        with pytest.raises(EnvError, match="no mistake 'laziness'"):
            pool.expert(task, mistakes=Mistakes(0, {"laziness": 1.0}))


def test_an_environment_without_noisy_expert_is_an_error(pool_of):
    pool = pool_of()
    with pytest.raises(EnvError, match="ToyFactory has no noisy expert"):
        pool.expert(pool.tasks("train")[0], mistakes=Mistakes(0, {}))
