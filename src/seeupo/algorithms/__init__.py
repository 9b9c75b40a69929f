"""Training algorithms, one file each, on the TrainEngine protocol."""

from seeupo.algorithms.gigpo import GiGPO
from seeupo.algorithms.grpo import GRPO
from seeupo.algorithms.gspo import GSPO
from seeupo.algorithms.mt_grpo import MTGRPO
from seeupo.algorithms.ppo import PPO
from seeupo.algorithms.reinforce_pp import ReinforcePP
from seeupo.algorithms.rloo import RLOO
from seeupo.algorithms.seeupo import SeeUPO
from seeupo.protocols import Algorithm

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

__all__ = ["ALGORITHMS", "GRPO", "GSPO", "MTGRPO", "PPO", "RLOO", "GiGPO", "ReinforcePP", "SeeUPO"]
