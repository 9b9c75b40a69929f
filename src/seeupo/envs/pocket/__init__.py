"""`pocket`: a pocket-size world of apps, for first runs, tests and small models. It needs nothing but Python."""

from seeupo.envs.pocket.env import PocketEnv, PocketFactory
from seeupo.envs.pocket.experts import MistakeRates, random_policy

__all__ = ["MistakeRates", "PocketEnv", "PocketFactory", "random_policy"]
