"""With frozen weights actor and learner compute the same policy in every configuration."""

from __future__ import annotations

import itertools

import pytest
import torch
from worlds import BrightQuarter, SpaceIdentityVectorEnv

from headrace.actors.collector import Collector, rollout_spec
from headrace.algos.common import policy_outputs
from headrace.envs.make import make_vec
from headrace.learner.batches import gather
from headrace.nn import Network, Policy
from headrace.ops import tree
from headrace.transport.slab import Slab
from headrace.types import Rollout


def filler(env, network, num_envs=6, num_steps=24, env_kwargs=None):
    """Return a policy with random weights and statistics, and a function that fills a slot."""
    envs = make_vec(env, num_envs, "auto", env_kwargs)
    _, infos = envs.reset(seed=0)
    torch.manual_seed(1)
    policy = Policy(
        envs.single_observation_space, envs.single_action_space, network, "action_mask" in infos
    )
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(0.2 * torch.randn_like(p))
    if network.normalize_observations:
        rows = tree.map_leaves(lambda x: x.unsqueeze(0), policy.inputs.example(50))
        noisy = tree.map_leaves(
            lambda x: x + torch.randn_like(x) if x.is_floating_point() else x, rows
        )
        policy.take(policy.moments(noisy))
    slab = Slab(rollout_spec(policy, num_steps, num_envs), 1, 1)
    collector = Collector(envs, policy, "TestEnv")
    collector.reset(3)

    def fill() -> Rollout:
        slab.poison(0)
        collector.fill(Rollout(**slab.trees[0]), 0)
        return Rollout(**tree.map_leaves(torch.clone, slab.trees[0]))

    return policy, fill


SETTINGS = [
    {"core": core, "previous_action_reward": previous, "normalize_observations": normalize}
    for core, previous, normalize in itertools.product(
        (None, "lstm", "gru"), (False, True), (False, True)
    )
]


CASES = list(itertools.product(("discrete", "dict"), SETTINGS, (None, "obs", "info")))


def part(number: int):
    """A case; in `make test` each space meets each of the settings, under one of the masks."""
    space, settings, mask = case = CASES[number]
    chosen = (number // 36 + number // 3 + number) % 3 == 0
    name = "-".join(map(str, (space, *settings.values(), mask)))
    return pytest.param(*case, id=name, marks=() if chosen else pytest.mark.slow)


@pytest.mark.parametrize(("space", "settings", "mask"), map(part, range(len(CASES))))
def test_log_probabilities_agree_on_every_valid_step(space, settings, mask):
    kwargs = {"action_space": space, "mask": mask, "nested": space == "dict"}
    network = Network((16,), core_size=12, **settings)
    policy, fill = filler(SpaceIdentityVectorEnv, network, env_kwargs=kwargs)
    for _ in range(3):
        batch = gather([fill()])
        with torch.no_grad():
            log_prob = policy_outputs(policy, batch).log_prob
        assert not batch.valid.all()
        assert (log_prob - batch.log_prob)[batch.valid].abs().max() <= 1e-5


def test_log_probabilities_of_normalised_images_agree():
    policy, fill = filler(BrightQuarter, Network(conv="impala_shallow", normalize_images=True))
    seen = torch.randint(0, 256, (1, 50, *policy.observation_space.shape), dtype=torch.uint8)
    policy.take(policy.moments(seen))
    assert policy.torso.normalizers[0].center.mean() > 100
    batch = gather([fill()])
    with torch.no_grad():
        log_prob = policy_outputs(policy, batch).log_prob
    assert (log_prob - batch.log_prob)[batch.valid].abs().max() <= 1e-5


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("core", [None, "lstm"])
def test_log_probabilities_of_bounded_actions_agree_clipped_or_squashed(squash, core):
    network = Network((16,), core=core, core_size=12, squash_actions=squash, log_std_init=0.5)
    policy, fill = filler("Pendulum-v1", network, num_steps=210)
    batch = gather([fill()])
    with torch.no_grad():
        log_prob = policy_outputs(policy, batch).log_prob
    assert (log_prob - batch.log_prob)[batch.valid].abs().max() <= 1e-5


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_an_unroll_of_two_rollouts_equals_two_unrolls_with_stored_state(core):
    kwargs = {"action_space": "discrete", "mask": "obs"}
    network = Network((16,), core=core, core_size=12, previous_action_reward=True)
    policy, fill = filler(SpaceIdentityVectorEnv, network, num_steps=11, env_kwargs=kwargs)
    fill()
    one, two = fill(), fill()
    steps = len(one.reward)
    obs = tree.map_leaves(lambda a, b: torch.cat([a[:-1], b]), one.obs, two.obs)
    first = torch.cat([one.first[:-1], two.first])
    with torch.no_grad():
        params, value, end = policy(obs, first, one.core)
        parts = [policy(r.obs, r.first, r.core) for r in (one, two)]
    torch.testing.assert_close(params[: steps + 1], parts[0][0], atol=1e-5, rtol=0)
    torch.testing.assert_close(params[steps:], parts[1][0], atol=1e-5, rtol=0)
    torch.testing.assert_close(value[steps:], parts[1][1], atol=1e-5, rtol=0)
    for name, leaf in end.items():
        torch.testing.assert_close(leaf, parts[1][2][name], atol=1e-5, rtol=0)


def test_previous_inputs_are_the_last_steps_own_and_zero_after_a_reset():
    kwargs = {"action_space": "multidiscrete"}
    network = Network((16,), previous_action_reward=True)
    _, fill = filler(SpaceIdentityVectorEnv, network, env_kwargs=kwargs)
    before, after = fill(), fill()
    for rollout in (before, after):
        obs, first = rollout.obs, rollout.first
        same = ~first[1:]
        assert torch.equal(obs["previous_action"][1:][same], rollout.action[same])
        assert torch.equal(obs["previous_reward"][1:][same], rollout.reward[same])
        assert not obs["previous_action"][first].any()
        assert not obs["previous_reward"][first].any()
        assert first[1:].any()
    assert torch.equal(after.obs["previous_action"][0], before.obs["previous_action"][-1])
    assert before.obs["previous_reward"][-1].any()


@pytest.mark.parametrize("mask", ["obs", "info"])
@pytest.mark.parametrize("space", ["discrete", "multidiscrete", "tuple"])
def test_a_forbidden_action_is_never_taken_and_the_learner_applies_the_stored_mask(space, mask):
    kwargs = {"action_space": space, "mask": mask}  # the environment raises on a forbidden action
    policy, fill = filler(SpaceIdentityVectorEnv, Network((16,)), env_kwargs=kwargs)
    rollout = fill()
    allowed = rollout.obs["action_mask"]
    assert allowed.dtype == torch.bool
    assert not allowed.all()
    params, _, _ = policy(rollout.obs, rollout.first, rollout.core)
    logits = params[..., : allowed.shape[-1]]
    some = allowed.any(-1)
    if space == "discrete":
        assert torch.equal(logits[some] == -torch.inf, ~allowed[some])
    else:
        assert (logits[some] == -torch.inf).any()
