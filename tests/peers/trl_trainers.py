"""TRL's trainers on a random batch: their scoring and their loss, on our tokens, rewards and tables.

They are created without their constructors, which need a model, a tokenizer and a dataset. Only generation and rewards
are replaced; advantages come from `_generate_and_score_completions` and losses from `_compute_loss`, unchanged.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from peers.batches import RandomBatch


class TableModel(nn.Module):
    """A model that looks up its outputs. The prompt of a row is its index."""

    is_gradient_checkpointing = False

    def __init__(self, batch: RandomBatch, logits: Tensor) -> None:
        super().__init__()
        self.batch = batch
        self.logits = nn.Parameter(logits.clone())

    def forward(self, input_ids: Tensor, **_: Any) -> SimpleNamespace:
        rows, length = input_ids[:, 0], input_ids.shape[1] - 1  # TRL's rows end where the longest one ends
        return SimpleNamespace(
            log_probs=self.batch.logprobs(self.logits)[rows, :length],
            entropy=self.batch.entropies(self.logits)[rows, :length],
        )


class _OnBatch:
    """Replaces generation and reward functions of a trainer by a random batch."""

    def set_up(self, batch: RandomBatch, config: Any) -> None:
        self.batch, self.args = batch, config
        self.model, self.ref_model = TableModel(batch, batch.before), TableModel(batch, batch.reference)
        self.accelerator = Accelerator(cpu=True)
        self.state = SimpleNamespace(global_step=0, num_input_tokens_seen=0)
        self._tokenizer = SimpleNamespace(pad_token_id=0)
        self._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
        self._logs = {name: [] for name in ("prompt", "completion", "advantages")}
        self._logs |= {"rewards": defaultdict(list), "extra": defaultdict(list)}
        self._pending_extra_logs, self._pending_metrics = {}, {}
        self.reward_func_names, self.reward_weights = ["given"], torch.ones(1)
        self.beta, self.num_generations = config.beta, config.num_generations
        self.epsilon_low = config.epsilon
        self.epsilon_high = config.epsilon if config.epsilon_high is None else config.epsilon_high
        self.aux_loss_enabled = self.mask_truncated_completions = False
        self.pad_to_multiple_of = None

    def _calculate_rewards(self, *_: Any) -> Tensor:
        return self.batch.rewards[:, None]

    def score(self) -> dict[str, Any]:
        """Return the trainer's masks, advantages, old and reference log-probs at theta_k."""
        return self._generate_and_score_completions([{"prompt": str(n)} for n in range(len(self.batch.trajectories))])

    def loss_and_gradient(self, inputs: dict[str, Any], logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss at these logits and its gradient."""
        self.model = TableModel(self.batch, logits)
        loss = self._compute_loss(self.model, inputs)
        return loss.detach(), torch.autograd.grad(loss, self.model.logits)[0]

    def _rows(self) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
        """Return prompts, completions up to the last action token, and masks of their actions."""
        ends = [int((mask * torch.arange(1, len(mask) + 1)).max()) for mask in self.batch.mask]
        tokens = [row[:end] for row, end in zip(self.batch.tokens.tolist(), ends, strict=True)]
        masks = [row[:end] for row, end in zip(self.batch.mask.int().tolist(), ends, strict=True)]
        return [[n] for n in range(len(ends))], tokens, masks


class BatchGRPO(_OnBatch, GRPOTrainer):
    """A GRPOTrainer on a random batch; TRL calls observation tokens tool tokens."""

    def __init__(self, batch: RandomBatch, **options: Any) -> None:
        options = {"use_bias_correction_kl": False, **options}
        config = _config(GRPOConfig, batch, num_iterations=2, **options)  # 2, so that it keeps old log-probs
        self.set_up(batch, config)
        self.loss_type, self.importance_sampling_level = config.loss_type, config.importance_sampling_level
        self.scale_rewards, self.multi_objective_aggregation = config.scale_rewards, config.multi_objective_aggregation
        self.max_completion_length, self.num_iterations = config.max_completion_length, config.num_iterations
        self.entropy_coef, self._entropy_bonus_enabled = config.entropy_coef, config.entropy_coef != 0
        self.top_entropy_quantile, self.off_policy_mask_threshold = 1.0, None
        self.current_gradient_accumulation_steps = 1
        self.tools = self.environments = self.environment_factories = None
        self.use_vllm = self.use_adaptive_entropy = False

    def _generate(self, prompts: list[str]) -> tuple[Any, ...]:
        rows, tokens, masks = self._rows()
        return rows, tokens, masks, prompts, None, {}, None, []


class BatchRLOO(_OnBatch, RLOOTrainer):
    """An RLOOTrainer on a random batch of single turns, because it has no mask for observations."""

    def __init__(self, batch: RandomBatch, **options: Any) -> None:
        config = _config(RLOOConfig, batch, **options)
        self.set_up(batch, config)
        self.normalize_advantages, self.reward_clip_range = config.normalize_advantages, config.reward_clip_range

    def _generate(self, prompts: list[str]) -> tuple[Any, ...]:
        rows, tokens, _ = self._rows()
        return rows, tokens, prompts


def _config(kind: type[Any], batch: RandomBatch, **options: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return kind(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            report_to="none",
            per_device_train_batch_size=len(batch.trajectories),
            num_generations=int(batch.group_sizes()[0]),
            **options,
        )
