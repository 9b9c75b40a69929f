"""A study whose runs take about a second, and made-up results."""

from seeupo.comparison.result_store import RunResult
from seeupo.config.loader import recipe_to_toml
from training.small_runs import small

STUDY = """
recipe = "small.toml"
seeds = [5, 6]
tuning_seeds = [1]

[changes.evaluation]
every = 0

[grid]
optimizer.learning_rate = [1e-3, 3e-3]

[arms.seeupo.algorithm]
name = "seeupo"

[arms.grpo.algorithm]
name = "grpo"
kl_coef = 0.0
"""


def write_study(folder, text=STUDY, **sections):
    """Write the small recipe and a study of it, and return the study's path."""
    sections = {"run": {"iterations": 2}, "warm_start": {"batches": 30}, **sections}
    (folder / "small.toml").write_text(recipe_to_toml(small(**sections)))
    path = folder / "study.toml"
    path.write_text(text)
    return path


def made_result(rewards, **values):
    """Return a result with these rewards; other values are made up from them."""
    made = {
        "arm": "a",
        "seed": 0,
        "successes": [reward / 2 for reward in rewards],
        "evaluations": [[len(rewards), rewards[-1] if rewards else 0.0]],
        "optimizer_steps": 4 * len(rewards),
        "tokens": 100 * len(rewards),
        "seconds": {"collect": 2.0, "update": 3.0, "evaluate": 1.0},
        **values,
    }
    return RunResult(rewards=rewards, **made)
