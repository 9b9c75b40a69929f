"""The toolkit for a training loop of your own; `examples/minimal_loop.py` is one.

`EnvPool` runs environments, `load_policy` loads a model, `LocalEngine` trains it, `Runner` runs episodes,
`rollout_groups` samples the groups of an iteration, `imitate` is the warm start. Algorithms are in `seeupo.algorithms`.
"""

from __future__ import annotations

from seeupo.config.optimizer_settings import OptimizerSettings as Optimizer
from seeupo.engines.local import LocalEngine
from seeupo.envs.pool.pool import EnvPool
from seeupo.models.loading import load_policy
from seeupo.rollout.groups import rollout_groups
from seeupo.rollout.runner import Runner
from seeupo.training.warm_start import imitate
from seeupo.types import Attempt, SamplingParameters, Trajectory, Turn

__all__ = [
    "Attempt",
    "EnvPool",
    "LocalEngine",
    "Optimizer",
    "Runner",
    "SamplingParameters",
    "Trajectory",
    "Turn",
    "imitate",
    "load_policy",
    "rollout_groups",
]
