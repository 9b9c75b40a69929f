"""Try an environment before the work starts, so that mistakes in it are reported at once."""

from __future__ import annotations

from seeupo.envs.failures import EnvFailure
from seeupo.envs.pool.pool import EnvPool
from seeupo.errors import EnvError
from seeupo.types import StepResult, Task


def try_task(pool: EnvPool, task: Task) -> StepResult:
    """Run an episode with one empty action and return its first result.

    Raise `EnvError` if the environment fails or breaks the contract.
    """
    env = pool.env()
    try:
        first = env.reset(task, seed=task.seed)
        if not first.done:
            env.step("")
        env.score()
        env.close()
        return first
    except EnvFailure as failure:
        raise EnvError(*str(failure).split("\n")) from None
