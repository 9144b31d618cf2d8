"""Training on a simulated device, compared with the CPU.

python tests/learner/elsewhere_runs.py NAME...    prints the failures of each as JSON
"""

from __future__ import annotations

import copy
import io
import itertools
import json
import sys
import tempfile
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import elsewhere
import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, Text
from torch.utils._pytree import tree_map_only
from worlds import SpaceIdentityVectorEnv

import headrace as hr
from headrace.actors.collector import Collector, rollout_spec
from headrace.envs.make import make_vec
from headrace.learner.batches import gather
from headrace.learner.learner import Learner
from headrace.nn.normalizer import Normalizer
from headrace.nn.policy import Policy, policy_weights
from headrace.ops import tree
from headrace.rundir.checkpoint import load_weights
from headrace.rundir.checkpoint_writer import save_policy
from headrace.transport.slab import Slab, spec_of
from headrace.transport.weights import WeightStore
from headrace.types import Rollout

SHARED: dict[str, Any] = {"normalize_advantage": True, "entropy_coef": 0.01, "fused": False}
ALGOS = {
    "a2c": hr.A2C(**SHARED),
    "ppo": hr.PPO(
        epochs=2, minibatches=2, kl_coef=0.1, kl_target=0.01, value_clip=0.2,
        normalize_returns=True, **SHARED
    ),
    "impala": hr.IMPALA(
        epochs=1, replay_fraction=0.5, replay_capacity=8, optimizer="rmsprop", **SHARED
    ),
    "appo": hr.APPO(epochs=2, minibatches=2, clip_around="learner", **SHARED),
    "impact": hr.IMPACT(buffer_size=2, passes=2, **SHARED),
}  # fmt: skip
WRITTEN = {"normalize_observations": True, "normalize_values": True, "previous_action_reward": True}
NETWORKS = {
    "dense": hr.Network((8,), **WRITTEN),
    "lstm": hr.Network((8,), core="lstm", core_size=6, **WRITTEN),
    "gru": hr.Network((8,), core="gru", core_size=6),
}


class SceneEnv(gymnasium.Env):
    """Environment with an image, a map of symbols, an instruction and a position."""

    observation_space = Dict(
        camera=Box(0, 255, (20, 24, 3), np.uint8),
        map=Box(0, 255, (3, 4, 2), np.uint8),
        place=Box(-1.0, 1.0, (2,)),
        task=Text(20, charset="abcdefgh "),
    )
    action_space = Discrete(3)

    def _observed(self) -> dict[str, Any]:
        obs = self.observation_space.sample()
        return obs | {"map": obs["map"] % 5}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.observation_space.seed(seed)
            self._random = np.random.default_rng(seed)
        return self._observed(), {}

    def step(self, action: Any) -> Any:
        ended = self._random.random(2) < 0.2
        return self._observed(), float(action), bool(ended[0]), bool(ended[1]), {}


SCENE = hr.Network(
    (8,), core="lstm", core_size=6, conv="impala_deep", previous_action_reward=True,
    one_hot=("map",), num_symbols=5, image_layout="channels_last", normalize_values=True,
)  # fmt: skip
CASES: dict[str, tuple[Any, hr.Network, dict[str, Any], Any]] = {
    f"{algo}-{network}": (ALGOS[algo], NETWORKS[network], {"action_space": "dict", "mask": "obs"},
                          SpaceIdentityVectorEnv)
    for algo in ALGOS for network in ("dense", "lstm")
}  # fmt: skip
CASES["ppo-gru"] = ALGOS["ppo"], NETWORKS["gru"], {"action_space": "box"}, SpaceIdentityVectorEnv
# With a small epsilon optimisers take whole steps along gradients of pure rounding.
CASES["impala-scene"] = replace(ALGOS["impala"], optimizer_eps=1e-2), SCENE, {}, SceneEnv
CASES["appo-images"] = (replace(ALGOS["appo"], optimizer_eps=1e-2),
                        replace(SCENE, normalize_images=True), {}, SceneEnv)  # fmt: skip


def _left_behind(learner: Learner, part: str) -> None:
    if part == "replay":
        learner.state["replay"]._device = torch.device("cpu")
    elif part == "returns":
        learner.returns = Normalizer(1)
    elif part == "target":
        learner.state["target"].to("cpu")
    else:
        for normalizer in learner.policy.normalizers:
            normalizer.to("cpu")


# Parts of a learner that must be rejected if they stay on the CPU, by case.
LEFT_BEHIND = {
    "replay": "impala-lstm",
    "returns": "ppo-dense",
    "target": "impact-lstm",
    "statistics": "a2c-dense",
    "image statistics": "appo-images",
}


def rollouts(env: Any, network: hr.Network, kwargs: dict[str, Any]) -> tuple[Policy, list[Rollout]]:
    """Return a policy, and its fragments of 5 steps of 4 environments."""
    envs = make_vec(env, 4, "auto", kwargs)
    torch.manual_seed(1)
    policy = Policy(envs.single_observation_space, envs.single_action_space, network)
    slab = Slab(rollout_spec(policy, 5, 4, 0.99), 1, 1)
    collector = Collector(envs, policy, "TestEnv", 0.99)
    collector.reset(3)
    filled = []
    for _ in range(8):
        collector.fill(Rollout(**slab.trees[0]), 0)
        filled.append(Rollout(**tree.map_leaves(torch.clone, slab.trees[0])))
    return policy, filled


def learn(
    policy: Policy, algo: Any, filled: list[Rollout], device: Any, left_behind: str = ""
) -> dict[str, Any]:
    """Run a learner: updates, a checkpoint, updates of the restored learner, inference."""

    def new(policy: Policy) -> Learner:
        learner = Learner(policy, algo, device=device)
        if left_behind:
            _left_behind(learner, left_behind)
        return learner

    learner = new(policy)
    learner.ages.published(0, 0)

    def update(learner: Learner, part: list[Rollout]) -> list[float]:
        data = itertools.cycle([part[:2], part[2:]])
        found = learner.update(lambda: gather(next(data), device), 1e-3)
        return [v for k, v in sorted(found.items())]

    metrics = [update(learner, filled[:4])]
    file, kept = io.BytesIO(), [learner.state_dict(), learner.own_state()]
    torch.save(tree_to(kept, "cpu"), file)  # torch.load maps tensors of a GPU to the CPU
    saved, own = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    again = Policy(policy.observation_space, policy.action_space, policy.network)
    learner.close()
    learner = new(again)
    with tempfile.TemporaryDirectory() as folder:
        load_weights(save_policy(Path(folder), {}, policy, 1), again)
    learner.load_state_dict(saved)
    learner.load_own_state([own])
    metrics.append(update(learner, filled[4:]))
    batch = gather(filled[:2], device)
    ratio = learner.log_ratio(batch)
    store = WeightStore(spec_of(tree_to(policy_weights(again), "cpu")))
    store.publish(1, 0, policy_weights(again))
    acting = Policy(policy.observation_space, policy.action_space, policy.network)
    store.pull(0, policy_weights(acting))
    return {
        "metrics": metrics, "weights": tree_to(policy_weights(again), "cpu"),
        "published": policy_weights(acting), "log_ratio": ratio.cpu(), "said": said(again),
    }  # fmt: skip


def said(policy: Policy) -> list[Any]:
    """Return what a policy predicts for three observations, with and without recurrent state."""
    space = policy.observation_space
    space.seed(5)
    obs = [space.sample() for _ in range(3)]
    if "map" in obs[0]:
        obs = [one | {"map": one["map"] % 5} for one in obs]
    answers, state = [], None
    for one in obs:
        action, state = policy.predict(one, state, reward=0.5)
        answers.append(action)
    policy.predict(obs[0], deterministic=False)
    return answers


def tree_to(value: Any, device: str) -> Any:
    return tree_map_only(torch.Tensor, lambda x: x.to(device), value)


def run(name: str) -> None:
    """Raise unless training matches the CPU."""
    algo, network, kwargs, env = CASES[name]
    policy, filled = rollouts(env, network, kwargs)
    again = copy.deepcopy(policy)
    here = learn(policy, algo, filled, "cpu")
    with elsewhere.mode() as device:
        there = learn(again, algo, filled, device)
    assert again.policy_head.weight.device == device
    for own, others in zip(here["metrics"], there["metrics"], strict=True):
        np.testing.assert_allclose(others, own, rtol=1e-3, atol=1e-4)
    for what in ("weights", "published"):
        for key, value in here[what].items():
            torch.testing.assert_close(there[what][key], value, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(there["log_ratio"], here["log_ratio"], rtol=1e-3, atol=1e-4)


def refused(left_behind: str) -> None:
    """Raise unless a wrong device is an error."""
    algo, network, kwargs, env = CASES[LEFT_BEHIND[left_behind]]
    policy, filled = rollouts(env, network, kwargs)
    with elsewhere.mode() as device:
        try:
            learn(policy, algo, filled, device, left_behind)
        except elsewhere.WrongDevice:
            return
    raise AssertionError(f"{left_behind} may stay on the CPU")


def check_rules() -> None:
    """Raise unless the device has CUDA's rules."""
    here = torch.arange(3.0)
    with elsewhere.mode() as device:
        there, index = here.to(device), torch.tensor([1])
        allowed = (
            there + torch.tensor(1.0), there[index], there.index_put((index,), there[:1]),
            there[there > 1.0], torch.where(there > 1.0, there, 0.0),
            there.new_zeros(3).copy_(here),
        )  # fmt: skip
        assert all(x.device == device for x in allowed)
        assert [x.tolist() for x in allowed[:2]] == [[1.0, 2.0, 3.0], [1.0]]
        assert there.cpu().numpy().tolist() == [0.0, 1.0, 2.0]
        wrong = (
            lambda: there + here, lambda: here[index.to(device)], lambda: torch.cat([there, here]),
            lambda: there.index_select(0, index), lambda: there.index_put((index,), here[:1]),
            lambda: torch.where(here > 1.0, there, 0.0), lambda: there.numpy(),
            lambda: torch.rand(2, generator=torch.Generator(), device=device),
        )  # fmt: skip
        for number, call in enumerate(wrong):
            try:
                call()
            except (RuntimeError, TypeError):
                continue
            raise AssertionError(f"rule {number} is not kept")


def main(names: list[str]) -> None:
    errors: dict[str, str | None] = {}
    torch.set_num_threads(1)
    elsewhere.install()
    for name in names:
        try:
            if name == "rules":
                check_rules()
            elif name in LEFT_BEHIND:
                refused(name)
            else:
                run(name)
            errors[name] = None
        except Exception:
            errors[name] = traceback.format_exc()
    print(json.dumps(errors))


if __name__ == "__main__":
    main(sys.argv[1:] or ["rules", *CASES, *LEFT_BEHIND])
