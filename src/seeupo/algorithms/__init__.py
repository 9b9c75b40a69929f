"""One file per algorithm, each written against the TrainEngine protocol only."""

from seeupo.algorithms.seeupo import SeeUPO
from seeupo.types import Algorithm

ALGORITHMS: dict[str, type[Algorithm]] = {"seeupo": SeeUPO}

__all__ = ["ALGORITHMS", "SeeUPO"]
