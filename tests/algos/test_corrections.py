"""IMPALA's four off-policy corrections (section 5.2.2) against loops over time."""

from __future__ import annotations

import dataclasses
import inspect
import math
from types import ModuleType

import pytest
import torch
from torch import Tensor

import headrace as hr
from headrace.algos import impala
from headrace.ops.distributions import Categorical
from headrace.types import Batch
from tests.ops.oracles import Stream, random_stream, vtrace_oracle
from tests.ops.test_mutants import mutate

CORRECTIONS = ("vtrace", "one_step", "epsilon", "none")
SETTINGS = {"gamma": 0.9, "lam": 0.8, "rho_bar": 1.2, "c_bar": 0.7, "pg_rho_bar": 1.5}
INF = math.inf


class Table(torch.nn.Module):
    """A tabular policy: logits ``[T+1, B, 3]`` and values ``[T+1, B]``."""

    def __init__(self, logits: Tensor, value: Tensor) -> None:
        super().__init__()
        self.distribution, self.popart, self.action_bounds = Categorical(3), None, None
        self.logits, self.value = torch.nn.Parameter(logits), torch.nn.Parameter(value)

    def forward(self, obs, first, core):
        return self.logits, self.value, core


def make_case(seed: int, on_policy: bool = False) -> tuple[Table, Batch, Stream, Tensor]:
    """Return policy, batch, the same as a stream, and log pi ``[T, B]`` with its graph."""
    stream = random_stream(seed, 11, 6)
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(12, 6, 3, generator=g, dtype=torch.float64)
    logits[2, :, 0] = -40.0  # where the action is 0, log pi is far below log 1e-6
    policy = Table(logits, stream.value.clone())
    action = torch.randint(3, (11, 6), generator=g)
    action[2, :2] = 0
    log_prob = policy.logits[:-1].log_softmax(-1).gather(-1, action[..., None])[..., 0]
    if on_policy:
        stream = dataclasses.replace(stream, log_ratio=torch.zeros_like(stream.log_ratio))
    batch = Batch(
        obs=(),
        first=stream.first,
        action=action,
        log_prob=log_prob.detach() - stream.log_ratio,
        reward=stream.reward,
        terminated=stream.terminated,
        valid=~stream.first[1:],
        core=(),
        targets={},
    )
    return policy, batch, stream, log_prob


def literal(correction: str, stream: Stream, log_prob: Tensor) -> tuple[Tensor, Tensor]:
    """Return the policy term, whose gradient is that of numbers times log pi, and value targets."""
    s = SETTINGS
    if correction == "vtrace":
        bars = (s["rho_bar"], s["c_bar"], s["pg_rho_bar"])
        vs, _, advantage = vtrace_oracle(stream, s["gamma"], s["lam"], *bars)
    else:
        on_policy = dataclasses.replace(stream, log_ratio=torch.zeros_like(stream.log_ratio))
        vs, _, advantage = vtrace_oracle(on_policy, s["gamma"], s["lam"], INF, INF, INF)
    loss = torch.zeros((), dtype=torch.float64)
    for t, b in (~stream.filler).nonzero().tolist():
        ratio = math.exp(stream.log_ratio[t, b].item())
        weighted = correction in ("vtrace", "one_step")
        weight = min(s["pg_rho_bar"], ratio) if weighted else 1.0
        term = log_prob[t, b]
        if correction == "epsilon":
            term = (term.exp() + 1e-6).log()
        elif weighted:  # the ratio contributes its value, and log pi the gradient
            term = 1.0 + term - term.detach()
        loss = loss - weight * advantage[t, b].item() * term
    return loss, vs


def check_corrections(module: ModuleType) -> None:
    for seed in range(4):
        for correction in CORRECTIONS:
            policy, batch, stream, log_prob = make_case(seed)
            algo = module.IMPALA(correction=correction, value_coef=0.5, clip=INF, **SETTINGS)
            loss, metrics = algo.loss(policy, batch, {})
            policy_term, vs = literal(correction, stream, log_prob)
            error = torch.where(batch.valid, policy.value[:-1] - vs, 0.0)
            expected = policy_term + 0.5 * 0.5 * error.square().sum()
            close = {"rtol": 1e-9, "atol": 1e-9}
            torch.testing.assert_close(loss, expected, **close)
            torch.testing.assert_close(metrics["policy_loss"], policy_term, **close)
            weights = (policy.logits, policy.value)
            for ours, theirs in zip(
                torch.autograd.grad(loss, weights, retain_graph=True),
                torch.autograd.grad(expected, weights),
                strict=True,
            ):
                torch.testing.assert_close(ours, theirs, **close)


def test_each_correction_is_the_loop_over_time_in_value_and_gradient():
    check_corrections(impala)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("ones = torch.zeros_like(log_ratio)", "ones = log_ratio"),
        (
            "vtrace(ones, *stream, **settings)",
            "vtrace(ones, *stream, **settings, c_bar=self.c_bar)",
        ),
        (", max_ratio=self.pg_rho_bar", ""),
        ("max_ratio=self.pg_rho_bar", "max_ratio=self.rho_bar"),
        ("common.by_task(outputs.popart, advantage)}", "vs - outputs.value[:-1]}"),
        ("clip=self.clip", "clip=None"),
        ('in ("vtrace", "one_step")', '== "vtrace"'),
        ('in ("vtrace", "one_step")', '!= "none"'),
        ('self.correction == "epsilon"', "False"),
        (
            '"rho_bar": self.rho_bar, "c_bar": self.c_bar',
            '"rho_bar": self.c_bar, "c_bar": self.rho_bar',
        ),
    ],
)
def test_a_broken_correction_is_caught(old, new):
    assert old in inspect.getsource(impala.IMPALA)
    with pytest.raises(AssertionError):
        check_corrections(mutate(impala, "IMPALA", old, new))


def test_a_changed_epsilon_is_caught(monkeypatch):
    monkeypatch.setattr(impala, "_EPSILON", 1e-5)
    with pytest.raises(AssertionError):
        check_corrections(impala)


def gradients(correction: str, seed: int, **settings) -> list[Tensor]:
    policy, batch, _, _ = make_case(seed, on_policy=True)
    if correction == "epsilon":
        batch.action[2] = batch.action[2].clamp(min=1)  # pi far above epsilon everywhere
        log_pi = policy.logits[:-1].detach().log_softmax(-1)
        batch.log_prob = log_pi.gather(-1, batch.action[..., None])[..., 0]
    loss, _ = hr.IMPALA(correction=correction, lam=0.8, **settings).loss(policy, batch, {})
    return list(torch.autograd.grad(loss, (policy.logits, policy.value)))


@pytest.mark.parametrize("seed", range(3))
def test_on_policy_all_corrections_have_the_same_targets_and_gradient(seed):
    expected = gradients("vtrace", seed)
    for correction in ("one_step", "none"):
        for ours, theirs in zip(gradients(correction, seed), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    logits, value = gradients("epsilon", seed)
    torch.testing.assert_close(value, expected[1], rtol=1e-12, atol=1e-12)
    same = torch.arange(12) != 2  # row 2 has other actions there
    torch.testing.assert_close(logits[same], expected[0][same], rtol=1e-3, atol=1e-4)


def test_no_correction_uses_no_ratio_at_all():
    losses = []
    for shift in (0.0, 5.0):
        policy, batch, _, _ = make_case(0)
        batch.log_prob = batch.log_prob + shift
        losses.append(hr.IMPALA(correction="none").loss(policy, batch, {})[0])
    assert torch.equal(losses[0], losses[1])
