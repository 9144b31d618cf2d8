from __future__ import annotations

import copy
import gc
import weakref

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

import headrace as hr
from headrace.algos import minibatches
from headrace.algos.common import policy_outputs
from headrace.learner import gradients
from headrace.learner.chunks import _CHUNK_BYTES, ChunkedPolicy, Chunks, max_steps
from headrace.learner.gradients import add, joined
from headrace.learner.learner import Learner
from headrace.learner.step_costs import PolicyStepCost, example, step_cost
from headrace.ops import tree
from headrace.types import Batch

ATARI = Box(0, 255, (4, 84, 84), np.uint8)
SMALL = Box(0, 255, (2, 20, 20), np.uint8)


def make_policy(space=SMALL, **network) -> hr.Policy:
    torch.manual_seed(0)
    return hr.Policy(space, Discrete(4), hr.Network(**{"conv": "impala_shallow", **network}))


def make_batch(policy, rows: int = 6, columns: int = 40) -> Batch:
    g = torch.Generator().manual_seed(3)
    first = torch.rand(rows + 1, columns, generator=g) < 0.15
    return Batch(
        obs=torch.randint(256, (rows + 1, columns, 2, 20, 20), generator=g).byte(),
        first=first,
        action=torch.randint(4, (rows, columns), generator=g),
        log_prob=-1.4 + 0.2 * torch.randn(rows, columns, generator=g),
        reward=torch.randn(rows, columns, generator=g),
        terminated=torch.rand(rows, columns, generator=g) < 0.1,
        valid=~first[1:],
        core=tree.map_leaves(
            lambda x: torch.randn(columns, *x.shape[1:], generator=g), policy.initial_core(1)
        ),
        targets={},
    )


def test_a_policy_whose_cost_was_told_is_forgotten_with_its_weights():
    policy = make_policy()
    weights = [weakref.ref(p) for p in policy.parameters()]
    step_cost(policy)
    del policy
    gc.collect()
    assert not any(p() is not None for p in weights)


def test_gradients_are_added_piece_by_piece(monkeypatch):
    monkeypatch.setattr(gradients, "_PIECE", 4)
    parts = [torch.randn(9).bfloat16(), torch.randn(4), torch.randn(1)]
    flat = torch.randn(14)
    expected = flat + torch.cat([x.float() for x in parts])
    add(flat, parts)
    assert torch.equal(flat, expected)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 2048), (64, 32), (7, 13), (200, 3)])
def test_chunks_have_every_column_once_and_at_most_so_many_steps(threads, rows, columns):
    for most, least in ((1, 1), (111, 5), (111, 512), (4096, 2048), (10**9, 1)):
        chunks = Chunks(threads, most, least)
        seen = [list(range(columns))[at] for at in chunks.columns(rows, columns)]
        chunks.close()
        assert [column for part in seen for column in part] == list(range(columns))
        sizes = [rows * len(part) for part in seen]
        assert all(size <= max(most, rows) for size in sizes)
        if len(sizes) > threads:  # then there are as many as the threads can share out
            assert rows * columns > most
        elif rows * columns <= least:
            assert len(sizes) <= -(-rows * columns // most)


def test_chunks_are_as_even_as_they_can_be_and_no_thread_is_without_one():
    def sizes(threads, most, least, columns):
        chunks = Chunks(threads, most, least)
        found = [len(range(columns)[at]) for at in chunks.columns(1, columns)]
        chunks.close()
        return found

    assert sizes(2, 111, 5, 128) == [64, 64]  # a minibatch of images
    assert sizes(2, 111, 5, 333) == [84, 84, 84, 81]  # four, though three would do
    assert sizes(2, 4096, 1800, 2048) == [1024, 1024]
    assert sizes(2, 4096, 1800, 1800) == [1800]
    assert sizes(1, 4096, 1800, 6000) == [3000, 3000]
    assert sizes(4, 10**9, 512, 1200) == [400, 400, 400]


def test_a_step_of_the_nature_network_costs_what_its_layers_add_up_to():
    cost = step_cost(make_policy(ATARI, conv="nature"))
    convolutions = 20 * 20 * 32 * (4 * 8 * 8 + 1) + 9 * 9 * 64 * (32 * 4 * 4 + 1)
    convolutions += 7 * 7 * 64 * (64 * 3 * 3 + 1)
    dense = (7 * 7 * 64 + 1) * 512 + 513 * 5
    assert cost.products == convolutions + dense
    # The image and what each layer gives are kept as float32; some of it is counted twice.
    kept = 4 * (4 * 84 * 84 + 20 * 20 * 32 + 9 * 9 * 64 + 7 * 7 * 64 + 512)
    assert kept <= cost.num_bytes <= 2 * kept
    assert 64 <= max_steps(cost, 4096) <= 128


@pytest.mark.parametrize("conv", ["nature", "impala_shallow", "impala_deep"])
def test_a_step_keeps_no_weights_also_where_they_are_scaled(conv):
    space = Box(0, 255, (12, 36, 36), np.uint8)
    plain, normalized = (
        step_cost(make_policy(space, conv=conv, normalize_images=normalizes))
        for normalizes in (False, True)
    )
    assert plain.num_bytes == normalized.num_bytes


@pytest.mark.parametrize(
    "space",
    [
        Discrete(5, start=3),
        gymnasium.spaces.Dict({"image": SMALL, "mission": gymnasium.spaces.MultiDiscrete([9] * 4)}),
    ],
)
def test_what_a_step_costs_can_be_told_of_any_space_and_changes_no_policy(space):
    policy = make_policy(space, core="lstm", core_size=8, previous_action_reward=True)
    policy.compute_in("bfloat16")
    before, chance = policy.precision, torch.get_rng_state()
    weights = sum(p.numel() for p in policy.parameters())
    cost = step_cost(policy)
    assert cost.products >= weights
    assert cost.num_bytes > 0
    assert policy.precision == before
    assert torch.equal(torch.get_rng_state(), chance)
    assert cost == step_cost(policy)
    assert len(tree.leaves(example(policy, 3))[0][0]) == 3


def test_a_chunk_has_a_step_however_much_that_keeps():
    assert max_steps(PolicyStepCost(10 * _CHUNK_BYTES, 1), 4096) == 1
    assert max_steps(PolicyStepCost(0, 1), 4096) == 4096


@pytest.mark.parametrize("threads", [1, 2])
def test_what_a_chunk_gave_is_held_no_longer_than_it_is_used(threads):
    chunks, seen = Chunks(threads, 1, 1), []
    for found in chunks.map(lambda at: torch.full((3,), at.start), 1, 8):
        assert found[0] == len(seen)
        assert not any(x() is not None for x in seen)
        seen.append(weakref.ref(found))
        del found
    chunks.close()
    assert len(seen) == 8


def test_a_gradient_in_parts_adds_up_as_a_whole_one():
    parts = [torch.randn(5), torch.randn(3).bfloat16(), torch.randn(1)]
    flat = torch.randn(9)
    expected = flat + torch.cat(parts)
    add(flat, parts)
    assert torch.equal(flat, expected)
    assert joined(parts).dtype == torch.float32
    assert torch.equal(joined(parts), torch.cat(parts))


@pytest.mark.parametrize("core", [None, "lstm"])
@pytest.mark.parametrize("threads", [1, 3])
def test_targets_computed_chunk_by_chunk_are_those_of_the_whole_batch(core, threads):
    policy = make_policy(core=core, core_size=8)
    batch = make_batch(policy)
    chunks = Chunks(threads, 50, 10)
    parts = ChunkedPolicy(policy, chunks)
    found, expected = policy_outputs(parts, batch), policy_outputs(policy, batch)
    inputs = batch.obs, batch.first, batch.core
    for ours, theirs in (
        (found.params, expected.params),
        (found.value, expected.value),
        (parts.values(*inputs), policy.values(*inputs)),
    ):
        assert not ours.requires_grad
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-5, atol=1e-5)
    tree.map_leaves(torch.testing.assert_close, parts(*inputs)[2], policy(*inputs)[2])
    assert parts.distribution is policy.distribution
    chunks.close()


@pytest.mark.parametrize(
    "algo",
    [hr.PPO(epochs=2, minibatches=3), hr.APPO(epochs=1, minibatches=3), hr.IMPACT(), hr.A2C()],
)
def test_images_learn_the_same_from_chunks_as_from_whole_batches(algo, monkeypatch):
    def updated(limit: int, threads: int) -> tuple[torch.Tensor, int]:
        monkeypatch.setattr("headrace.learner.chunks._CHUNK_BYTES", limit)
        learner = Learner(make_policy(), algo, threads)
        seen: list[int] = []
        for policy in (learner.policy, learner.state.get("target", make_policy())):
            policy.torso.register_forward_pre_hook(lambda _, x: seen.append(len(x[0])))
        learner.update(lambda: make_batch(learner.policy), 1e-3)
        learner.close()
        weights = [p.detach().flatten() for p in learner.policy.parameters()]
        return torch.cat(weights), max(seen)

    (whole, longest), (parts, shorter) = updated(1 << 40, 1), updated(1 << 18, 2)
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=2e-5)
    assert longest >= 6 * 40 // 3
    steps = (1 << 18) // step_cost(make_policy()).num_bytes
    assert shorter <= steps * 7 / 6  # with a bootstrap row in addition to 6 rows


def bfloat16_learner(**settings) -> Learner:
    policy = make_policy()
    policy.compute_in("bfloat16")
    return Learner(policy, hr.APPO(epochs=1, minibatches=1), **settings)


def test_weights_that_a_step_casts_once_have_the_gradient_of_those_cast_in_the_forward_pass():
    learner = bfloat16_learner(num_threads=2, chunk_steps=100)
    batch = make_batch(learner.policy)
    for _ in range(2):  # a step later the weights are others
        gradient, _, count = learner.gradient(batch)
        parts = [batch.columns(slice(i, i + 10)) for i in range(0, 40, 10)]
        losses = [learner.algorithm.loss(learner.policy, part, learner.state)[0] for part in parts]
        weights = list(learner.policy.parameters())
        expected = torch.autograd.grad(sum(losses), weights)  # under autocast
        flat = torch.cat([g.flatten() for g in expected])
        assert gradient.dtype == torch.float32
        assert count == batch.valid.sum()
        torch.testing.assert_close(gradient, flat, rtol=0.02, atol=0.002 * float(flat.abs().max()))
        assert all(p.grad is None and p.dtype == torch.float32 for p in weights)
        learner.step(batch, 1e-2)
    learner.close()


def test_weights_that_are_frozen_stay_so_where_others_are_cast_once():
    learner = bfloat16_learner()
    frozen = next(learner.policy.torso.parameters()).requires_grad_(False)
    gradient, _, _ = learner.gradient(make_batch(learner.policy))
    sizes = [p.numel() for p in learner.policy.parameters()]
    found = [bool(part.any()) for part in gradient.split(sizes)]
    assert found == [False] + [True] * (len(sizes) - 1)
    assert frozen.requires_grad is False
    learner.close()


def test_chunks_of_half_the_bytes_a_step_are_twice_as_long():
    longest = []
    for precision in ("float32", "bfloat16"):
        policy = make_policy(ATARI)
        policy.compute_in(precision)
        learner = Learner(policy, hr.APPO())
        longest.append(max(len(range(4096)[at]) for at in learner._chunks.columns(1, 4096)))
        learner.close()
    assert 1.8 * longest[0] <= longest[1] <= 2.2 * longest[0]


@pytest.mark.parametrize("normalize", [True, False])
def test_large_observations_are_shuffled_part_by_part_into_the_same_minibatches(
    normalize, monkeypatch
):
    algo = hr.PPO(epochs=2, minibatches=3, normalize_advantage=normalize)
    found = []
    for limit in (1 << 40, 0):
        monkeypatch.setattr(minibatches, "_WHOLE_BYTES", limit)
        learner = Learner(make_policy(), algo)
        learner.state["generator"].manual_seed(1)
        batch = make_batch(learner.policy)
        parts = algo.batches(learner.policy, lambda b=batch: b, learner.state, learner.group)
        found.append(list(parts))
    for whole, part in zip(*found, strict=True):
        assert torch.equal(whole.obs, part.obs)
        assert whole.obs._is_view()
        assert not part.obs._is_view()
        torch.testing.assert_close(whole.targets, part.targets)


@pytest.mark.parametrize("network", [{}, {"core": "lstm", "core_size": 4}])
def test_a_copy_of_the_policy_that_an_algorithm_is_given_is_a_policy(network):
    learner = Learner(make_policy(Box(-1, 1, (3,)), **network), hr.PPO(), 1)
    copied = copy.deepcopy(learner._for_targets)
    assert type(copied) is hr.Policy
    assert copied is not learner.policy
    learner.close()
