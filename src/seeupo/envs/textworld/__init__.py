"""`textworld`: text adventures generated from a seed, with one reward for winning. Runs in workers."""

from seeupo.envs.textworld.textworld_env import TextworldEnv, TextworldFactory

__all__ = ["TextworldEnv", "TextworldFactory"]
