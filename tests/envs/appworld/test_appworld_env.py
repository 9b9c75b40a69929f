"""Episodes of the real engine, in sandboxed workers, on made-up tasks."""

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from envs.worlds import children, kill, worker_pids
from seeupo.envs.appworld.engine_client import LOST
from seeupo.envs.pool.pool import EnvPool
from seeupo.errors import EnvError

LOGIN = 'token = apis.simple_note.login(username="ada.quill@mail.example", password="pebble-42")["access_token"]'


def python(code):
    return f"I think this will do.\n```python\n{code}\n```\n"


def shown(result):
    (message,) = result.messages
    assert message.role == "user"
    return message.content


@pytest.mark.parametrize("name", ["quest", "write", "erase"])
def test_the_expert_succeeds_and_doing_nothing_fails(pool, env, tasks, name):
    result = env.reset(tasks[name], seed=0)
    expert = pool.expert(tasks[name])
    assert env.score() == 0.0
    result = env.step(expert(result))
    assert result.terminated
    assert env.score() == 1.0


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("quest", "apis.supervisor.complete_task(answer=3)"),
        ("quest", "apis.supervisor.complete_task()"),
        ("quest", "apis.supervisor.complete_task(status='fail')"),
        (
            "quest",
            f"{LOGIN}\napis.simple_note.delete_note(access_token=token, note_id=3)\n"
            "apis.supervisor.complete_task(answer=2)",
        ),
        (
            "write",
            f"{LOGIN}\napis.simple_note.create_note(access_token=token, title='Harbour', content='07:40')\n"
            "apis.supervisor.complete_task()",
        ),
        (
            "erase",
            f"{LOGIN}\nfor note in (2, 3): apis.simple_note.delete_note(access_token=token, note_id=note)\n"
            "apis.supervisor.complete_task()",
        ),
    ],
)
def test_wrong_answers_fail(env, tasks, name, code):
    env.reset(tasks[name], seed=0)
    assert env.step(python(code)).terminated
    assert env.score() == 0.0


def test_the_first_messages_introduce_the_user_and_the_task(env, tasks):
    result = env.reset(tasks["quest"], seed=0)
    system, user = result.messages
    assert (system.role, user.role) == ("system", "user")
    assert "complete_task" in system.content
    assert "Ada Quill" in user.content
    assert user.content.endswith("Task: How many of my Simple Note notes have the tag home?")
    assert result.tools == ()
    assert tasks["quest"].kind == "difficulty 1"


def test_an_episode_over_several_turns(env, tasks):
    env.reset(tasks["write"], seed=0)
    assert "Error: there is no code block" in shown(env.step("I would rather talk."))
    assert shown(env.step(python("times = ['07:40', '12:15', '18:05']"))) == "Output:\n```\nExecution successful.\n```"
    assert "18:05" in shown(env.step(python(f"{LOGIN}\nprint(times[-1])")))
    assert "Syntax error" in shown(env.step(python("print(")))
    assert "'Harbour'" not in shown(env.step(python("raise ValueError('not yet')")))
    assert "No API named" in shown(env.step(python("apis.simple_note.burn()")))
    assert "11 characters cut]" in shown(env.step(python("print('a' * 20000 + 'b' * 11)")))
    done = env.step(
        python(
            "apis.simple_note.create_note(access_token=token, title='Harbour', content=times[-1])\n"
            "apis.supervisor.complete_task()"
        )
    )
    assert done.terminated
    assert not done.truncated
    assert env.score() == 1.0


def test_side_effects_cannot_be_hidden_by_resetting_change_counters(env, tasks):
    """AppWorld checks only tables whose counter has changed. Model code has a copy of the counters, without effect."""
    env.reset(tasks["quest"], seed=0)
    harm = f"{LOGIN}\napis.simple_note.delete_note(access_token=token, note_id=2)"
    done = "apis.supervisor.complete_task(answer=2)"
    hide = (
        "handler = __import__('importlib').import_module('appworld.apps.model_lib').ModelHashHandler\n"
        "home = ':memory:task_output-quest01_1'\n"
        "handler.data[home]['simple_note']['Note'] = 3\n"
        "print(handler.data[home]['simple_note']['Note'])"
    )
    assert "3" in shown(env.step(python(f"{harm}\n{done}\n{hide}")))
    assert env.score() == 0.0


def test_output_that_cannot_be_shown_does_not_end_the_episode(env, tasks):
    env.reset(tasks["quest"], seed=0)
    assert "cannot be shown" in shown(env.step(python(r"print('\ud83d')")))
    assert "more than 16777216 bytes" in shown(env.step(python("print('x' * (20 << 20))")))
    assert env.step(python("apis.supervisor.complete_task(answer=2)")).terminated
    assert env.score() == 1.0


def test_an_action_that_kills_the_engine_ends_the_episode_with_the_state_before_it(pool, env, tasks):
    """Completed actions count; the one that killed the engine does not."""
    expert = pool.expert(tasks["erase"])
    lines = expert(env.reset(tasks["erase"], seed=0)).replace("apis.supervisor.complete_task()", "pass")
    assert not env.step(lines).done
    result = env.step(
        python(f"{LOGIN}\napis.simple_note.delete_note(access_token=token, note_id=1)\n__import__('posix')._exit(1)")
    )
    assert result.terminated  # and not truncated: no algorithm may bootstrap from here
    assert shown(result).startswith("Error: this code brought the apps to a halt")
    assert env.score() == 1.0
    env.reset(tasks["erase"], seed=0)
    assert env.score() == 0.0


@pytest.mark.parametrize("which", [0, 1], ids=["apps", "code"])
def test_an_engine_that_was_killed_from_outside_is_replaced(pool, env, tasks, which):
    env.reset(tasks["quest"], seed=0)
    env.step(python("kept = 2"))
    assert kill(episode_processes(pool)[which])
    assert env.step(python("apis.supervisor.complete_task(answer=kept)")).terminated
    assert env.score() == 1.0


def episode_processes(pool):
    """Return the processes of the apps and of the code, forked by the engine process in this order."""
    engines = {
        process
        for worker in worker_pids(pool)
        for process in children(worker)
        if b"appworld.engine_process" in Path(f"/proc/{process}/cmdline").read_bytes()
    }
    apps, code = sorted(process for process in engines if not children(process))
    return apps, code


def test_episodes_cannot_pass_on_information(env, tasks):
    name = f"left-{uuid.uuid4()}"
    look = (
        "import builtins, json, os\n"
        f"print([os.path.exists(place) for place in ('/tmp/{name}', '/dev/shm/{name}')])\n"
        "print(hasattr(builtins, 'mine'), json.scanner == 'patched')"
    )
    leave = (
        "import builtins, json\n"
        "real_open = getattr(__import__('_io'), 'open')\n"
        f"for place in ('/tmp/{name}', '/dev/shm/{name}'): real_open(place, 'w').close()\n"
        "builtins.mine, json.scanner = 1, 'patched'"
    )
    env.reset(tasks["quest"], seed=0)
    env.step(python(leave))
    assert shown(env.step(python(look))) == "Output:\n```\n[true, true]\nTrue True\n```"
    env.reset(tasks["quest"], seed=0)
    assert shown(env.step(python(look))) == "Output:\n```\n[false, false]\nFalse False\n```"


def test_the_same_actions_give_the_same_results(env, tasks):
    code = python(f"{LOGIN}\nprint(token, {{'a', 'b', 'c'}}, __import__('random').random(), datetime.datetime.now())")
    results = []
    for _ in range(2):
        env.reset(tasks["quest"], seed=0)
        results.append([env.step(code), env.step(code)])
    assert results[0] == results[1]


def test_appworld_refuses_to_run_without_a_sandbox(data, monkeypatch):
    monkeypatch.setattr("seeupo.envs.pool.launching.find_bubblewrap", lambda: "bubblewrap is not installed")
    with pytest.raises(EnvError, match="appworld executes what the model writes and needs a sandbox"):
        EnvPool("appworld", options={"data": str(data)}, workers=1)


def test_an_engine_that_was_stopped_is_given_up_at_once(tmp_path):
    """Long before its time limit, which is none here."""
    program = """
import os, signal, subprocess, sys
from pathlib import Path
from seeupo.envs.appworld import engine_client
engine_client.ANSWER_SECONDS = 1e9
engine = engine_client.Engine(Path("/"))
streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
engine.source = subprocess.Popen([sys.executable, "-c", "input()"], **streams, text=True)
print(engine.source.pid, flush=True)
os.kill(engine.source.pid, signal.SIGSTOP)
engine.command("state")
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment)
    os.kill(int(done.stdout), signal.SIGKILL)
    assert done.returncode == LOST
    assert "was stopped" in done.stderr
