"""Adapter for environments with Gymnasium's `reset` and `step` whose observations and actions are text."""

from seeupo.envs.gymnasium_text.gem import GemFactory
from seeupo.envs.gymnasium_text.gymnasium_env import GymnasiumTextEnv, GymnasiumTextFactory

__all__ = ["GemFactory", "GymnasiumTextEnv", "GymnasiumTextFactory"]
