"""SeeUPO: train language-model agents over many turns by sequence-level sequential policy updates.

Everything that a program imports comes from three places:

- `seeupo`: `train`, `resume`, `evaluate`, `export`, `compare` and `write_report`, which the command line calls too, and
  what recipes, callbacks and environments are made of;
- `seeupo.rl`: the toolkit for a training loop of your own;
- `seeupo.algorithms`: the algorithms, and what an algorithm of your own is made of.

Everything else may change without notice.
"""

# Only `sys` is imported here: `python -m seeupo` searches the current directory until its first line has run.
import sys

if sys.version_info < (3, 11):  # noqa: UP036 (for those who run the sources, whose version pip has not checked)
    raise ImportError(f"seeupo needs Python 3.11 or newer; this is Python {sys.version.split()[0]} ({sys.executable})")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from seeupo.callbacks import Callback as Callback
    from seeupo.comparison.run import compare as compare
    from seeupo.config.schema import Recipe as Recipe
    from seeupo.envs.declare import agent_program as agent_program
    from seeupo.envs.declare import env_maker as env_maker
    from seeupo.envs.declare import expert_maker as expert_maker
    from seeupo.envs.declare import reward_function as reward_function
    from seeupo.envs.registry import EnvSpec as EnvSpec
    from seeupo.errors import UserError as UserError
    from seeupo.evaluation.evaluate import evaluate as evaluate
    from seeupo.evaluation.results import Evaluation as Evaluation
    from seeupo.protocols import Env as Env
    from seeupo.protocols import EnvFactory as EnvFactory
    from seeupo.protocols import Expert as Expert
    from seeupo.report.write import write_report as write_report
    from seeupo.runs.export import export as export
    from seeupo.training.run import TrainingResult as TrainingResult
    from seeupo.training.run import resume as resume
    from seeupo.training.run import train as train
    from seeupo.types import Message as Message
    from seeupo.types import StepResult as StepResult
    from seeupo.types import Task as Task
    from seeupo.types import Tool as Tool
    from seeupo.types import ToolCall as ToolCall

__version__ = "0.1.0"

_PLACES = {
    "Callback": "callbacks",
    "Env": "protocols",
    "EnvFactory": "protocols",
    "EnvSpec": "envs.registry",
    "Evaluation": "evaluation.results",
    "Expert": "protocols",
    "Message": "types",
    "Recipe": "config.schema",
    "StepResult": "types",
    "Task": "types",
    "Tool": "types",
    "ToolCall": "types",
    "TrainingResult": "training.run",
    "UserError": "errors",
    "agent_program": "envs.declare",
    "compare": "comparison.run",
    "env_maker": "envs.declare",
    "evaluate": "evaluation.evaluate",
    "expert_maker": "envs.declare",
    "export": "runs.export",
    "resume": "training.run",
    "reward_function": "envs.declare",
    "train": "training.run",
    "write_report": "report.write",
}
__all__ = sorted(_PLACES)  # noqa: PLE0605


def __getattr__(name: str) -> "Any":
    """Load each name when it is asked for: most of them need torch, which environments do without."""
    if name not in _PLACES:
        raise AttributeError(f"module 'seeupo' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"seeupo.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
