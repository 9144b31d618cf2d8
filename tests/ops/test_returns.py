"""GAE, V-trace and their common recurrence."""

from __future__ import annotations

import functools
import math
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tries import examples

from headrace.ops import returns
from tests.ops.oracles import (
    Stream,
    gae_oracle,
    random_stream,
    recurrence_oracle,
    vtrace_oracle,
)

assert_equal = functools.partial(torch.testing.assert_close, rtol=0.0, atol=1e-9)
CLIPS = (
    {"lam": 1.0, "rho_bar": 1.0, "c_bar": 1.0, "pg_rho_bar": 1.0},
    {"lam": 0.7, "rho_bar": 1.5, "c_bar": 0.8, "pg_rho_bar": 2.5},
    {"lam": 0.9, "rho_bar": math.inf, "c_bar": 1.2, "pg_rho_bar": 0.6},
    {"lam": 0.5, "rho_bar": 1.3, "c_bar": math.inf, "pg_rho_bar": math.inf},
)
SHAPES = ((1, 6), (2, 6), (7, 4), (16, 3))


def gae(module: ModuleType, s: Stream, gamma: float, lam: float) -> tuple[Any, Any]:
    return module.gae(s.reward, s.value, s.terminated, s.first, gamma=gamma, lam=lam)


def vtrace(module: ModuleType, s: Stream, gamma: float, clips: dict[str, float]) -> Any:
    return module.vtrace(
        s.log_ratio, s.reward, s.value, s.terminated, s.first, gamma=gamma, **clips
    )


# The checks take the module so that test_mutants can hand them a broken one.


def check_recurrence(module: ModuleType) -> None:
    generator = torch.Generator().manual_seed(0)
    for num_steps in (1, 2, 3, 4, 5, 8, 9, 17, 32, 33):
        inputs, decays = torch.randn(2, num_steps, 3, generator=generator, dtype=torch.float64)
        decays[num_steps // 2, 0] = 0.0
        before = inputs.clone(), decays.clone()
        result = module.reverse_linear_recurrence(inputs, decays)
        assert_equal(result, recurrence_oracle(*before))
        assert torch.equal(inputs, before[0])
        assert torch.equal(decays, before[1])


def check_gae(module: ModuleType) -> None:
    for seed, (num_steps, num_columns) in enumerate(SHAPES):
        stream = random_stream(seed, num_steps, num_columns)
        stream.value.requires_grad_()
        for gamma, lam in ((0.99, 0.95), (0.9, 0.0), (1.0, 1.0)):
            results = gae(module, stream, gamma, lam)
            for result, expected in zip(results, gae_oracle(stream, gamma, lam), strict=True):
                assert not result.requires_grad
                assert_equal(result, expected.detach())


def check_vtrace(module: ModuleType) -> None:
    for seed, (num_steps, num_columns) in enumerate(SHAPES):
        stream = random_stream(seed, num_steps, num_columns)
        stream.value.requires_grad_()
        stream.log_ratio.requires_grad_()
        for clips in CLIPS:
            result = vtrace(module, stream, 0.97, clips)
            vs, pg_advantage, advantage = vtrace_oracle(stream, 0.97, **clips)
            assert not any(x.requires_grad for x in result)
            assert_equal(result.vs, vs.detach())
            assert_equal(result.pg_advantage, pg_advantage.detach())
            assert_equal(result.advantage, advantage.detach())


def test_the_recurrence_equals_its_sum_and_leaves_its_arguments_alone() -> None:
    check_recurrence(returns)


def test_gae_equals_the_literal_sum_over_each_episode() -> None:
    check_gae(returns)


def test_vtrace_equals_equation_1_over_each_episode() -> None:
    check_vtrace(returns)


streams = st.builds(
    random_stream,
    seed=st.integers(0, 2**31),
    num_steps=st.integers(1, 12),
    num_columns=st.integers(1, 3),
    end_rate=st.sampled_from((0.0, 0.15, 0.5)),
)
thresholds = st.one_of(st.floats(0.1, 4.0), st.just(math.inf))


@examples(60, derandomize=True)
@given(stream=streams, gamma=st.floats(0.0, 1.0), lam=st.floats(0.0, 1.0))
def test_gae_equals_the_oracle_on_any_stream(stream: Stream, gamma: float, lam: float) -> None:
    for result, expected in zip(
        gae(returns, stream, gamma, lam), gae_oracle(stream, gamma, lam), strict=True
    ):
        assert_equal(result, expected)


@examples(60, derandomize=True)
@given(
    stream=streams,
    gamma=st.floats(0.0, 1.0),
    lam=st.floats(0.0, 1.0),
    rho_bar=thresholds,
    c_bar=thresholds,
    pg_rho_bar=thresholds,
)
def test_vtrace_equals_the_oracle_on_any_stream_at_any_thresholds(
    stream: Stream, gamma: float, lam: float, rho_bar: float, c_bar: float, pg_rho_bar: float
) -> None:
    clips = {"lam": lam, "rho_bar": rho_bar, "c_bar": c_bar, "pg_rho_bar": pg_rho_bar}
    expected = vtrace_oracle(stream, gamma, **clips)
    for result, oracle in zip(vtrace(returns, stream, gamma, clips), expected, strict=True):
        torch.testing.assert_close(result, oracle, rtol=1e-9, atol=1e-9)


def test_the_random_streams_contain_every_case() -> None:
    many = [random_stream(seed, 6, 8) for seed in range(10)]
    assert any((s.terminated & s.truncated & ~s.filler).any() for s in many)
    assert any((s.truncated & ~s.terminated).any() for s in many)
    assert any(s.filler[0].any() for s in many)
    assert any(s.filler[-1].any() for s in many)
    assert any((s.terminated & s.filler).any() for s in many)
    assert {bool(x) for s in many for x in s.first[0]} == {False, True}


def test_the_lesson_s_worked_example_is_reproduced() -> None:
    log_target = torch.tensor([-0.5, -0.8, -0.4, -1.0, -0.6], dtype=torch.float64)
    log_behaviour = torch.tensor([-0.9, -1.1, -0.7, -1.3, -1.0], dtype=torch.float64)
    reward = torch.tensor([[1.0], [0.5], [2.0], [0.0], [1.5]], dtype=torch.float64)
    value = torch.tensor([[3.0], [2.8], [2.5], [2.0], [1.5], [0.0]], dtype=torch.float64)
    no = torch.zeros(6, 1, dtype=torch.bool)
    log_ratio = (log_target - log_behaviour)[:, None]
    result = returns.vtrace(log_ratio, reward, value, no[:-1], no, gamma=0.99)
    vs = torch.tensor([4.896094015, 3.9354485, 3.47015, 1.485, 1.5], dtype=torch.float64)
    advantage = torch.tensor([1.896094015, 1.1354485, 0.97015, -0.515, 0.0], dtype=torch.float64)
    assert_equal(result.vs[:, 0], vs)
    assert_equal(result.pg_advantage[:, 0], advantage)
    assert_equal(result.advantage[:, 0], advantage)


def test_on_policy_vtrace_targets_equal_gae_s_at_the_same_lambda() -> None:
    stream = random_stream(3, 20, 5)
    stream.log_ratio.zero_()
    _, target = gae(returns, stream, 0.98, 0.9)
    result = vtrace(returns, stream, 0.98, {"lam": 0.9})
    assert_equal(result.vs, target)


@pytest.mark.parametrize("offset", [1, 2])
def test_splitting_a_fragment_at_episode_ends_changes_nothing(offset: int) -> None:
    """Row before the reset step (offset 1) and after it (offset 2)."""
    stream = random_stream(11, 24, 1)
    ends = (stream.terminated | stream.truncated) & ~stream.filler
    cuts = [t + offset for t in range(22) if ends[t, 0]]
    assert len(cuts) > 3
    parts = [stream.rows(a, b) for a, b in zip([0, *cuts], [*cuts, 24], strict=True)]
    whole = [*gae(returns, stream, 0.9, 0.8), *vtrace(returns, stream, 0.9, CLIPS[1])]
    pieces = [[*gae(returns, p, 0.9, 0.8), *vtrace(returns, p, 0.9, CLIPS[1])] for p in parts]
    for i, expected in enumerate(whole):
        assert_equal(torch.cat([piece[i] for piece in pieces]), expected)


def test_fillers_have_advantage_zero_and_their_value_as_target() -> None:
    stream = random_stream(5, 12, 6)
    advantage, target = gae(returns, stream, 0.9, 0.8)
    result = vtrace(returns, stream, 0.9, CLIPS[2])
    for x in (advantage, result.advantage, result.pg_advantage):
        assert torch.equal(x[stream.filler], torch.zeros_like(x[stream.filler]))
    for x in (target, result.vs):
        assert torch.equal(x[stream.filler], stream.value[:-1][stream.filler])


def test_permuting_environments_permutes_outputs() -> None:
    stream = random_stream(6, 9, 5)
    order = torch.tensor([3, 0, 4, 1, 2])
    shuffled = Stream(**{name: x[:, order] for name, x in vars(stream).items()})
    for a, b in zip(
        vtrace(returns, stream, 0.9, CLIPS[1]),
        vtrace(returns, shuffled, 0.9, CLIPS[1]),
        strict=True,
    ):
        assert torch.equal(a[:, order], b)


def test_long_fragments_are_accurate_in_float32() -> None:
    stream = random_stream(8, 256, 2, end_rate=0.01)
    stream.value.mul_(10)
    expected = vtrace(returns, stream, 0.999, CLIPS[0])
    single = Stream(**{
        name: x.float() if x.is_floating_point() else x for name, x in vars(stream).items()
    })  # fmt: skip
    for a, b in zip(vtrace(returns, single, 0.999, CLIPS[0]), expected, strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "change", "error"),
    [
        ("value", lambda x: x[:-1], ValueError),
        ("value", lambda x: x[..., None], ValueError),
        ("value", lambda x: x.float(), TypeError),
        ("reward", lambda x: x[:, 0], ValueError),
        ("reward", lambda x: x[:0], ValueError),
        ("log_ratio", lambda x: x[:, :1], ValueError),
        ("log_ratio", lambda x: x.long(), TypeError),
        ("first", lambda x: x[1:], ValueError),
        ("first", lambda x: x.float(), TypeError),
        ("terminated", lambda x: x.float(), TypeError),
        ("terminated", lambda x: x.T, ValueError),
    ],
)
def test_a_wrong_shape_or_dtype_is_an_error(name: str, change: Any, error: type) -> None:
    stream = random_stream(0, 4, 3)
    setattr(stream, name, change(getattr(stream, name)))
    with pytest.raises(error):
        vtrace(returns, stream, 0.9, {})
    if name != "log_ratio":
        with pytest.raises(error):
            gae(returns, stream, 0.9, 0.9)


def test_the_recurrence_refuses_unequal_or_integer_arguments() -> None:
    x = torch.ones(3, 2)
    with pytest.raises(ValueError):
        returns.reverse_linear_recurrence(x, x[:2])
    with pytest.raises(ValueError):
        returns.reverse_linear_recurrence(x[0], x[0])
    with pytest.raises(TypeError):
        returns.reverse_linear_recurrence(x.long(), x.long())
    with pytest.raises(TypeError):
        returns.reverse_linear_recurrence(x, x.double())
