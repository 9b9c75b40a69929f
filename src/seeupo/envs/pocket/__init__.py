"""`pocket`: a small world of simulated apps, for first runs, tests and small models, without dependencies."""

from seeupo.envs.pocket.pocket_env import PocketEnv, PocketFactory

__all__ = ["PocketEnv", "PocketFactory"]
