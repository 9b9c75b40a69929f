"""A recipe: everything that a training run is made of, in typed sections.

Every section is a table of the TOML file, every attribute a key; docs/configuration.md is generated from what stands
here. Defaults are what we would choose for a real model; `seeupo recipes list` shows complete recipes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from seeupo.algorithms import SeeUPO
from seeupo.core.checks import check_at_least, check_count
from seeupo.engines.local import LoraSettings
from seeupo.engines.local_critic import CriticSettings
from seeupo.engines.optimizer import OptimizerSettings
from seeupo.models.tiny import TinyConfig
from seeupo.types import Algorithm


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """How long a run goes on and what it leaves behind.

    Attributes:
        seed: of everything that is drawn.
        iterations: each collects trajectories and updates the policy once.
        max_minutes: stop after the iteration in which this is reached; none for no limit.
        target: stop when an evaluation's avg@k reaches this; none for never.
        patience: stop after so many evaluations without a new best; none for never.
        checkpoint_every: iterations between checkpoints; the last iteration always has one.
        keep_checkpoints: how many of the latest stay; the best one stays besides.
        deterministic: the same seed gives bit-identical results at the same concurrency. Episodes take their turns
            together then, which costs time where environments are slow.
        threads: of PyTorch in this process; none for as many as there are cores.
    """

    seed: int = 0
    iterations: int = 100
    max_minutes: float | None = None
    target: float | None = None
    patience: int | None = None
    checkpoint_every: int = 10
    keep_checkpoints: int = 2
    deterministic: bool = True
    threads: int | None = None

    def __post_init__(self) -> None:
        check_count("seed", self.seed, 0)
        for name in ("iterations", "checkpoint_every", "keep_checkpoints"):
            check_count(name, getattr(self, name), 1)
        for name in ("patience", "threads"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), 1)
        for name in ("max_minutes", "target"):
            if getattr(self, name) is not None:
                check_at_least(name, getattr(self, name), 0)


@dataclass(frozen=True, kw_only=True)
class TinySettings:
    """The size of the model `tiny`, which is made from a seed when it is used.

    Attributes:
        width, layers, heads: of the transformer; the width is a multiple of twice the heads.
        context: how many tokens it takes.
        words: one token for each word of the environment's closed vocabulary, which `pocket` in its terse surface has;
            otherwise everything is spelled in bytes.
    """

    width: int = 128
    layers: int = 3
    heads: int = 4
    context: int = 1024
    words: bool = True

    def __post_init__(self) -> None:
        TinyConfig(width=self.width, layers=self.layers, heads=self.heads, context=self.context)


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The policy, and how it is held in memory.

    Attributes:
        name: `tiny`, a model of `seeupo models list`, a folder with safetensors, or owner/name of a model hub.
        device: that PyTorch knows, such as "cpu" or "cuda".
        dtype: of the weights. On CPUs float32 is the fast one.
        tiny: how large `tiny` is.
        lora: train low-rank adapters only; none trains the weights themselves, or those that optimizer.trainable names.
        batch_tokens: how many tokens go through the model at once in an update.
        row_tokens: length of a tree-packed row; none for four times the model's width.
        gradient_checkpointing: less memory for more time.
    """

    name: str = "tiny"
    device: str = "cpu"
    dtype: Literal["float32", "bfloat16", "float16", "float64"] = "float32"
    tiny: TinySettings = field(default_factory=TinySettings)
    lora: LoraSettings | None = None
    batch_tokens: int = 4096
    row_tokens: int | None = None
    gradient_checkpointing: bool = False

    def __post_init__(self) -> None:
        check_count("batch_tokens", self.batch_tokens, 1)


@dataclass(frozen=True, kw_only=True)
class EnvironmentSettings:
    """Where the agent acts.

    Attributes:
        name: of an environment, see `seeupo envs list`.
        options: its own options; each environment's page has them.
        train_split, test_split: the tasks that are trained on, and those that are only evaluated on.
        workers: processes that it runs in; none for one per core, up to 8.
        unsandboxed: run what the model writes without a sandbox, knowingly.
    """

    name: str = "pocket"
    options: Mapping[str, Any] = field(default_factory=dict)
    train_split: str = "train"
    test_split: str = "test"
    workers: int | None = None
    unsandboxed: bool = False

    def __post_init__(self) -> None:
        if self.workers is not None:
            check_count("workers", self.workers, 1)


@dataclass(frozen=True, kw_only=True)
class AgentSettings:
    """What the policy is shown, and how it acts.

    Attributes:
        reasoning: the paper's Reasoning-Augmented Template: a thought before each action, left out of later prompts.
        max_tokens: of one response.
        max_turns: T, the most turns of an episode.
        temperature: of sampling, in training and evaluation alike.
        max_observation_tokens: longer messages of the environment are cut, with a mark.
        max_prompt_tokens: when a prompt is longer, its oldest observations are cut; none for the model's own limit.
        concurrency: episodes under way at a time.
        episode_seconds: wall-clock limit of an episode; none for no limit.
    """

    reasoning: bool = True
    max_tokens: int = 256
    max_turns: int = 10
    temperature: float = 1.0
    max_observation_tokens: int = 3000
    max_prompt_tokens: int | None = None
    concurrency: int = 64
    episode_seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_tokens", "max_turns", "max_observation_tokens", "concurrency"):
            check_count(name, getattr(self, name), 1)
        if not self.temperature > 0:
            raise ValueError(f"temperature is {self.temperature}; it must be positive, as greedy actions teach nothing")


RewardShape = Literal["none", "paper_code"]


@dataclass(frozen=True, kw_only=True)
class CollectSettings:
    """What an iteration samples.

    Attributes:
        tasks: groups of an iteration.
        group_size: G, trajectories of the same task.
        shape: "none" trains on the environment's official score. "paper_code" is what the paper's public code does
            although the paper does not: 1.5 for a success, half of any partial score, and -1 for an episode that
            failed by saying the same thing three times in a row.
        failed_rounds: how often groups with an episode that the infrastructure failed are sampled again before they
            are left out.
        equal_rounds: how often groups whose rewards are all equal are replaced by other tasks; 0 trains on what came.
    """

    tasks: int = 16
    group_size: int = 8
    shape: RewardShape = "none"
    failed_rounds: int = 2
    equal_rounds: int = 0

    def __post_init__(self) -> None:
        check_count("tasks", self.tasks, 1)
        check_count("group_size", self.group_size, 2)
        check_count("failed_rounds", self.failed_rounds, 0)
        check_count("equal_rounds", self.equal_rounds, 0)


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """What held-out tasks say.

    Attributes:
        tasks: how many of the test split, from its beginning; none for all.
        attempts: number of attempts per task.
        k: k in avg@k and pass@k.
        every: iterations between evaluations; 0 evaluates only before and after.
    """

    tasks: int | None = None
    attempts: int = 4
    k: int = 4
    every: int = 10

    def __post_init__(self) -> None:
        if self.tasks is not None:
            check_count("tasks", self.tasks, 1)
        check_count("k", self.k, 1)
        check_count("attempts", self.attempts, self.k)
        check_count("every", self.every, 0)


@dataclass(frozen=True, kw_only=True)
class WarmStartSettings:
    """Supervised learning before reinforcement learning, on what an expert did.

    Attributes:
        episodes: demonstrations by the environment's expert, on training tasks.
        noisy: the share of them in which the expert makes mistakes, where the environment has such an expert.
        mistakes: how often it makes which mistake, as the environment names them; empty for its own choice.
        file: trajectories to learn from instead of an expert's, as runs write them.
        min_reward: only those trajectories of the file that got as much.
        batches: optimizer steps.
        batch_episodes: demonstrations in each.
        learning_rate, warmup: of the steps; the rate falls to 0 along a cosine.
    """

    episodes: int = 1024
    noisy: float = 0.0
    mistakes: Mapping[str, float] = field(default_factory=dict)
    file: str | None = None
    min_reward: float = 0.0
    batches: int = 100
    batch_episodes: int = 32
    learning_rate: float = 1e-4
    warmup: int = 10

    def __post_init__(self) -> None:
        for name in ("episodes", "batches", "batch_episodes"):
            check_count(name, getattr(self, name), 1)
        check_count("warmup", self.warmup, 0)
        if not 0 <= self.noisy <= 1:
            raise ValueError(f"noisy is {self.noisy}; it must be in [0, 1]")
        check_at_least("learning_rate", self.learning_rate, 0)


@dataclass(frozen=True, kw_only=True)
class TrackerSettings:
    """Where metrics go besides the run's own files.

    Attributes:
        tensorboard: write event files into the run (needs the extra 'tensorboard').
        wandb: project of Weights & Biases (needs the extra 'wandb'); none for no tracking.
        wandb_mode: "offline" writes files into the run, to be uploaded later.
    """

    tensorboard: bool = False
    wandb: str | None = None
    wandb_mode: Literal["online", "offline"] = "offline"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A training run.

    Attributes:
        algorithm: its `name`, and the options of that algorithm.
        critic: of algorithms that have one (ppo); others leave it out.
        warm_start: none begins with the model as it is.
    """

    run: RunSettings = field(default_factory=RunSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    environment: EnvironmentSettings = field(default_factory=EnvironmentSettings)
    agent: AgentSettings = field(default_factory=AgentSettings)
    collect: CollectSettings = field(default_factory=CollectSettings)
    algorithm: Algorithm = field(default_factory=SeeUPO)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    critic: CriticSettings = field(default_factory=CriticSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    warm_start: WarmStartSettings | None = None
    trackers: TrackerSettings = field(default_factory=TrackerSettings)

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Recipe:
        """A recipe from sections and keys, as in a TOML file; what is not given has its default."""
        from seeupo.config.loader import recipe_from_table

        return recipe_from_table(table)

    def __post_init__(self) -> None:
        if self.model.lora is not None and self.optimizer.trainable:
            raise ValueError("model.lora and optimizer.trainable exclude each other; leave one out")
        if self.evaluation.every == 0 and (self.run.target is not None or self.run.patience is not None):
            raise ValueError("run.target and run.patience need evaluations on the way; set evaluation.every")
