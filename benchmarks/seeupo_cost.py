"""What one SeeUPO update costs against GRPO's, on the same recorded trajectories.

One group of 8, a shared prompt of 1,000 tokens, 30 action and 30 observation tokens a turn, T = 3, 6, 10 turns;
SmolLM2-135M cut to its first layers, so that it finishes in minutes. Four ways:

- SeeUPO, ours: turn pools, tree-packed; log-probs before, a step and log-probs after it for every turn.
- GRPO, ours: whole trajectories, tree-packed; log-probs before, one step.
- GRPO, unshared whole trajectories: a row per trajectory.
- GRPO, unshared sliced turns: a row per turn, as the paper's set-up runs it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from side_by_side import machine, table, write_results

from seeupo.algorithms import SeeUPO
from seeupo.algorithms.batch import Batch, by_key
from seeupo.algorithms.objective import SequenceObjective
from seeupo.engines.local import LocalEngine
from seeupo.engines.optimizer import OptimizerSettings
from seeupo.models.batching import PaddedBatch
from seeupo.models.catalog import fetch
from seeupo.models.loading import LoadedPolicy, load_policy
from seeupo.models.logprobs import ActionLogProbs, _logprobs_behind
from seeupo.types import Trajectory, Turn, turns_of

GROUP, PROMPT, ACTION, OBSERVATION = 8, 1000, 30, 30


class UnsharedEngine(LocalEngine):
    """A row per sample with plain causal attention; like its peers it makes logits of the action's tokens only."""

    def _packed(self, samples: Sequence[Turn]) -> Iterator[PaddedBatch]:
        return (PaddedBatch([number], [sample]) for number, sample in enumerate(samples))

    def _action_logprobs(self, model: Any, batch: Any, *, entropies: bool = False) -> ActionLogProbs:
        (sample,) = batch.rows
        hidden = model.base_model(
            input_ids=torch.tensor([sample.prompt_ids + sample.action_ids]), use_cache=False
        ).last_hidden_state[0]
        targets = torch.tensor(sample.action_ids)
        behind = hidden[len(sample.prompt_ids) - 1 : -1]
        logprobs, _ = _logprobs_behind(behind, model.get_output_embeddings(), targets, 1.0, entropies)
        return ActionLogProbs(logprobs[None], None, torch.ones(1, len(targets), dtype=torch.bool))


def recorded(turns: int) -> list[Trajectory]:
    generator = torch.Generator().manual_seed(turns)

    def draw(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(100, 49_000, (count,), generator=generator).tolist())

    prompt, trajectories = draw(PROMPT), []
    for number in range(GROUP):
        history, samples = prompt, []
        for turn in range(turns):
            action = draw(ACTION)
            samples.append(Turn(str(number), turn, history, action))
            history = history + action + draw(OBSERVATION)
        trajectories.append(Trajectory(str(number), "0", "0", tuple(samples), reward=float(number % 2)))
    return trajectories


def whole(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Each trajectory as one action: everything behind the first prompt."""
    made = []
    for trajectory in trajectories:
        first, last = trajectory.turns[0], trajectory.turns[-1]
        action = (last.prompt_ids + last.action_ids)[len(first.prompt_ids) :]
        sample = Turn(trajectory.id, 0, first.prompt_ids, action)
        made.append(Trajectory(trajectory.id, "0", "0", (sample,), trajectory.reward))
    return made


def grpo(engine: LocalEngine, trajectories: Sequence[Trajectory]) -> None:
    """One step on all samples at once, each with its trajectory's advantage."""
    batch, samples = Batch(trajectories), turns_of(trajectories)
    advantage = dict(zip((t.id for t in trajectories), batch.advantages("group", "mean").tolist(), strict=True))
    objective = SequenceObjective(
        old=by_key(samples, engine.logprobs(samples)),
        advantages={sample.key: advantage[sample.trajectory] for sample in samples},
        multiplicities=batch.multiplicities,
    )
    engine.step(samples, objective, normalizer=len(trajectories))


def seconds_of(way: str, policy: LoadedPolicy, trajectories: list[Trajectory]) -> float:
    settings = OptimizerSettings(learning_rate=1e-6)
    if way.startswith("unshared"):
        engine: LocalEngine = UnsharedEngine(policy, settings)
        trajectories = whole(trajectories) if way == "unshared whole GRPO" else trajectories
    else:
        engine = LocalEngine(policy, settings, row_tokens=6000, batch_tokens=6000)
    started = time.perf_counter()
    if way == "SeeUPO":
        SeeUPO(measure_drift=False).update(engine, trajectories)
    else:
        grpo(engine, trajectories)
    return time.perf_counter() - started


WAYS = ("SeeUPO", "GRPO", "unshared whole GRPO", "unshared sliced GRPO")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4, help="how many of the model's 30 layers (default 4)")
    parser.add_argument("--turns", type=int, nargs="+", default=[3, 6, 10])
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    policy = load_policy(str(fetch("smollm2-135m", report=print)))
    policy.model.base_model.layers = policy.model.base_model.layers[: options.layers]
    policy.model.config.num_hidden_layers = options.layers

    results: dict[str, Any] = {"machine": machine(), "layers": options.layers, "turns": {}}
    rows = [["turns", "way", "seconds", "SeeUPO is"]]
    for turns in options.turns:
        trajectories = recorded(turns)
        best = dict.fromkeys(WAYS, float("inf"))
        for _ in range(options.repeats):
            for way in WAYS:
                best[way] = min(best[way], seconds_of(way, policy, trajectories))
        results["turns"][str(turns)] = {
            "seconds": best,
            "seeupo_against": {way: best["SeeUPO"] / best[way] for way in WAYS[1:]},
        }
        rows += [[str(turns), way, f"{best[way]:.2f}", f"{best['SeeUPO'] / best[way]:.2f}x"] for way in WAYS]
    table(rows)
    write_results("seeupo_cost", results)


if __name__ == "__main__":
    main()
