"""`textworld`: text adventures generated from a seed, with one reward for winning. Played in workers."""

from seeupo.envs.textworld.env import TextworldEnv, TextworldFactory

__all__ = ["TextworldEnv", "TextworldFactory"]
