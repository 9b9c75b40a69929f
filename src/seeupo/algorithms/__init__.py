"""Training algorithms, one file each, and what an algorithm of your own is made of."""

from seeupo.algorithms.common.base import BaseAlgorithm
from seeupo.algorithms.common.batch import Batch
from seeupo.algorithms.common.objective import RatioObjective, SequenceObjective, TokenObjective, TrajectoryObjective
from seeupo.algorithms.gigpo import GiGPO
from seeupo.algorithms.grpo import GRPO
from seeupo.algorithms.gspo import GSPO
from seeupo.algorithms.mt_grpo import MTGRPO
from seeupo.algorithms.ppo import PPO
from seeupo.algorithms.reinforce_pp import ReinforcePP
from seeupo.algorithms.rloo import RLOO
from seeupo.algorithms.seeupo import SeeUPO
from seeupo.protocols import Algorithm, TrainEngine
from seeupo.types import Behavior, StepMetrics, Update

ALGORITHMS: dict[str, type[Algorithm]] = {
    "seeupo": SeeUPO,
    "ppo": PPO,
    "grpo": GRPO,
    "gspo": GSPO,
    "rloo": RLOO,
    "reinforce_pp": ReinforcePP,
    "gigpo": GiGPO,
    "mt_grpo": MTGRPO,
}

__all__ = [
    "ALGORITHMS",
    "GRPO",
    "GSPO",
    "MTGRPO",
    "PPO",
    "RLOO",
    "BaseAlgorithm",
    "Batch",
    "Behavior",
    "GiGPO",
    "RatioObjective",
    "ReinforcePP",
    "SeeUPO",
    "SequenceObjective",
    "StepMetrics",
    "TokenObjective",
    "TrainEngine",
    "TrajectoryObjective",
    "Update",
]
