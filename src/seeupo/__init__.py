"""SeeUPO: train language-model agents over many turns by sequence-level sequential policy updates.

`train`, `resume`, `evaluate`, `export` and `write_report` are what the command line calls; a `Recipe` says what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seeupo.callbacks import Callback as Callback
    from seeupo.config.schema import Recipe as Recipe
    from seeupo.envs.declare import env_maker as env_maker
    from seeupo.envs.declare import expert_maker as expert_maker
    from seeupo.envs.declare import reward_function as reward_function
    from seeupo.evaluation.evaluate import evaluate as evaluate
    from seeupo.report.report import write_report as write_report
    from seeupo.runs.export import export as export
    from seeupo.training.run import resume as resume
    from seeupo.training.run import train as train

__version__ = "0.1.0"
__all__ = [
    "Callback",
    "Recipe",
    "env_maker",
    "evaluate",
    "expert_maker",
    "export",
    "resume",
    "reward_function",
    "train",
    "write_report",
]

_PLACES = {
    "Callback": "callbacks",
    "Recipe": "config.schema",
    "env_maker": "envs.declare",
    "evaluate": "evaluation.evaluate",
    "expert_maker": "envs.declare",
    "export": "runs.export",
    "resume": "training.run",
    "reward_function": "envs.declare",
    "train": "training.run",
    "write_report": "report.report",
}


def __getattr__(name: str) -> Any:
    """Load what needs torch when it is asked for: environments import this package without it."""
    if name not in _PLACES:
        raise AttributeError(f"module 'seeupo' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"seeupo.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
