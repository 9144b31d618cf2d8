"""Fused gradients match autograd in float64 for every loss, distribution and activation."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math

import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from hypothesis import given
from hypothesis import strategies as st
from tries import examples, few_of

import headrace as hr
from headrace.algos import IMPACT
from headrace.algos.minibatches import shuffled
from headrace.learner import native
from headrace.learner.fused import FusedNetwork, can_fuse
from headrace.learner.learner import Learner
from headrace.learner.optimizer import Optimizer
from headrace.nn import Network, Policy
from headrace.ops import tree
from headrace.ops.distributions.scores import score
from headrace.spaces.actions import distribution_for
from headrace.types import Batch, SingleLearner

WHOLE, PARTS = {"epochs": 1, "minibatches": 1}, {"epochs": 2, "minibatches": 3}
ALGOS = {
    "a2c": hr.A2C(entropy_coef=0.1),
    "impala": hr.IMPALA(**WHOLE, entropy_coef=0.1),
    "impala-epsilon": hr.IMPALA(**WHOLE, correction="epsilon"),
    "impala-minibatches": hr.IMPALA(**PARTS, normalize_advantage=True),
    "appo": hr.APPO(**WHOLE, value_coef=0.0),
    "appo-decoupled": hr.APPO(**PARTS, clip_around="learner", entropy_coef=0.01),
    "ppo": hr.PPO(**PARTS, entropy_coef=0.01),
    "ppo-clipped-values-and-penalty": hr.PPO(**PARTS, value_clip=0.1, kl_coef=0.3, clip=0.05),
    "impact": IMPACT(kl_coef=0.1, buffer_size=2, t_target=5),
}
ACTIONS = {
    "discrete": Discrete(4),
    "multi": MultiDiscrete([3, 2, 5]),
    "box": Box(-1, 1, (3,)),
    "bits": MultiBinary(3),
    "nested": Tuple((Discrete(3), Dict(x=Box(-1, 1, (2,)), y=MultiDiscrete([2, 3])))),
}
NETWORKS = {
    "tanh": Network((9, 7)),
    "relu-popart": Network((9,), activation="relu", normalize_values=True),
    "elu-shared-normalised": Network(
        (6, 5, 4), activation="elu", shared=True, normalize_observations=True
    ),
}
FEW = [  # each kind of action and each network
    *(("discrete", "tanh"), ("multi", "elu-shared-normalised"), ("box", "relu-popart")),
    *(("bits", "tanh"), ("nested", "elu-shared-normalised"), ("nested", "relu-popart")),
]
CORES = {
    "lstm": Network((9,), core="lstm", core_size=5, normalize_values=True),
    "gru": Network((9, 7), core="gru", core_size=5),
}


@pytest.fixture(params=["compiled", "torch"])
def way(request, monkeypatch):
    """Runs a test with the compiled functions, and with torch instead of them."""
    if request.param == "torch":
        monkeypatch.setattr(native, "functions", lambda dtype: None)


def make_policy(action, network, observation=None, masked=False) -> Policy:
    torch.manual_seed(0)
    policy = Policy(observation or Box(-1, 1, (3,)), action, network, masked).double()
    move(policy)  # biases and log_std are zeros otherwise
    return policy


@torch.no_grad()
def move(policy: Policy) -> None:
    for p in policy.parameters():
        p += 0.1 * torch.randn_like(p)


def make_batch(policy: Policy, rows: int = 6, columns: int = 30) -> Batch:
    """Return an off-policy batch with NaN at reset steps."""
    first = torch.rand(rows + 1, columns) < 0.2
    obs = 2.0 * torch.randn(rows + 1, columns, 3, dtype=torch.float64)
    if policy.inputs.mask != "none":
        mask = torch.rand(rows + 1, columns, policy.distribution.num_mask) < 0.7
        obs = {"observation": {"x": obs}, "action_mask": mask}
    if policy.torso.normalizer is not None:
        policy.take(policy.moments(obs))
    if policy.popart is not None:
        policy.popart.move(policy.value_head, 1.0, 3.0)
    of, core = policy.distribution, policy.initial_core(columns)
    core = tree.map_leaves(torch.randn_like, core)
    with torch.no_grad():
        params = policy(obs, first, core)[0][:-1]
        action = of.sample(params, of.noise((rows, columns), None))
        log_prob = of.log_prob(params, action) + 0.3 * torch.randn(rows, columns)
    filler, nan = first[1:], math.nan
    reward = torch.randn(rows, columns, dtype=torch.float64)
    return Batch(
        obs=obs,
        first=first,
        action=action,
        log_prob=log_prob.masked_fill(filler, nan),
        reward=reward.masked_fill(filler, nan),
        terminated=torch.rand(rows, columns) < 0.1,
        valid=~filler,
        core=core,
        targets={},
    )


def check(policy: Policy, algo, batch: Batch, threads: int = 1, chunk: int = 10**9) -> None:
    """Return each optimiser step's gradient and metrics, fused and by autograd."""
    oracle = copy.deepcopy(policy)
    learners = [
        Learner(policy, dataclasses.replace(algo, fused=True), threads, chunk),
        Learner(oracle, dataclasses.replace(algo, fused=False)),
    ]
    state = learners[0].state
    for batch_of_step in algo.batches(policy, lambda: batch, state, SingleLearner()):
        move(policy)
        oracle.load_state_dict(policy.state_dict())
        found, expected = (one.gradient(batch_of_step) for one in learners)
        torch.testing.assert_close(found[0], expected[0], rtol=1e-7, atol=1e-9)
        assert found[2] == expected[2]
        assert found[1].keys() == expected[1].keys()
        for name, value in expected[1].items():
            assert float(found[1][name]) == pytest.approx(float(value), rel=1e-6, abs=1e-7), name
    for one in learners:
        one.close()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    ("action", "network"), few_of(list(itertools.product(ACTIONS, NETWORKS)), FEW)
)
def test_every_gradient_is_autograds(action, network):
    for algo in ALGOS.values():
        policy = make_policy(ACTIONS[action], NETWORKS[network])
        check(policy, algo, make_batch(policy))


@pytest.mark.parametrize("core", CORES)
def test_with_a_recurrent_core_too(core):
    for algo in ALGOS.values():
        policy = make_policy(ACTIONS["nested"], CORES[core])
        check(policy, algo, make_batch(policy), threads=2, chunk=90)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("algo", ALGOS)
def test_in_chunks_and_threads_too(algo):
    policy = make_policy(ACTIONS["box"], Network((8, 8)))
    check(policy, ALGOS[algo], make_batch(policy, 8, 200), threads=3, chunk=90)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("action", ["discrete", "multi", "nested"])
def test_under_action_masks_too(action):
    policy = make_policy(ACTIONS[action], Network((8,)), Dict(x=Box(-1, 1, (3,))), masked=True)
    for algo in ALGOS.values():
        check(policy, algo, make_batch(policy))


@pytest.mark.usefixtures("way")
def test_before_the_values_have_a_scale_their_head_is_not_trained():
    policy = make_policy(Discrete(3), Network((8,), normalize_values=True))
    batch = make_batch(policy)
    policy.popart.scale.zero_()
    policy.popart.inverse.zero_()
    check(policy, hr.PPO(**PARTS), batch)


@pytest.mark.parametrize("name", ["discrete", "multi", "box", "nested"])
def test_a_score_is_the_distributions_and_pulls_any_derivative_as_autograd_does(name):
    torch.manual_seed(0)
    of, num = distribution_for(ACTIONS[name], False), 7
    params = torch.randn(num, of.num_params, dtype=torch.float64)
    params[:, of.num_outputs :] = params[0, of.num_outputs :]
    params.requires_grad_()
    action = of.sample(params.detach(), of.noise((num,), None))
    log_prob, entropy = of.log_prob(params, action), of.entropy(params)
    d_log_prob, d_entropy = torch.randn(2, num, dtype=torch.float64)
    (expected,) = torch.autograd.grad((log_prob @ d_log_prob) + (entropy @ d_entropy), params)
    split = params.detach().t().split((of.num_outputs, of.num_params - of.num_outputs))
    found = score(of, split[0], split[1][:, 0], action)
    torch.testing.assert_close(found.log_prob, log_prob.detach())
    torch.testing.assert_close(found.entropy, entropy.detach())
    torch.testing.assert_close(torch.cat(found.pull(d_log_prob, d_entropy)).t(), expected)


def test_what_it_cannot_do_is_left_to_autograd():
    box, image = Box(-1, 1, (3,)), Box(0, 255, (36, 36, 3), "uint8")
    assert can_fuse(Policy(box, Discrete(2)))
    previous = Network(core="gru", core_size=4, previous_action_reward=True)
    assert not can_fuse(Policy(box, Discrete(2), previous))
    assert not can_fuse(Policy(image, Discrete(2), Network((4,))))
    assert not can_fuse(Policy(box, Discrete(2), Network(torso=torch.nn.Linear(3, 4))))

    policy = make_policy(Discrete(4), Network((8,)))
    policy.torso.requires_grad_(False)
    check(policy, hr.PPO(**PARTS), make_batch(policy))


def test_an_own_loss_passes_autograd_only_from_the_outputs_on():
    class Own(hr.PPO):
        def loss(self, policy, batch, state):
            params, value, _ = policy(batch.obs, batch.first, batch.core)
            total = (params.square().sum(-1) * value.exp()).sum()  # the bootstrap row's as well
            assert policy.distribution.n == 4
            sums = dict.fromkeys(("target_sum", "target_sq", "error_sum", "error_sq"), total)
            return total, {name: x.detach() for name, x in sums.items()}

        def batches(self, policy, fresh, state, group):
            yield fresh()

    policy = make_policy(Discrete(4), Network((8,), normalize_values=True))
    check(policy, Own(), make_batch(policy))


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_whole_updates_arrive_at_the_same_weights(optimizer):
    weights = []
    for fused in (True, False):
        torch.manual_seed(1)
        algo = hr.PPO(epochs=4, minibatches=3, optimizer=optimizer, kl_coef=0.1, fused=fused)
        policy = make_policy(ACTIONS["nested"], Network((8,), normalize_values=True))
        learner = Learner(policy, algo)
        metrics = [learner.update(lambda p=policy: make_batch(p), 1e-3) for _ in range(2)]
        weights.append(torch.cat([p.detach().flatten() for p in policy.parameters()]))
        assert math.isfinite(metrics[-1]["grad_norm"])
        learner.close()
    torch.testing.assert_close(*weights, rtol=1e-6, atol=1e-9)


def test_adam_in_one_operation_is_adam():
    flats = [torch.linspace(-1, 1, 50) for _ in range(2)]
    optimizers = [
        Optimizer("adam", flat, 1e-5, fused)
        for flat, fused in zip(flats, (True, False), strict=True)
    ]
    for seed in range(5):
        gradient = torch.randn(50, generator=torch.Generator().manual_seed(seed))
        for one in optimizers:
            one.step(gradient.clone(), 1e-2)
    torch.testing.assert_close(*flats, rtol=1e-6, atol=1e-6)
    a, b = (one.state_dict() for one in optimizers)
    assert a.keys() == b.keys()
    assert float(a["step"]) == float(b["step"]) == 5
    for name in ("mean", "square"):
        torch.testing.assert_close(a[name], b[name], rtol=1e-5, atol=1e-8)


@examples(40)
@given(
    rows=st.integers(1, 4),
    columns=st.integers(1, 13),
    epochs=st.integers(1, 3),
    minibatches=st.integers(1, 9),
    recurrent=st.booleans(),
    normalized=st.booleans(),
)
def test_whole_passes_are_the_same_minibatches(
    rows, columns, epochs, minibatches, recurrent, normalized
):
    policy = make_policy(ACTIONS["nested"], Network((4,)))
    batch = make_batch(policy, rows, columns)
    advantage = 5.0 + torch.randn(rows, columns, dtype=torch.float64)
    batch.targets = {"advantage": advantage, "other": batch.reward}
    batch.core = (torch.randn(columns, 2),) if recurrent else ()
    each = []
    for fused in (True, False):
        generator, over = torch.Generator().manual_seed(7), SingleLearner() if normalized else None
        parts = shuffled(batch, epochs, minibatches, generator, over, fused=fused)
        each.append(list(parts))
    for found, expected in zip(*each, strict=True):
        for field in dataclasses.fields(Batch):
            pair = getattr(found, field.name), getattr(expected, field.name)
            tree.map_leaves(
                lambda x, y: torch.testing.assert_close(x, y, equal_nan=True, rtol=1e-5, atol=1e-6),
                *pair,
            )


def test_a_gradient_is_not_overwritten_by_the_next():
    policy = make_policy(Discrete(4), Network((8,)))
    learner, batch = Learner(policy, hr.A2C()), make_batch(policy)
    first, _, _ = learner.gradient(batch)
    kept = first.clone()
    learner.gradient(dataclasses.replace(batch, reward=2.0 * batch.reward))
    assert torch.equal(first, kept)
    learner.close()


def test_it_knows_what_it_differentiates_by_hand():
    algo = hr.PPO()
    for action, known in (("discrete", True), ("nested", True), ("bits", False)):
        policy = Policy(Box(-1, 1, (3,)), ACTIONS[action], Network((4,)))
        learner = Learner(policy, algo)
        network = FusedNetwork(policy, learner.optimizer.memory["flat"])
        assert network.knows(algo, learner.state) is known
        for impact in (IMPACT(), IMPACT(kl_coef=0.1)):
            state = impact.init(policy)
            assert network.knows(impact, state) is (known and impact.kl_coef == 0)
        learner.close()
