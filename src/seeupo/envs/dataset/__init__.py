"""`dataset`: prompts from a JSONL file, one reply each, scored by a Python function of one's own."""

from seeupo.envs.dataset.env import DatasetEnv, DatasetFactory

__all__ = ["DatasetEnv", "DatasetFactory"]
