"""Try an environment before the work starts, so that mistakes in it are reported at once."""

from __future__ import annotations

from seeupo.envs.failures import EnvFailure
from seeupo.envs.pool.pool import EnvPool
from seeupo.errors import EnvError
from seeupo.types import Task


def try_task(pool: EnvPool, task: Task) -> None:
    """Run an episode with one empty action; raise `EnvError` if the environment fails or breaks the contract."""
    env = pool.env()
    try:
        if not env.reset(task, seed=task.seed).done:
            env.step("")
        env.score()
        env.close()
    except EnvFailure as failure:
        raise EnvError(*str(failure).split("\n")) from None
