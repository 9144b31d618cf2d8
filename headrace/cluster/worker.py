"""A worker: environments, and a copy of the agent that acts in them."""

from __future__ import annotations

import traceback
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import torch
from gymnasium.vector import SyncVectorEnv

from headrace.acting.weight_sync import Follower
from headrace.cluster.agent import act, with_weights
from headrace.cluster.messages import Answer, Fault, Request, WorkerSetup
from headrace.envs.make import env_seed, make_vec
from headrace.envs.names import env_name
from headrace.ops import tree


class AgentRaised(Exception):
    """The agent, not the environments, raised what this one was raised from."""


class EarlyReset(gymnasium.Wrapper):
    """Can make the reset that follows an episode's end before anybody asks for it.

    In NEXT_STEP autoreset it depends on nothing that comes between, so nobody sees a difference,
    and a worker does it while the head is busy.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self._made: tuple[Any, dict[str, Any]] | None = None

    def prepare(self) -> None:
        """The episode has ended: make the reset now."""
        if self._made is None:
            self._made = self.env.reset()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """What was prepared, unless a certain reset is asked for."""
        made, self._made = self._made, None
        if made is None or seed is not None or options:
            return self.env.reset(seed=seed, options=options)
        return made


class Sums:
    """Returns and lengths of the episodes in progress, ``[B]`` each."""

    def __init__(self, num_envs: int) -> None:
        self.returns, self.lengths = np.zeros(num_envs), np.zeros(num_envs)

    def clear(self, mask: np.ndarray) -> None:
        """Begin anew where ``mask`` ``[B]`` is true."""
        self.returns[mask], self.lengths[mask] = 0.0, 0.0

    def add(self, reward: np.ndarray, filler: np.ndarray, done: np.ndarray) -> tuple[Any, Any]:
        """Take one step; the return and length of each episode that it ends, else NaN."""
        self.returns += np.where(filler, 0.0, reward)
        self.lengths += ~filler
        ended = np.where(done, self.returns, np.nan), np.where(done, self.lengths, np.nan)
        self.clear(done)
        return ended


class Worker:
    """Environments with an agent's copy; each public method answers one kind of request.

    Args:
        setup: what it is built from.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        self._setup, self._name = setup, env_name(setup.env)
        self._envs = make_vec(setup.env, setup.num_envs, setup.engine, setup.env_kwargs)
        if isinstance(self._envs, SyncVectorEnv):
            self._envs.envs = [EarlyReset(env) for env in self._envs.envs]
        self._agent: Any = None
        self._follower: Follower | None = None
        self._obs: Any = None  # latest, [B, ...]; None before the first reset
        if setup.seed is not None:
            torch.manual_seed(self._own_seed())

    def _own_seed(self) -> int:
        setup = self._setup
        assert setup.seed is not None
        return env_seed(setup.seed, setup.index, setup.num_envs, setup.generation)

    def handle(self, request: Request) -> Answer:
        """Do what the head asks, or say that newer weights are wanted first.

        Raises:
            AgentRaised: from what the agent raised.
        """
        if request.version is not None and not self._keep_up(request):
            return self._answer(None, wants_weights=True)
        return self._answer(getattr(self, request.method)(*request.args))

    def _answer(self, value: Any, wants_weights: bool = False) -> Answer:
        follower = self._follower
        if follower is None:
            return Answer(value, -1, None, wants_weights)
        return Answer(value, follower.version, follower.divergence, wants_weights)

    def _keep_up(self, request: Request) -> bool:
        """Take what the head sent of its agent; whether to act now, without newer weights."""
        assert request.version is not None
        if request.agent is not None:
            try:
                self._agent = cloudpickle.loads(request.agent.pickled)
            except Exception as error:
                raise AgentRaised from error
            self._follower = Follower(request.agent.rule)
            self._follower.fetched(request.version)
        follower = self._follower
        assert follower is not None, "the head sends the agent first"
        if request.weights is not None:
            try:
                self._agent = with_weights(self._agent, request.weights)
            except Exception as error:
                raise AgentRaised from error
            follower.fetched(request.version)
        if request.measured is not None:
            follower.note(*request.measured)
        return not follower.wants(request.version)

    # -- what a head may ask for ----------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """What a head must know of the environments."""
        envs = self._envs
        return {
            "observation_space": envs.single_observation_space,
            "action_space": envs.single_action_space,
            "metadata": dict(envs.metadata),
        }

    def reset(
        self, seed: int | list[int | None] | None, options: dict[str, Any] | None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environments, all or those of ``options["reset_mask"]``.

        One that has never been reset, such as a replacement's, is reset whatever the mask says.
        """
        num_envs = self._envs.num_envs
        mask = None if options is None or self._obs is None else options.get("reset_mask")
        if options is not None and mask is None:
            options = {k: v for k, v in options.items() if k != "reset_mask"}
        first_seed = seed[0] if isinstance(seed, list) else seed
        if first_seed is not None:
            torch.manual_seed(first_seed)
        self._obs, infos = self._envs.reset(seed=seed, options=options)  # type: ignore[arg-type]
        if mask is None:
            self._first, self._done = np.ones(num_envs, bool), np.zeros(num_envs, bool)
            self._sums = Sums(num_envs)
        else:
            self._first[mask], self._done[mask] = True, False
            self._sums.clear(mask)
        return self._obs, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """One step of every environment; after a replacement the reset, as a filler."""
        if self._obs is None:
            return self._begin()
        return self._step(actions)[:5]

    def act(self) -> tuple[tuple[Any, Any, Any, Any, dict[str, Any]], dict[str, Any]]:
        """One step with the agent's actions, and what it returned with them."""
        if self._obs is None:
            begun = self._begin()
            return begun, self._act()  # the action is ignored, as of any filler
        acted = self._act()
        return self._step(acted["action"])[:5], acted

    def collect(self, num_steps: int) -> dict[str, Any]:
        """``num_steps`` steps with the agent: the fields of a Rollout as arrays."""
        if self._obs is None:
            self._begin()
        copied = lambda values: tree.map_leaves(np.array, values)  # noqa: E731
        obs, first = [copied(self._obs)], [self._first]
        steps: list[tuple[Any, ...]] = []
        for _ in range(num_steps):
            acted = self._act()
            _, reward, terminated, _, _, ended = self._step(acted["action"])
            steps.append((acted, reward.copy(), terminated.copy(), *ended))
            obs.append(copied(self._obs))
            first.append(self._first)
        stack = lambda parts: tree.map_leaves(lambda *x: np.stack(x), *parts)  # noqa: E731
        each_acted, *rows = (list(column) for column in zip(*steps, strict=True))
        reward, terminated, returns, lengths = map(np.stack, rows)
        merged = stack(each_acted)
        assert self._follower is not None
        num_envs = self._envs.num_envs
        return {
            "obs": stack(obs),
            "first": np.stack(first),
            "action": merged.pop("action"),
            "log_prob": merged.pop("log_prob", np.full(reward.shape, np.nan)).astype(np.float32),
            "reward": reward.astype(np.float32),
            "terminated": terminated,
            "version": np.full(num_envs, self._follower.version),
            "episode_return": returns.astype(np.float32),
            "episode_length": lengths.astype(np.float32),
            "env_id": self._setup.first_env + np.arange(num_envs),
            "extras": merged,
        }

    def prepare(self) -> None:
        """Do what the next step will need in any case; called when an answer is on its way."""
        if self._obs is not None and isinstance(self._envs, SyncVectorEnv):
            for i in np.flatnonzero(self._done):
                self._envs.envs[i].prepare()  # type: ignore[attr-defined]

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()

    # -- in each step ---------------------------------------------------------------------------

    def _begin(self) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """The reset of a replacement, whose predecessor's episodes have ended, as a filler."""
        seed = None if self._setup.seed is None else self._own_seed()
        obs, infos = self.reset(seed, None)
        num_envs = self._envs.num_envs
        off = np.zeros(num_envs, bool)
        return obs, np.zeros(num_envs), off, off.copy(), infos

    def _act(self) -> dict[str, Any]:
        try:
            return act(self._agent, self._obs)
        except Exception as error:
            raise AgentRaised from error

    def _step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any], tuple[Any, Any]]:
        self._obs, reward, terminated, truncated, infos = self._envs.step(actions)
        filler, self._done = self._done, np.logical_or(terminated, truncated)
        self._first = filler
        ended = self._sums.add(reward, filler, self._done)
        return self._obs, reward, terminated, truncated, infos, ended


def fault_of(error: BaseException) -> Fault:
    """What a worker says last."""
    by_agent = isinstance(error, AgentRaised)
    trace = "".join(traceback.format_exception(error.__cause__ if by_agent else error))
    return Fault(trace.strip().splitlines()[-1], trace, by_agent)
