"""`dataset`: prompts from a JSONL file, one reply each, scored by a custom Python function."""

from seeupo.envs.dataset.dataset_env import DatasetEnv, DatasetFactory

__all__ = ["DatasetEnv", "DatasetFactory"]
