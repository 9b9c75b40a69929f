"""Adapter for environments with Gymnasium's `reset` and `step` whose observations and actions are text."""

from seeupo.envs.gymnasium_text.env import GymnasiumTextEnv, GymnasiumTextFactory
from seeupo.envs.gymnasium_text.gem import GemFactory

__all__ = ["GemFactory", "GymnasiumTextEnv", "GymnasiumTextFactory"]
