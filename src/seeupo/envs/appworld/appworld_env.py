"""AppWorld as an environment: run the code in each action and keep the state of the apps."""

from __future__ import annotations

from typing import Any

from seeupo.envs.appworld.code_block import first_code_block
from seeupo.envs.appworld.engine_client import Engine, EngineLost, NoOutput
from seeupo.types import Message, StepResult, Task
from seeupo.utils.text import cut

SHORTEST_GRACE_SECONDS = 2.0
LONGEST_CODE = 100_000
SYSTEM = """\
You carry out a task for your supervisor in a world of apps, by writing Python code. In each turn, write one block of \
code between ```python and ```; only the first block of a message is run. You are then shown what it printed. \
Variables and functions live on from turn to turn.

The apps are used through the object `apis`: `apis.APP_NAME.API_NAME(argument=value)` returns JSON data, or raises an \
exception that says what was wrong. Find out what there is before you use it, and print what you want to see:
- apis.api_docs.show_app_descriptions()
- apis.api_docs.show_api_descriptions(app_name='...')
- apis.api_docs.show_api_doc(app_name='...', api_name='...')

How to go about it:
- The app `supervisor` knows your supervisor's profile, addresses, payment cards and account passwords. Most apps ask \
you to log in for an access token, with the supervisor's e-mail address or phone number as user name.
- Lists come in pages: go through all of them where the task is about all entries.
- Decide for yourself: questions are not answered. Change nothing that the task does not ask for.
- When done, call apis.supervisor.complete_task(). If the task asks a question, pass the answer, as short as can be: \
apis.supervisor.complete_task(answer=...). If you cannot do it: apis.supervisor.complete_task(status='fail')."""

USER = """\
My name is {first_name} {last_name}, my e-mail address is {email} and my phone number is {phone_number}. \
It is {datetime} now.

Task: {instruction}"""
HALTED = "Error: this code brought the apps to a halt, so the task ends here, as it was before the code."


class AppWorldEnv:
    """An `Env` with `save` instead of `score`, because scores must not be computed where model code runs."""

    def __init__(self, engine: Engine, *, execution_seconds: int) -> None:
        self.engine = engine
        self.execution_seconds = execution_seconds
        self.task = ""
        self.executed: list[str] = []
        self.changes: dict[str, list[str]] = {}

    def reset(self, task: Task, *, seed: int) -> StepResult:
        """Set up a task. AppWorld's tasks do not depend on the seed."""
        del seed
        self.task = task.id
        self.executed = []
        self.changes = {}
        task_description = self._set_up()
        request = USER.format(**task_description, **task_description["supervisor"])
        return StepResult((Message("system", SYSTEM), Message("user", request)), tools=())

    def step(self, text: str) -> StepResult:
        """Run the first code block of the text."""
        code = first_code_block(text)
        if code is None:
            return observation("Error: there is no code block. Write the code to run between ```python and ```.")
        if len(code) > LONGEST_CODE:
            return observation(f"Error: the code has {len(code)} characters; at most {LONGEST_CODE} are run.")
        # Text that cannot be encoded cannot be sent; Python's own parser would not accept it either.
        code = code.encode(errors="replace").decode()
        for again in (False, True):
            try:
                printed, completed = self._execute(code)
            except NoOutput as error:
                self._restore()
                return observation(f"Error: {error}. All effects of the code are undone.")
            except EngineLost:
                if again:  # also in a fresh process, so the code is the cause
                    return observation(HALTED, terminated=True, info={"ended_by": "action"})
                self._restore()
            else:
                break
        self.executed.append(code)
        return observation(f"Output:\n```\n{cut(printed.rstrip())}\n```", terminated=completed)

    def save(self) -> dict[str, list[str]]:
        """Return the episode's changes to each app's database, for `AppWorldFactory.judge`."""
        return self.changes

    def close(self) -> None:
        self.engine.stop()

    def _set_up(self) -> dict[str, Any]:
        try:
            return self.engine.start(self.task, execution_seconds=self.execution_seconds)
        except EngineLost as error:
            raise RuntimeError(f"task {self.task} cannot be set up: {error}") from None

    def _execute(self, code: str) -> tuple[str, bool]:
        """Return what the code printed and whether the task is completed, and keep the state of the apps."""
        # The engine stops code with an exception, which the code may catch, so there is a second limit.
        grace = max(self.execution_seconds / 4, SHORTEST_GRACE_SECONDS)
        printed = self.engine.command("execute", code=code, seconds=self.execution_seconds + grace)["output"]
        state = self.engine.command("state")
        self.changes = state["changes"]
        return printed, state["completed"]

    def _restore(self) -> None:
        """Restore the state before this action in a fresh engine."""
        self._set_up()
        try:
            for code in self.executed:
                self._execute(code)
        except EngineLost as error:
            raise RuntimeError(f"an action that succeeded before failed when it was replayed: {error}") from None


def observation(text: str, **fields: Any) -> StepResult:
    return StepResult((Message("user", text),), **fields)
