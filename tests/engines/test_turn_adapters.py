"""One adapter per turn: log-probs, steps, SeeUPO's sweep, checkpoints and the sampler."""

import json
from dataclasses import replace

import pytest
import torch

from engines.examples import engine, objective_for, policy, request, run, trajectories
from seeupo.config.model_settings import LoraSettings
from seeupo.config.optimizer_settings import OptimizerSettings
from seeupo.engines.local import LocalEngine
from seeupo.errors import ModelError
from seeupo.inference import make_sampler
from seeupo.inference.decoder import Decoder
from seeupo.models.loading import load_policy
from seeupo.models.logprobs import padded_logprobs
from seeupo.models.lora.adapters import add_adapters
from seeupo.models.lora.turn_adapters import TurnAdapters, activate, turn_adapters
from seeupo.types import Turn, turns_of
from studies.variants import MeasuredDrift

LORA = LoraSettings(rank=2, alpha=4, per_turn=3)


def adapters(local: LocalEngine) -> list[torch.Tensor]:
    """The weights of each adapter."""
    return [
        torch.cat([p.detach().flatten().clone() for n, p in local.policy.model.named_parameters() if f".{name}." in n])
        for name in ("turn_1", "turn_2", "turn_3")
    ]


def distinct(local: LocalEngine, scale: float = 0.3) -> LocalEngine:
    """Give the adapters different weights."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in local.policy.model.named_parameters():
            if ".lora_" in name:
                parameter.copy_(scale * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return local


def alone(local: LocalEngine, turn, adapter: int) -> torch.Tensor:
    activate(local.policy.model, adapter)
    return padded_logprobs(local.policy.model, [turn]).logprobs[0]


def test_adapter_of_a_turn():
    assert [TurnAdapters(3).of_turn(index) for index in range(5)] == [0, 1, 2, 2, 2]
    assert [TurnAdapters(2, turns_per_agent=2).of_turn(index) for index in range(6)] == [0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("options", [{}, {"packing": "padded"}, {"layers": 1}])
def test_log_probs_are_those_of_the_adapter_of_each_turn(options):
    layers = options.pop("layers", None)
    local = distinct(engine(lora=LoraSettings(rank=2, alpha=4, per_turn=3, layers=layers), **options))
    turns = turns_of(trajectories())
    for turn, actual in zip(turns, local.logprobs(turns), strict=True):
        torch.testing.assert_close(actual, alone(local, turn, turn.index).detach(), rtol=0, atol=1e-12)


def test_adapters_outside_the_layers_are_refused():
    with pytest.raises(ValueError, match="Remove embed_tokens and lm_head from the targets"):
        engine(lora=replace(LORA, targets=("q_proj", "lm_head")))


def test_adapters_start_equal():
    first, *others = adapters(engine(lora=LORA))
    assert first.abs().sum() > 0
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("moments", ["shared", "per_agent"])
def test_step_trains_the_adapter_of_its_turns_only(moments):
    local = distinct(engine(lora=LORA, moments=moments, weight_decay=0.1))
    turns = [turn for turn in turns_of(trajectories()) if turn.index == 1]
    for _ in range(2):
        before = adapters(local)
        local.step(turns, objective_for(local, turns), normalizer=8, agent=1)
        assert [torch.equal(old, new) for old, new in zip(before, adapters(local), strict=True)] == [True, False, True]


def test_sweep_equals_a_loop_with_one_model_per_turn():
    """SeeUPO with separate adapters, against plain autograd on one adapter after another."""
    options = {"lora": LORA, "beta1": 0.0, "weight_decay": 0.0, "max_grad_norm": None, "learning_rate": 1e-2}
    local, plain = distinct(engine(**options)), distinct(engine(**options))
    data = trajectories()
    algorithm = MeasuredDrift(ratio="product", clip=(0.2, 0.2), drift_every=1)
    update = algorithm.update(local, data)

    rewards = torch.tensor([tau.reward for tau in data], dtype=torch.float64).view(2, 4)
    advantages = (rewards - rewards.mean(1, keepdim=True)).flatten()
    carried = advantages / advantages.std(correction=0)
    model = plain.policy.model
    for t in (2, 1, 0):
        members = [number for number, tau in enumerate(data) if len(tau.turns) > t]
        old = [alone(plain, data[n].turns[t], t).detach().sum() for n in members]
        activate(model, t)
        parameters = [p for name, p in model.named_parameters() if f".turn_{t + 1}." in name]
        objective = 0.0
        for n, before in zip(members, old, strict=True):
            ratio = (alone(plain, data[n].turns[t], t).sum() - before).exp()
            objective = objective + torch.minimum(ratio * carried[n], ratio.clamp(0.8, 1.2) * carried[n])
        gradients = torch.autograd.grad(-objective / len(data), parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.sub_(1e-2 * gradient / (gradient.abs() + 1e-8))  # the first step of AdamW
            for n, before in zip(members, old, strict=True):
                carried[n] *= (alone(plain, data[n].turns[t], t).sum() - before).exp()
    for actual, expected in zip(adapters(local), adapters(plain), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-7)

    # No later update moved an earlier turn, so M is A times the ratios of the final policy.
    drifts = [m.values["drift_rms"] for m in update.metrics if "drift_rms" in m.values]
    assert drifts
    assert set(drifts) == {0.0}
    actual = [tau.credit.turns[-1].carried_after for tau in update.trajectories]  # of the first turn
    carried_found = torch.tensor(actual, dtype=torch.float64)
    torch.testing.assert_close(carried_found, carried, rtol=1e-6, atol=0)


def test_resume_is_exact(tmp_path):
    turns = turns_of(trajectories())
    local = engine(lora=LORA, reference=True)
    objective = objective_for(local, turns)
    local.step(turns, objective, normalizer=8)
    local.save(tmp_path)
    loaded = engine(lora=LORA, reference=True)
    loaded.load(tmp_path)
    for side in (local, loaded):
        side.step(turns, objective, normalizer=8)
    assert all(torch.equal(one, other) for one, other in zip(adapters(local), adapters(loaded), strict=True))
    reference = [side.logprobs(turns, policy="reference") for side in (local, loaded)]
    assert all(torch.equal(one, other) for one, other in zip(*reference, strict=True))


def test_copy_first_adapter_makes_all_equal():
    local = distinct(engine(lora=LORA))
    first = adapters(local)[0]
    local.copy_first_adapter()
    assert all(torch.equal(first, parameter) for parameter in adapters(local))


@pytest.mark.parametrize("layers", [None, 1])
@pytest.mark.parametrize("snapshots", [True, False])
def test_mixed_turns_in_one_batch_are_sampled_as_one_by_one(snapshots, layers, monkeypatch):
    """Also in episodes, whose next turn extends the tokens of another adapter; large models have no snapshots."""
    if not snapshots:
        monkeypatch.setattr(Decoder, "_snapshot", lambda self: None)
    local = distinct(LocalEngine(policy(), OptimizerSettings(), lora=replace(LORA, layers=layers)))
    requests = [
        replace(request(str(n), range(1, 4 + 2 * (n % 6)), seed=n, episode=f"e{n % 4}"), agent=n % 4) for n in range(16)
    ]
    together = run(make_sampler(local.policy), requests)
    for sent_request in requests:
        sampler = make_sampler(local.policy)
        (completions,) = run(sampler, [sent_request]).values()
        assert completions.ids == together[sent_request.id].ids
        activate(local.policy.model, min(sent_request.agent, 2))
        turn = Turn("t", sent_request.agent, sent_request.prompt_ids, completions.ids)
        expected = padded_logprobs(local.policy.model, [turn], temperature=0.8).logprobs[0].detach()
        torch.testing.assert_close(torch.tensor(completions.logprobs, dtype=torch.float64), expected)
        torch.testing.assert_close(torch.tensor(together[sent_request.id].logprobs, dtype=torch.float64), expected)


@pytest.mark.parametrize("layers", [None, 1])
@pytest.mark.parametrize("snapshots", [True, False])
def test_rows_of_all_adapters_share_each_pass_and_prefixes_of_their_adapter(layers, snapshots, monkeypatch):
    """Four episodes of three turns, two adapters, in step and out of step."""
    if not snapshots:
        monkeypatch.setattr(Decoder, "_snapshot", lambda self: None)
    local = distinct(LocalEngine(policy(), OptimizerSettings(), lora=replace(LORA, per_turn=2, layers=layers)))
    sampler, prompts = make_sampler(local.policy), {n: (*range(40), 7 + n) for n in range(4)}
    for shift in range(5):  # episode n is at turn shift - n % 3
        requests = [
            replace(request(f"{n}.{turn}", prompts[n], seed=n, episode=f"e{n}"), agent=turn)
            for n in range(4)
            if 0 <= (turn := shift - n % 3) < 3
        ]
        for sent_request in requests:
            sampler.submit(sent_request)
        completions, before = {}, sampler.prefilled_tokens
        while len(completions) < len(requests):
            completions |= {completion.id: completion for completion in sampler.poll()}
        # The common tokens are computed once per adapter, then the private ones that another adapter has computed.
        private = [(0, len(request.prompt_ids) - 41, 3)[request.agent] for request in requests]
        assert sampler.prefilled_tokens - before == 40 * (shift < 2) + sum(private)
        for sent_request in requests:
            turn = Turn("t", sent_request.agent, sent_request.prompt_ids, completions[sent_request.id].ids)
            activate(local.policy.model, min(sent_request.agent, 1))
            expected = padded_logprobs(local.policy.model, [turn], temperature=0.8).logprobs[0].detach()
            torch.testing.assert_close(
                torch.tensor(completions[sent_request.id].logprobs, dtype=torch.float64), expected
            )
            prompts[int(sent_request.id[0])] = (*sent_request.prompt_ids, *completions[sent_request.id].ids, 11, 12, 13)


def test_sampler_with_its_own_copy_gets_all_adapters():
    local, copy = distinct(engine(lora=LORA)), policy()
    add_adapters(copy.model, LORA)
    sampler = make_sampler(copy)
    sampler.sync(local, 4)
    for name, parameter in local.policy.model.named_parameters():
        assert torch.equal(parameter, copy.model.get_parameter(name))
    assert sampler.version == 4


def test_sampler_notices_missing_sync_and_missing_turn():
    local = engine(lora=LORA)
    sampler = make_sampler(local.policy)
    with pytest.raises(ValueError, match="names no turn"):
        sampler.submit(request("a", [1, 2]))


# --- Roles ------------------------------------------------------------------------------------------------------------

ROLES = LoraSettings(rank=2, alpha=4, per_role=("planner", "worker"))


def in_roles(turns):
    """Give even turns to the worker and odd ones to the planner."""
    return [replace(turn, agent_role=("worker", "planner")[turn.index % 2]) for turn in turns]


def test_adapter_of_a_role():
    adapters = TurnAdapters.from_settings(ROLES)
    assert adapters.names == ("role_planner", "role_worker")
    assert [adapters.of_turn(index, role) for index, role in ((5, "planner"), (None, "worker"))] == [0, 1]
    with pytest.raises(ModelError, match="a turn of the role 'critic': expected planner or worker"):
        adapters.of_turn(0, "critic")


@pytest.mark.parametrize("moments", ["shared", "per_agent"])
def test_log_probs_and_steps_are_those_of_the_adapter_of_the_role(moments):
    local = distinct(engine(lora=ROLES, moments=moments, weight_decay=0.1))
    turns = in_roles(turns_of(trajectories()))
    for turn, actual in zip(turns, local.logprobs(turns), strict=True):
        expected = alone(local, turn, ROLES.per_role.index(turn.agent_role)).detach()
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)

    def weights():
        named = list(local.policy.model.named_parameters())
        return {
            r: torch.cat([p.detach().flatten().clone() for n, p in named if f".role_{r}." in n]) for r in ROLES.per_role
        }

    for role in ROLES.per_role:
        before, of_role = weights(), [turn for turn in turns if turn.agent_role == role]
        local.step(of_role, objective_for(local, of_role), normalizer=8, agent=f"{role}:0")
        after = weights()
        assert [name for name in before if not torch.equal(before[name], after[name])] == [role]
    with pytest.raises(ModelError, match="a turn of the role '': expected planner or worker"):
        local.logprobs(turns_of(trajectories()))


def test_requests_are_sampled_with_the_adapter_of_their_role():
    local = distinct(LocalEngine(policy(), OptimizerSettings(), lora=ROLES))
    requests = [
        replace(request(str(n), (1, 2, 3), seed=n, episode=f"e{n % 4}"), agent_role=ROLES.per_role[n % 2])
        for n in range(8)
    ]
    sampler = make_sampler(local.policy)
    completions = run(sampler, requests)
    for number, sent in enumerate(requests):
        turn = Turn("t", 0, sent.prompt_ids, completions[sent.id].ids)
        activate(local.policy.model, number % 2)
        expected = padded_logprobs(local.policy.model, [turn], temperature=0.8).logprobs[0].detach()
        torch.testing.assert_close(torch.tensor(completions[sent.id].logprobs, dtype=torch.float64), expected)
    with pytest.raises(ModelError, match="a turn of the role 'critic'"):
        sampler.submit(replace(requests[0], agent_role="critic"))


def test_folder_of_roles(tmp_path):
    tiny = LocalEngine(load_policy("tiny"), OptimizerSettings(), lora=ROLES)
    distinct(tiny)
    tiny.export(tmp_path)
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"base", "role_planner", "role_worker"}
    loaded = load_policy(str(tmp_path)).model
    assert turn_adapters(loaded) == TurnAdapters(2, roles=("planner", "worker"))
    for name, parameter in tiny.policy.model.named_parameters():
        assert torch.equal(parameter, loaded.get_parameter(name))
    index = tmp_path / "turn_adapters.json"
    for roles in (["planner"], ["planner", "../worker"], ["planner", "planner"], ["planner", 1], "pw"):
        index.write_text(json.dumps({**json.loads(index.read_text()), "roles": roles}))
        with pytest.raises(ModelError, match="expected one per adapter"):
            load_policy(str(tmp_path))


def test_invalid_roles_are_refused():
    with pytest.raises(ValueError, match="per_turn and per_role: expected at most one of them"):
        LoraSettings(per_turn=2, per_role=("planner",))
    for roles in (("a", "a"), ("",), ("a b",), ("../a",)):
        with pytest.raises(ValueError, match="expected different names of up to 64 letters"):
            LoraSettings(per_role=roles)
