"""Compare the cost of one SeeUPO update with one of GRPO, on the same trajectories.

One group of 8, a shared prompt of 1,000 tokens, 30 action and 30 observation tokens per turn, T turns; SmolLM2-135M
with its first layers only, so that it finishes in minutes. All layers are trained, or the top quarter of them:

- SeeUPO, ours: turn pools, tree-packed; log-probs before, a step and log-probs after it for every turn.
- GRPO, ours: whole trajectories, tree-packed; log-probs before, one step.
- GRPO, unshared whole trajectories: a row per trajectory, all layers.
- GRPO, unshared sliced turns: a row per turn, all layers, as in the paper's setup.

Seconds are CPU time of one thread, which other processes on the machine change little. Unshared rows are independent of
each other, so they are measured on a part of the trajectories and multiplied.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from side_by_side import machine, table, write_results

from seeupo.algorithms import SeeUPO
from seeupo.algorithms.common.batch import Batch, logprobs_by_key
from seeupo.algorithms.common.objective import SequenceObjective
from seeupo.config.optimizer_settings import OptimizerSettings
from seeupo.engines.batches import Batches
from seeupo.engines.local import LocalEngine
from seeupo.models.catalog import fetch
from seeupo.models.loading import LoadedPolicy, load_policy
from seeupo.models.logprobs import ActionLogProbs, _target_logprobs
from seeupo.models.packing.batching import PaddedBatch
from seeupo.models.scope import ModelScope
from seeupo.types import Trajectory, Turn, turns_of

GROUP, PROMPT, ACTION, OBSERVATION = 8, 1000, 30, 30
MEASURED = 2
"""Number of the group's trajectories that unshared rows are measured on."""


class UnsharedBatches(Batches):
    """One row per turn."""

    def iterate(self, turns: Sequence[Turn], scope: ModelScope | None = None) -> Iterator[tuple[PaddedBatch, bool]]:
        return ((PaddedBatch([number], [turn]), True) for number, turn in enumerate(turns))


class UnsharedEngine(LocalEngine):
    """Rows with plain causal attention; as in other libraries, logits of the action's tokens only."""

    def __init__(self, policy: LoadedPolicy, settings: OptimizerSettings) -> None:
        super().__init__(policy, settings)
        self._batches = UnsharedBatches(policy, self._scope, self.sharding, row_tokens=1, batch_tokens=1, trunk_bytes=0)

    def _action_logprobs(self, scope: ModelScope, batch: Any, *, entropies: bool = False) -> ActionLogProbs:
        (turn,), model = batch.rows, scope.model
        hidden = model.base_model(
            input_ids=torch.tensor([turn.prompt_ids + turn.action_ids]), use_cache=False
        ).last_hidden_state[0]
        targets = torch.tensor(turn.action_ids)
        states = hidden[len(turn.prompt_ids) - 1 : -1]
        logprobs, _ = _target_logprobs(states, model.get_output_embeddings(), targets, 1.0, entropies)
        return ActionLogProbs(logprobs[None], None, torch.ones(1, len(targets), dtype=torch.bool))


def random_trajectories(count: int) -> list[Trajectory]:
    """Return one group of trajectories with `count` turns each."""
    generator = torch.Generator().manual_seed(count)

    def tokens(length: int) -> tuple[int, ...]:
        return tuple(torch.randint(100, 49_000, (length,), generator=generator).tolist())

    prompt, trajectories = tokens(PROMPT), []
    for number in range(GROUP):
        history, turns = prompt, []
        for index in range(count):
            action = tokens(ACTION)
            turns.append(Turn(str(number), index, history, action))
            history = history + action + tokens(OBSERVATION)
        trajectories.append(Trajectory(str(number), "0", "0", tuple(turns), reward=float(number % 2)))
    return trajectories


def whole(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Return each trajectory as one action: everything after the first prompt."""
    made = []
    for trajectory in trajectories:
        first, last = trajectory.turns[0], trajectory.turns[-1]
        action = (last.prompt_ids + last.action_ids)[len(first.prompt_ids) :]
        turn = Turn(trajectory.id, 0, first.prompt_ids, action)
        made.append(Trajectory(trajectory.id, "0", "0", (turn,), trajectory.reward))
    return made


def grpo(engine: LocalEngine, trajectories: Sequence[Trajectory]) -> None:
    """Take one step on all turns at once, each with its trajectory's advantage."""
    batch, turns = Batch(trajectories), turns_of(trajectories)
    advantage = dict(zip((t.id for t in trajectories), batch.advantages("group", "mean").tolist(), strict=True))
    objective = SequenceObjective(
        old=logprobs_by_key(engine, turns),
        advantages={turn.key: advantage[turn.trajectory] for turn in turns},
        multiplicities=batch.multiplicities,
    )
    engine.step(turns, objective, normalizer=len(trajectories))


def top_quarter(policy: LoadedPolicy) -> tuple[str, ...]:
    """Return patterns of the parameters in the top quarter of the layers."""
    count = int(policy.model.config.num_hidden_layers)
    return tuple(rf"\.layers\.{index}\." for index in range(count - max(1, count // 4), count))


def seconds_of(way: str, policy: LoadedPolicy, trajectories: list[Trajectory]) -> float:
    trainable = top_quarter(policy) if way.endswith("top quarter") else ()
    settings = OptimizerSettings(learning_rate=1e-6, trainable=trainable)
    if way.startswith("unshared"):
        engine: LocalEngine = UnsharedEngine(policy, settings)
        trajectories = (whole(trajectories) if way == WHOLE else trajectories)[:MEASURED]
    else:
        engine = LocalEngine(policy, settings, row_tokens=6000, batch_tokens=6000)
    started = time.process_time()
    if way.startswith("SeeUPO"):
        SeeUPO().update(engine, trajectories)
    else:
        grpo(engine, trajectories)
    seconds = time.process_time() - started
    return seconds * GROUP / len(trajectories)


WHOLE, SLICED = "unshared whole GRPO", "unshared sliced GRPO"
WAYS = ("SeeUPO", "GRPO", "SeeUPO, top quarter", "GRPO, top quarter", WHOLE, SLICED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=8, help="Number of the model's 30 layers.")
    parser.add_argument("--turns", type=int, nargs="+", default=[3, 6, 10])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    policy = load_policy(str(fetch("smollm2-135m", on_note=print)))
    policy.model.base_model.layers = policy.model.base_model.layers[: options.layers]
    policy.model.config.num_hidden_layers = options.layers

    results: dict[str, Any] = {"machine": machine(), "layers": options.layers, "turns": {}}
    rows = [["turns", "way", "seconds", "SeeUPO is", "SeeUPO, top quarter, is"]]
    for turns in options.turns:
        trajectories = random_trajectories(turns)
        best = dict.fromkeys(options.ways, float("inf"))
        for _ in range(options.repeats):
            for way in options.ways:
                seconds = seconds_of(way, policy, trajectories)
                print(f"{turns} turns, {way}: {seconds:.1f} s", flush=True)
                best[way] = min(best[way], seconds)
        against = {
            trained: {way: best[trained] / best[way] for way in options.ways if not way.startswith("SeeUPO")}
            for trained in options.ways
            if trained.startswith("SeeUPO")
        }
        results["turns"][str(turns)] = {"seconds": best, "seeupo_against": against}
        for way in options.ways:
            ratios = [f"{values[way]:.2f}x" if way in values else "" for values in against.values()]
            rows.append([str(turns), way, f"{best[way]:.2f}", *ratios])
    table(rows)
    write_results("seeupo_cost", results)


if __name__ == "__main__":
    main()
