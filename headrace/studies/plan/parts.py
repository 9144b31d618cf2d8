"""Micro-benchmarks of the work of an actor and a learner in this process."""

from __future__ import annotations

import copy
import itertools
import time
from dataclasses import replace

import torch

from headrace.actors.actor import open_collector
from headrace.actors.spec import ActorSpec
from headrace.config import Config
from headrace.envs.make import opened
from headrace.envs.names import env_of
from headrace.envs.probe import probe
from headrace.envs.step_cost import takes_some_only, timed
from headrace.learner.batches import gather
from headrace.nn.policy import policy_weights
from headrace.ops import stacks, tree
from headrace.rundir.episodes import Episodes
from headrace.rundir.metric_accumulators import MetricAccumulator
from headrace.schedules import at_start
from headrace.studies.stopwatch import BlockTimer, measure_time
from headrace.trainer import symbols
from headrace.trainer.auto_precision import settle
from headrace.trainer.metrics_allreduce import MetricsAllReduce
from headrace.trainer.policies import new_learner, new_policy
from headrace.trainer.start import check_agents, held_stacks
from headrace.transport.slab import Slab, spec_of
from headrace.transport.weights import WeightStore
from headrace.types import Batch, Rollout, SingleLearner

_ENGINES = {
    "EnvPool": "envpool",
    "SyncVectorEnv": "sync",
    "Processes": "async",
    "Threads": "threads",
}


def actor_spec(config: Config) -> ActorSpec:
    """Return the spec of a run's actor, with a new policy.

    Raises:
        ConfigError: the environment can't be created.
    """
    config = config.settled
    arguments = config.environment, config.engine, config.env_kwargs, config.seed, config.wrappers
    probed = probe(*arguments)
    num_frames = held_stacks(config, probed)
    config = symbols.settle(config, probed, SingleLearner(), lambda line: None)
    config = replace(config, engine=probed.engine, stacked_frames=num_frames)
    policy = new_policy(config, probed)
    probed.check_step()
    check_agents(config, probed)
    config = settle(config, policy, SingleLearner(), lambda line: None)
    return config.actor_spec(env_of(probed.env, 0), policy, agents=probed.agents)


class ActorBenchmark:
    """Benchmark of acting: environments, and a slot that is filled repeatedly."""

    def __init__(self, spec: ActorSpec) -> None:
        self._spec = spec
        self._envs, self._collector = open_collector(spec, spec.policy)
        self._collector.reset(spec.settings.seed)
        self.slot = Rollout(**Slab(spec.layout(), 1, 0).trees[0])
        self._valid = self._steps = 0
        self._limit_s = 1.0

    @property
    def engine(self) -> str:
        """Return the engine that created the environments."""
        envs = getattr(self._envs, "games", self._envs)
        return _ENGINES.get(type(envs.unwrapped).__name__, "native")

    @property
    def valid_share(self) -> float:
        """Return the share of valid transitions in the steps so far."""
        return max(self._valid, 1) / max(self._steps, 1)

    def fill(self) -> float:
        """Fill the slot, or a part of it up to the time limit; return the number of rows."""
        end, rows = time.perf_counter() + self._limit_s, 0

        def late() -> bool:
            nonlocal rows
            rows += 1
            return time.perf_counter() > end

        self._valid += self._collector.fill(self.slot, 0, late)
        settings = self._spec.settings
        rows = min(rows, settings.fragment_length)  # an asynchronous stepper calls more often
        self._steps += rows * settings.envs_per_actor
        return rows

    def measure(self, seconds: float) -> BlockTimer:
        """Measure the seconds per row of a rollout."""
        self._limit_s = seconds / 2
        return measure_time(self.fill, seconds)

    def env_step_s(self, seconds: float) -> float:
        """Measure the seconds per step of separate environments without a policy."""
        spec = self._spec
        arguments = spec.env, spec.envs_made, spec.settings.engine, spec.settings.env_kwargs
        envs = opened(*arguments, checked_steps=0)[1]
        try:
            start = envs.reset(seed=spec.settings.seed)
            if takes_some_only(envs, *start):  # few columns move in turn-based games
                return timed(envs, start, seconds).seconds * envs.num_envs
            actions = itertools.cycle([envs.action_space.sample() for _ in range(16)])

            def step() -> float:
                envs.step(next(actions))
                return 1.0

            return measure_time(step, seconds).wall_s
        finally:
            envs.close()

    @torch.inference_mode()
    def inference_s(self, seconds: float) -> float:
        """Measure the seconds per step of the policy and its sampling, on the slot's rows."""
        policy, rollout = self._spec.policy, self.slot
        num_envs = self._spec.settings.envs_per_actor
        noise = policy.distribution.noise((1, num_envs), torch.Generator())[0]
        core = policy.initial_core(num_envs)
        obs = tree.map_leaves(lambda x: x[:num_envs], stacks.flat(rollout.obs))
        first = rollout.first[0]

        def act() -> float:
            params, _ = policy.act(obs, first, core)
            policy.distribution.sample(params, noise)
            return 1.0

        return measure_time(act, seconds).wall_s

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()


class LearnerBenchmark:
    """Benchmark of learning on available batches, which are copies of one rollout."""

    def __init__(self, config: Config, spec: ActorSpec, acting: ActorBenchmark) -> None:
        acting.fill()
        self._config, self._slot = config, acting.slot
        self._policy = copy.deepcopy(spec.policy)
        self._learner = new_learner(config, self._policy, config.device, SingleLearner())
        self._weights = WeightStore(spec_of(policy_weights(self._policy)), shared=True)
        self._exchange, self._episodes = MetricsAllReduce(SingleLearner()), Episodes()
        self._updates = self._batches = 0
        self._rate = at_start(config.algo).learning_rate

    def _fresh(self) -> Batch:
        self._batches += 1
        count, slot = self._config.rollouts_per_update, self._slot
        for _ in range(count):
            self._episodes.add(slot.episode_return.numpy(), slot.episode_length.numpy())
        return gather([slot] * count, self._config.device)

    def _batch(self) -> float:
        """Update until the next batch is taken; return the number of taken batches, 1 or more."""
        before = self._batches
        while self._batches == before:
            metrics = self._learner.update(self._fresh, self._rate)
            self._exchange.all_reduce(MetricAccumulator(), self._episodes, metrics)
            self._publish()
        return float(self._batches - before)

    def _publish(self) -> float:
        self._updates += 1
        self._weights.publish(self._updates, 0, policy_weights(self._policy))
        return 1.0

    def measure(self, seconds: float) -> BlockTimer:
        """Measure the seconds per batch."""
        return measure_time(self._batch, seconds)

    def weights_s(self, seconds: float) -> tuple[float, float]:
        """Measure the seconds of publishing, and of pulling."""
        into = policy_weights(self._policy.cpu())

        def pull() -> float:
            self._weights.pull(-1, into)
            return 1.0

        return measure_time(self._publish, seconds).wall_s, measure_time(pull, seconds).wall_s

    def close(self) -> None:
        """Stop the learner's threads."""
        self._learner.close()
