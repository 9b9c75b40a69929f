"""The training loop on an engine and a sampler that share no code with the local ones: a bigram model and SGD."""

import random
from contextlib import contextmanager

import pytest
import torch

from seeupo.algorithms import ALGORITHMS, GRPO
from seeupo.config.model_settings import TinyConfig
from seeupo.envs.pool.pool import EnvPool
from seeupo.models.loading import load_policy
from seeupo.protocols import TrainableEngine
from seeupo.runs.run_directory import RunDirectory
from seeupo.training import loop
from seeupo.training.interrupts import Interrupted
from seeupo.training.loop import Loop
from seeupo.training.setup import Components, make_runner
from seeupo.types import Completion, CompletionEnd, StepMetrics
from training.small_runs import small
from training.test_train import InterruptAt

LEARNING_RATE = 10.0


class BigramEngine:
    """log pi(token | previous token) = log_softmax(logits[previous])[token], trained by plain SGD."""

    def __init__(self, vocab_size: int) -> None:
        self.logits = torch.zeros(vocab_size, vocab_size)
        self.reference = self.logits.clone()
        self.iteration, self.iterations, self.tokens = 0, [], 0
        self.capabilities = frozenset()

    def logprobs(self, turns, *, policy="current"):
        logits = self.logits if policy == "current" else self.reference
        return [action_logprobs(logits, turn) for turn in turns]

    def step(self, turns, objective, *, normalizer, agent=None):
        logits = self.logits.clone().requires_grad_(True)
        rows = [action_logprobs(logits, turn) for turn in turns]
        value = objective(torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), None, turns).sum() / normalizer
        value.backward()
        self.logits = self.logits + LEARNING_RATE * logits.grad
        return StepMetrics(agent, {"grad_norm": float(logits.grad.norm()), "objective": float(value.detach())})

    def begin_iteration(self, iteration):
        self.iteration = iteration
        self.iterations.append(iteration)

    def learning_rate(self, iteration):
        return LEARNING_RATE

    def set_optimizer(self, settings): ...

    def snapshot_reference(self):
        self.reference = self.logits.clone()

    def reset_critic(self): ...

    def copy_first_adapter(self): ...

    def save(self, path):
        torch.save({"logits": self.logits, "reference": self.reference}, path / "bigram.pt")

    def load(self, path):
        saved = torch.load(path / "bigram.pt", weights_only=True)
        self.logits, self.reference = saved["logits"], saved["reference"]

    def export(self, path):
        torch.save(self.logits, path / "policy.pt")

    def owns(self, model):
        return False

    def weights(self):
        yield "logits", self.logits


def action_logprobs(logits, turn):
    ids = torch.tensor((turn.prompt_ids[-1], *turn.action_ids))
    return logits[ids[:-1]].log_softmax(1).gather(1, ids[1:, None])[:, 0]


class BigramSampler:
    """Samples from a copy of the engine's weights, one request after the other."""

    def __init__(self, vocab_size: int, end: int) -> None:
        self.logits, self.end, self.version, self.waiting = torch.zeros(vocab_size, vocab_size), end, 0, []

    def submit(self, request):
        self.waiting.append(request)

    def poll(self):
        return [self.complete(self.waiting.pop(0))] if self.waiting else []

    def complete(self, request):
        generator, ids, logprobs = random.Random(request.seed), [], []
        while len(ids) < request.parameters.max_tokens and self.end not in ids:
            row = self.logits[(*request.prompt_ids, *ids)[-1]].log_softmax(0)
            ids.append(generator.choices(range(len(row)), weights=row.exp().tolist())[0])
            logprobs.append(float(row[ids[-1]]))
        end = CompletionEnd.END_OF_TURN if self.end in ids else CompletionEnd.LENGTH
        return Completion(id=request.id, ids=tuple(ids), logprobs=tuple(logprobs), end=end, version=self.version)

    def sync(self, engine, version):
        self.logits, self.version = dict(engine.weights())["logits"].clone(), version

    def release(self):
        """Nothing to free."""

    def draft_from(self, turns): ...


@contextmanager
def bigram_components(recipe, sampler_class=BigramSampler):
    with EnvPool(recipe.environment.name, options=recipe.environment.options) as pool:
        policy = load_policy("tiny", tiny=TinyConfig(width=8, layers=1, heads=2, words=pool.vocabulary()))
        size = len(policy.tokenizer)
        engine: TrainableEngine = BigramEngine(size)
        sampler = sampler_class(size, policy.tokenizer.eos_token_id)
        runner = make_runner(recipe, policy, pool, sampler)
        train_tasks, test_tasks = pool.first_tasks("train", None), pool.first_tasks("test", recipe.evaluation.tasks)
        yield Components(recipe, pool, engine, sampler, runner, runner, size, train_tasks, test_tasks)


def run_loop(recipe, path, *, callback=None, resume=False, **options):
    with bigram_components(recipe, **options) as components:
        run = RunDirectory.open(path) if resume else RunDirectory.create(path, "", {})
        with run.lock():
            training = Loop(components, run, callback)
            if resume:
                training.restore()
            training.run()
        return components.engine, [record for record in run.metrics() if record["kind"] == "iteration"]


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - {"ppo"}))
def test_the_loop_runs_every_algorithm_on_a_second_engine(name, tmp_path):
    recipe = small(algorithm=ALGORITHMS[name](), run={"iterations": 2})
    engine, records = run_loop(recipe, tmp_path / "run")
    assert [record["iteration"] for record in records] == [1, 2]
    assert engine.logits.abs().sum() > 0  # the warm start and the updates have moved it
    assert max(record["sampler_gap"] for record in records) < 1e-6
    assert records[0]["learning_rate"] == LEARNING_RATE


@pytest.mark.parametrize(
    ("mismatch", "recorded"),
    [
        ({}, []),
        ({"recorded_gap": 1e-4}, [1, 2, 3]),
        ({"recorded_gap": 1e-6}, []),
        ({"recorded_gap": 1e-4, "check_every": 2}, [1, 3]),
    ],
)
def test_recorded_log_probs_save_a_forward_pass_where_they_agree(mismatch, recorded, tmp_path, monkeypatch):
    calls = {1: 0, 2: 0, 3: 0}

    def logprobs(self, turns, *, policy="current"):
        calls[self.iteration + 1] += 1
        return original(self, turns, policy=policy)

    original = BigramEngine.logprobs
    monkeypatch.setattr(BigramEngine, "logprobs", logprobs)
    monkeypatch.setattr(loop, "sampler_gap", lambda engine, trajectories: 1e-5)
    run_loop(small(algorithm=GRPO(kl_coef=0.0), mismatch=mismatch, collect={"tasks": 8}), tmp_path / "run")
    # One pass is that of theta_k, and one follows the step.
    assert calls == {iteration: 1 if iteration in recorded else 2 for iteration in calls}


def test_a_second_engine_learns_and_resumes_exactly(tmp_path):
    recipe = small(run={"iterations": 6}, collect={"tasks": 8}, warm_start={"batches": 60})
    whole, records = run_loop(recipe, tmp_path / "whole")
    assert records[-1]["reward_mean"] > records[0]["reward_mean"]
    with pytest.raises(Interrupted):
        run_loop(recipe, tmp_path / "run", callback=InterruptAt(251))
    resumed, _ = run_loop(recipe, tmp_path / "run", resume=True)
    assert torch.equal(resumed.logits, whole.logits)


def test_a_sampler_that_misses_a_weight_sync_is_noticed(tmp_path):
    class Forgetful(BigramSampler):
        def sync(self, engine, version):
            if version == 0:
                super().sync(engine, version)

    with pytest.raises(RuntimeError, match=r"version 0 .*expected version 1"):
        run_loop(small(), tmp_path / "run", sampler_class=Forgetful)
