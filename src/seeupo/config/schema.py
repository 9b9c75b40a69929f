"""The recipe: everything that defines a training run, in typed sections.

Each section is a table of the TOML file and each attribute a key. docs/reference/configuration.md is generated from
this module.
Defaults are chosen for a real model; `seeupo recipes list` shows complete recipes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from seeupo.config.algorithms import AlgorithmSettings, algorithm_code, is_reference, load_algorithm
from seeupo.config.model_settings import VLLM_RANKS, ModelSettings
from seeupo.config.optimizer_settings import CriticSettings, OptimizerSettings
from seeupo.config.option_types import Fraction, NonNegative, NonNegativeInt, Options, PositiveInt, Range
from seeupo.config.process_settings import EngineSettings, MismatchSettings, SamplerSettings
from seeupo.envs.trust import named_code
from seeupo.utils.option_checks import OptionError

DEFAULT_ITERATIONS = 100


@dataclass(frozen=True, kw_only=True)
class RunSettings(Options):
    """Length of the run, checkpoints and reproducibility.

    Attributes:
        seed: Random seed for task order, sampling and updates.
        iterations: Number of iterations; each collects trajectories and updates the policy once. 0 stops after the warm
            start; "none" means 100, or as many as `epochs` needs.
        epochs: Number of times that each training task is drawn, instead of `iterations`. A run records the resulting
            number of iterations, epochs * training tasks / collect.tasks rounded up.
        max_minutes: Time limit in minutes, checked after each iteration; "none" means no limit.
        target: Value of avg@k at which training stops after an evaluation; "none" means never.
        patience: Number of evaluations without a new best after which training stops; "none" means never.
        checkpoint_every: Iterations between checkpoints; each new best evaluation and the last iteration write one as
            well.
        keep_checkpoints: Number of recent checkpoints to keep; the best one is always kept as well.
        deterministic: Bit-identical results for the same seed, concurrency and number of threads. Episodes then advance
            turn by turn together, which takes longer where environments are slow.
        threads: Number of PyTorch threads; "none" means one for models of fewer than 10 million weights, otherwise one
            per core. A run records the number, and keeps it when it is resumed.
    """

    seed: NonNegativeInt = 0
    iterations: NonNegativeInt | None = None
    epochs: PositiveInt | None = None
    max_minutes: NonNegative | None = None
    target: NonNegative | None = None
    patience: PositiveInt | None = None
    checkpoint_every: PositiveInt = 10
    keep_checkpoints: PositiveInt = 2
    deterministic: bool = True
    threads: PositiveInt | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.iterations is not None and self.epochs is not None:
            raise OptionError(
                "epochs", self.epochs, f'"none" beside iterations = {self.iterations}; only one may be set'
            )

    @property
    def total_iterations(self) -> int:
        """The number of iterations, once `epochs` is resolved."""
        if self.epochs is not None:
            raise ValueError(f"epochs = {self.epochs} is not resolved to iterations yet")
        return DEFAULT_ITERATIONS if self.iterations is None else self.iterations

    def resolved(self, train_tasks: int, tasks_per_iteration: int) -> RunSettings:
        """Return the settings with a definite number of iterations."""
        if self.epochs is None:
            return replace(self, iterations=self.total_iterations)
        iterations = math.ceil(self.epochs * train_tasks / tasks_per_iteration)
        return replace(self, iterations=iterations, epochs=None)


@dataclass(frozen=True, kw_only=True)
class EnvironmentSettings(Options):
    """The environment that the agent acts in.

    Attributes:
        name: Name of the environment, see `seeupo envs list`; or the factory of a custom one, "module:Factory".
        options: Options of the environment; its page documents them.
        train_split: Split of the tasks to train on.
        test_split: Split of the held-out tasks, which are only evaluated.
        workers: Number of worker processes per node; "none" means one per core, at most 8.
    """

    name: str = "pocket"
    options: Mapping[str, Any] = field(default_factory=dict)
    train_split: str = "train"
    test_split: str = "test"
    workers: PositiveInt | None = None


@dataclass(frozen=True, kw_only=True)
class AgentSettings(Options):
    """Prompts, sampling and limits of an episode.

    Attributes:
        reasoning: The paper's Reasoning-Augmented Template: a thought before each action, omitted from later prompts.
        max_tokens: Maximum length of a response in tokens.
        max_turns: T, the maximum number of turns in an episode.
        temperature: Sampling temperature, in training and evaluation.
        max_observation_tokens: Maximum length of an observation in tokens; longer ones are truncated and marked.
        max_prompt_tokens: Maximum length of a prompt in tokens, beyond which the oldest observations are removed;
            "none" means the context length of the model.
        concurrency: Number of concurrent episodes.
        episode_seconds: Time limit of an episode in seconds; "none" means no limit.
        program: Agent program that runs the episodes instead of the environment, of which only the tasks are used.
            "module:function" or "path/to/file.py:function" names a function `solve(task, client)` marked with
            `@seeupo.agent_program`; it runs in this process, with your consent. It writes its own prompts, so
            `reasoning` must be false, and the limits of observations and prompts do not apply.
    """

    reasoning: bool = True
    max_tokens: PositiveInt = 256
    max_turns: PositiveInt = 10
    temperature: float = 1.0
    max_observation_tokens: PositiveInt = 3000
    max_prompt_tokens: PositiveInt | None = None
    concurrency: PositiveInt = 64
    episode_seconds: NonNegative | None = None
    program: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.program is not None:
            if not is_reference(self.program):
                raise OptionError("program", self.program, 'a function, such as "my_agent.py:solve"')
            for name in ("reasoning", "max_observation_tokens", "max_prompt_tokens"):
                expected = False if name == "reasoning" else getattr(AgentSettings, name)
                if getattr(self, name) != expected:
                    reason = f"{str(expected).lower()}, because an agent program writes its own prompts"
                    raise OptionError(name, getattr(self, name), reason)
        if not self.temperature > 0:
            expected = "a positive number, because all greedy responses of a group would be the same"
            raise OptionError("temperature", self.temperature, expected)


REWARDS = ("score", "score_and_steps")


@dataclass(frozen=True, kw_only=True)
class CollectSettings(Options):
    """Trajectories collected in an iteration.

    Attributes:
        tasks: Number of tasks, which is the number of groups, per iteration.
        group_size: G, the number of trajectories of the same task.
        reward: Reward of a trajectory. "score" is the environment's official score. "score_and_steps" adds the rewards
            of its steps, in environments that declare them separate from the score. "module:function" or
            "path/to/file.py:function" names a function `reward(trajectory) -> float` marked with
            `@seeupo.reward_function`; it runs in this process, with your consent.
        discount: Discount factor per turn of the reward: discount^(T-1) * score + sum over turns t = 0 ... T-1 of
            discount^t * step reward. 1 does not discount.
        failed_rounds: Number of retries for groups with an infrastructure failure before they are dropped.
        equal_rounds: Number of times that groups with equal rewards are replaced by other tasks; 0 keeps them.
        lag: 1 samples the next iteration while the current one is being updated, with the weights from before the
            update; ratios are then relative to the policy that sampled. 0 samples with the latest weights.
    """

    tasks: PositiveInt = 16
    group_size: Annotated[int, Range(2)] = 8
    reward: str = "score"
    discount: Fraction = 1.0
    failed_rounds: NonNegativeInt = 2
    equal_rounds: NonNegativeInt = 0
    lag: Literal[0, 1] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_reference(self.reward) and self.reward not in REWARDS:
            expected = f"one of {', '.join(REWARDS)}, or a function: 'module:function' or 'path/to/file.py:function'"
            raise OptionError("reward", self.reward, expected)


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings(Options):
    """Evaluation on held-out tasks.

    Attributes:
        tasks: Number of tasks, from the start of the test split; "none" means all.
        attempts: Number of attempts per task.
        k: k in avg@k and pass@k; at most the number of attempts.
        every: Iterations between evaluations; 0 evaluates only before and after training.
        before: Evaluation before the first iteration; without it there is no score to compare the last one with.
    """

    tasks: PositiveInt | None = None
    attempts: PositiveInt = 4
    k: PositiveInt = 4
    every: NonNegativeInt = 10
    before: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attempts < self.k:
            raise OptionError("attempts", self.attempts, f"an integer >= k = {self.k}")


@dataclass(frozen=True, kw_only=True)
class WarmStartSettings(Options):
    """Supervised learning on demonstrations before reinforcement learning.

    Attributes:
        episodes: Number of demonstrations by the environment's expert on training tasks.
        noisy: Fraction of demonstrations by the noisy expert, if the environment has one.
        mistakes: Rate of each mistake of the noisy expert, by the environment's names; empty for its defaults.
        file: File of demonstrations: JSON lines of chat messages or of prompt/completion pairs, or a trajectory file;
            "none" means demonstrations of the expert.
        min_reward: Minimum reward of the trajectories used from a trajectory file.
        batches: Number of optimizer steps.
        batch_episodes: Number of demonstrations per step.
        learning_rate: Peak learning rate; it decays to 0 along a cosine.
        warmup: Number of steps over which the learning rate rises.
    """

    episodes: PositiveInt = 1024
    noisy: Fraction = 0.0
    mistakes: Mapping[str, float] = field(default_factory=dict)
    file: str | None = None
    min_reward: float = 0.0
    batches: PositiveInt = 100
    batch_episodes: PositiveInt = 32
    learning_rate: NonNegative = 1e-4
    warmup: NonNegativeInt = 10


@dataclass(frozen=True, kw_only=True)
class TrackerSettings(Options):
    """Experiment trackers that receive the metrics besides the run directory.

    Attributes:
        tensorboard: TensorBoard event files in the run directory (needs the extra 'tensorboard').
        wandb: Weights & Biases project (needs the extra 'wandb'); "none" means no tracking.
        wandb_mode: Weights & Biases mode; "offline" writes files into the run directory for a later upload.
    """

    tensorboard: bool = False
    wandb: str | None = None
    wandb_mode: Literal["online", "offline"] = "offline"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A training run: one section of settings per attribute.

    Attributes:
        run: Length of the run, checkpoints and reproducibility.
        model: The policy and its memory use.
        environment: The environment that the agent acts in.
        agent: Prompts, sampling and limits of an episode.
        collect: Trajectories collected in an iteration.
        algorithm: Algorithm, selected by `name`, and its options. An algorithm object becomes its settings.
        optimizer: Optimizer of the policy.
        critic: Critic of the algorithms that need one (ppo); ignored by the others.
        engine: Processes that train: this one, or ranks of a cluster.
        sampler: Processes that sample.
        mismatch: Differences between the log-probs of sampler and trainer.
        evaluation: Evaluation on held-out tasks.
        warm_start: Supervised learning before reinforcement learning; "none" skips it.
        trackers: Experiment trackers that receive the metrics besides the run directory.
    """

    run: RunSettings = field(default_factory=RunSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    environment: EnvironmentSettings = field(default_factory=EnvironmentSettings)
    agent: AgentSettings = field(default_factory=AgentSettings)
    collect: CollectSettings = field(default_factory=CollectSettings)
    algorithm: AlgorithmSettings = field(default_factory=AlgorithmSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    critic: CriticSettings = field(default_factory=CriticSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    sampler: SamplerSettings = field(default_factory=SamplerSettings)
    mismatch: MismatchSettings = field(default_factory=MismatchSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    warm_start: WarmStartSettings | None = None
    trackers: TrackerSettings = field(default_factory=TrackerSettings)

    @property
    def code(self) -> tuple[str, ...]:
        """References to code that the recipe names, which runs only with the user's consent."""
        return (*named_code(self.environment.name, self.environment.options), *self.in_process_code)

    @property
    def in_process_code(self) -> tuple[str, ...]:
        """References to code that runs in the training process: algorithm, reward function and agent program."""
        named = (self.collect.reward, self.agent.program)
        return (*algorithm_code(self.algorithm), *(name for name in named if name is not None and is_reference(name)))

    @property
    def clusters(self) -> tuple[str, ...]:
        """Address of the Ray cluster that the recipe names, if any. It is joined only with the user's consent."""
        return () if self.engine.address is None else (self.engine.address,)

    def with_code(self, trust: Collection[str]) -> Recipe:
        """Return the recipe with the class of its algorithm loaded; `TrustError` if that needs consent."""
        return replace(self, algorithm=load_algorithm(self.algorithm, trust))

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Recipe:
        """Return the recipe of nested tables, as in a TOML file; `algorithm` may also be an algorithm object."""
        from seeupo.config.loader import recipe_from_table

        return recipe_from_table(table)

    def __post_init__(self) -> None:
        algorithm: Any = self.algorithm
        if not isinstance(algorithm, AlgorithmSettings):
            object.__setattr__(self, "algorithm", AlgorithmSettings.from_algorithm(algorithm))
        if self.model.lora is not None and self.optimizer.trainable:
            raise ValueError("model.lora and optimizer.trainable: expected at most one of them. Leave one out.")
        lora, limit = self.model.lora, VLLM_RANKS[-1]
        if lora is not None and lora.per_role and self.agent.program is None:
            raise ValueError(
                "model.lora.per_role: expected an agent program, whose calls have roles. Set agent.program."
            )
        if lora is not None and lora.adapters is not None and self.sampler.kind == "vllm" and lora.rank > limit:
            raise ValueError(
                f'model.lora.rank = {lora.rank} with per_turn or per_role and sampler.kind = "vllm": expected at most '
                f'{limit}, the largest rank of an adapter that vLLM serves. Lower it, or set sampler.kind = "local".'
            )
        if self.evaluation.every == 0 and (self.run.target is not None or self.run.patience is not None):
            raise ValueError("run.target and run.patience: expected evaluations during training. Set evaluation.every.")
        if self.sampler.placement == "shared" and self.sampler.count:
            self._check_shared_placement()

    def _check_shared_placement(self) -> None:
        trainers, samplers, gpus = self.engine.trainers, self.sampler.count, self.sampler.tensor_parallel
        if self.engine.kind != "cluster":
            raise ValueError(
                'sampler.placement = "shared" with engine.kind = "local": expected ranks to share GPUs with. Set '
                'engine.kind = "cluster", which works with one rank too, or sampler.placement = "apart".'
            )
        if trainers % gpus or samplers * gpus > trainers:
            raise ValueError(
                f'sampler.placement = "shared" with {samplers} samplers of {gpus} GPUs and engine.trainers = '
                f"{trainers}: expected trainers in multiples of sampler.tensor_parallel, and at most one sampler per "
                f"multiple. Set sampler.count to {max(1, trainers // gpus)} or less, or sampler.placement to apart."
            )
        if self.collect.lag:
            raise ValueError(
                f'collect.lag = {self.collect.lag} with sampler.placement = "shared": expected lag = 0, because the '
                'samplers have no memory during an update. Set collect.lag = 0, or sampler.placement = "apart".'
            )
