"""Worker of a ClusterEnv: environments, and a copy of the agent that acts in them."""

from __future__ import annotations

import functools
import traceback
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Discrete
from gymnasium.vector import SyncVectorEnv

from headrace.actors.weight_sync import Follower, SyncRule
from headrace.cluster_env.agent import act, as_array, begun, initial_state, with_weights
from headrace.cluster_env.messages import Answer, Request, WorkerFault, WorkerSetup
from headrace.envs.context import EnvContext
from headrace.envs.make import env_seed, make_vec
from headrace.envs.names import env_name
from headrace.errors import ConfigError, bounded
from headrace.games.vector import agents_of
from headrace.ops import tree
from headrace.processes import seed_global_generators


class AgentRaised(Exception):
    """Error raised from an exception of the agent rather than of the environments."""


class EarlyReset(gymnasium.Wrapper):
    """Performs the reset that follows an episode's end ahead of its request.

    In NEXT_STEP autoreset the reset is independent of the next action, so results are unchanged.
    The worker resets while the head is busy.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self._made: tuple[Any, dict[str, Any]] | None = None

    def prepare(self) -> None:
        """Reset now, because the episode has ended."""
        if self._made is None:
            self._made = self.env.reset()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Return the prepared reset, unless a seed or options are given."""
        prepared, self._made = self._made, None
        if prepared is None or seed is not None or options:
            return self.env.reset(seed=seed, options=options)
        return prepared


def _check_actions_quickly(env: gymnasium.Env) -> None:
    """Speed up the action check of an environment without changing its result.

    The loop passes NumPy integers, for which ``Discrete.contains`` inspects dtypes: 1.6 µs instead
    of 0.25 µs.
    """
    space = getattr(env.unwrapped, "action_space", None)
    if type(space) is Discrete and space.dtype == np.int64 and "contains" not in vars(space):
        space.contains = functools.partial(_contains, space)  # type: ignore[method-assign]


def _contains(space: Discrete, x: Any) -> bool:
    if type(x) is np.int64:
        return bool(space.start <= x < space.start + space.n)
    return Discrete.contains(space, x)


Step = tuple[Any, Any, Any, Any, dict[str, Any]]  # return value of a vector environment's step


class Worker:
    """Environments with a copy of the agent; each public method answers one kind of request.

    With ``WorkerSetup.runs_ahead``, if the agent is updated between two requests:

        request for step t                    request for t + 1 with newer weights
        sends step t, takes step t + 1        sends step t + 1, takes step t + 2 with those
    """

    def __init__(self, setup: WorkerSetup) -> None:
        self._setup = setup
        seed_global_generators(setup.seed, "worker", setup.index, setup.generation)
        seed = env_seed(setup.seed or 0, setup.index, setup.num_envs, setup.generation)
        context = EnvContext(setup.index * setup.num_envs, setup.index, 0, "train")
        how = setup.engine, setup.env_kwargs, seed
        self._envs = make_vec(setup.env, setup.num_envs, *how, context=context)
        if agents := agents_of(self._envs):
            self._envs.close()
            raise ConfigError(
                f"ClusterEnv can't step {env_name(setup.env)}, a game of {len(agents)} agents, "
                "because "
                "its rows are environments (headrace train steps games)"
            )
        if isinstance(self._envs, SyncVectorEnv):
            for env in self._envs.envs:
                _check_actions_quickly(env)
            self._envs.envs = [EarlyReset(env) for env in self._envs.envs]
        self._agent: Any = None
        self._core: Any = None  # recurrent state after the latest action, [B, ...]; None: initial
        self._version = -1  # version of the weights that acted last
        self._ahead: tuple[Step, dict[str, Any]] | None = None  # a step run ahead of its request
        self._goes_on = False  # whether the latest request was a step with the agent
        self._follower = Follower(SyncRule())  # the agent's spec, once there is one
        self._obs: Any = None  # latest, [B, ...]; None before the first reset
        self._seed: int | None = None  # a replacement's environments
        if setup.seed is not None:
            self._seed = seed
            torch.manual_seed(self._seed)

    def handle(self, request: Request) -> Answer:
        """Answer a request, or request newer weights first.

        Raises:
            AgentRaised: the agent raised an exception.
        """
        wants = request.version is not None and self._wants_weights(request, request.version)
        discarded = self._discard() if request.method == "reset" else 0
        value = None if wants else getattr(self, request.method)(*request.args)
        self._goes_on = request.method == "act" and not wants
        return Answer(value, self._version, self._follower.divergence, wants, discarded)

    def _discard(self) -> int:
        """Discard the step that was run ahead; return the number of steps, without fillers."""
        ahead, self._ahead = self._ahead, None
        return 0 if ahead is None else int((~self._first).sum())

    def _wants_weights(self, request: Request, version: int) -> bool:
        """Load the agent or weights of a request; return whether newer weights are needed to
        act.
        """
        try:
            if request.agent is not None:
                self._agent, self._core = cloudpickle.loads(request.agent.pickled), None
                self._follower = Follower(request.agent.rule)
            elif request.weights is not None:
                self._agent = with_weights(self._agent, request.weights)
        except Exception as error:
            raise AgentRaised from error
        if request.agent is not None or request.weights is not None:
            self._follower.fetched(version)
        if request.measured is not None:
            self._follower.note(*request.measured)
        return self._follower.wants(version)

    # -- what a head may ask for ----------------------------------------------------------------

    def describe(self) -> tuple[gymnasium.Space, gymnasium.Space, dict[str, Any]]:
        """Return the spaces of a single environment, and the metadata."""
        envs = self._envs
        return envs.single_observation_space, envs.single_action_space, dict(envs.metadata)

    def reset(
        self, seed: int | list[int | None] | None, options: dict[str, Any] | None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those of ``options["reset_mask"]``.

        An environment that has never been reset, as on a replacement, is reset regardless of the
        mask.
        """
        mask = None if options is None or self._obs is None else options.get("reset_mask")
        if options is not None and mask is None:
            options = {k: v for k, v in options.items() if k != "reset_mask"}
        first_seed = seed[0] if isinstance(seed, list) else seed
        if first_seed is not None:
            seed_global_generators(first_seed, "worker", self._setup.index)
            torch.manual_seed(first_seed)  # for agents that sample
        self._obs, infos = self._envs.reset(seed=seed, options=options)  # type: ignore[arg-type]
        if mask is None:
            mask = np.ones(self._envs.num_envs, bool)
            self._first, self._done = np.zeros((2, len(mask)), bool)
            self._totals = np.zeros((2, len(mask)))  # returns and lengths of episodes so far
        self._first[mask], self._done[mask] = True, False
        self._totals[:, mask] = 0.0
        return self._obs, infos

    def step(self, actions: Any) -> Step:
        """Step every environment; on a replacement the first step is a reset, as a filler."""
        if self._obs is None:  # the predecessor's episodes have ended
            obs, infos = self.reset(self._seed, None)
            return obs, np.zeros(len(self._first)), ~self._first, ~self._first, infos
        self._obs, reward, terminated, truncated, infos = self._envs.step(actions)
        self._first, self._done = self._done, np.logical_or(terminated, truncated)
        self._totals[0] += reward
        self._totals[1] += 1.0
        self._totals[:, self._first] = 0.0  # fillers have no rewards
        return self._obs, reward, terminated, truncated, infos

    def act(self) -> tuple[Step, dict[str, Any]]:
        """Step with the agent's actions, and return its outputs as well."""
        if self._ahead is not None:
            prepared, self._ahead = self._ahead, None  # the version that acted last
            return prepared
        if self._obs is None:
            begins = self.step(None)
            return begins, self._act()  # the action of a filler is ignored
        acted = self._act()
        return self._step_by(acted), acted

    def _step_by(self, acted: dict[str, Any]) -> Step:
        """Step with copies of the actions, since environments may keep or change them."""
        return self.step(tree.map_leaves(np.copy, acted["action"]))

    def _act(self) -> dict[str, Any]:
        try:
            state = begun(self._agent, self._state(), self._first)
            acted, self._core = act(self._agent, self._obs, state)
        except Exception as error:
            raise AgentRaised from error
        self._version = self._follower.version
        return acted

    def _state(self) -> Any:
        """Return the agent's state before it acts, with rows of new episodes reset."""
        return initial_state(self._agent, len(self._done)) if self._core is None else self._core

    def collect(self, num_steps: int) -> dict[str, Any]:
        """Collect ``num_steps`` steps with the agent; return the fields of a Rollout as arrays."""
        if self._obs is None:
            self.step(None)
        num_envs, steps = len(self._done), []
        obs, core = _allocate(num_steps + 1, self._obs), self._copied_state()
        first = np.empty((num_steps + 1, num_envs), bool)
        terminated = np.empty((num_steps, num_envs), bool)
        reward = np.empty((num_steps, num_envs), np.float32)
        ended = np.empty((num_steps, 2, num_envs), np.float32)
        for t in range(num_steps):
            _put(obs, t, self._obs)
            first[t], acted = self._first, self._act()
            steps.append(acted)
            _, reward[t], terminated[t], *_ = self._step_by(acted)
            ended[t] = np.where(self._done, self._totals, np.nan)
        _put(obs, num_steps, self._obs)
        first[num_steps] = self._first
        acted = tree.map_leaves(lambda *x: np.stack(x), *steps)
        return {
            "obs": obs,
            "first": first,
            "action": acted.pop("action"),
            "log_prob": acted.pop("log_prob", np.full(reward.shape, np.nan)).astype(np.float32),
            "reward": reward,
            "terminated": terminated,
            "core": core,
            "version": np.full(num_envs, self._version),
            "episode_return": ended[:, 0],
            "episode_length": ended[:, 1],
            "env_id": self._setup.index * num_envs + np.arange(num_envs),
            "extras": acted,
        }

    def _copied_state(self) -> Any:
        try:
            return tree.map_leaves(as_array, self._state())
        except Exception as error:
            raise AgentRaised from error

    def prepare(self) -> None:
        """Do the work that is independent of the next request; called while an answer is sent.

        Raises:
            AgentRaised: as :meth:`handle`.
        """
        if self._setup.runs_ahead:
            if self._goes_on:
                self._ahead, self._goes_on = self.act(), False
        elif self._obs is not None and isinstance(self._envs, SyncVectorEnv):
            for i in np.flatnonzero(self._done):
                self._envs.envs[i].prepare()  # type: ignore[attr-defined]

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()


def _allocate(num_rows: int, obs: Any) -> Any:
    """Allocate arrays ``[num_rows, B, ...]`` for observations, with the same dtypes."""
    return tree.map_leaves(lambda x: np.empty((num_rows, *np.shape(x)), np.asarray(x).dtype), obs)


def _put(rows: Any, t: int, obs: Any) -> None:
    """Write observations into row ``t``."""
    tree.map_leaves(lambda into, x: np.copyto(into[t], x), rows, obs)


def fault_of(error: BaseException) -> WorkerFault:
    """Return the fault that a worker reports last."""
    by_agent = isinstance(error, AgentRaised)
    trace = bounded("".join(traceback.format_exception(error.__cause__ if by_agent else error)))
    return WorkerFault(trace.strip().splitlines()[-1], trace, by_agent)
