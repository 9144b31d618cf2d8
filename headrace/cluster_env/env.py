"""ClusterEnv: a Gymnasium vector environment whose environments run in other processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, create_empty_array

from headrace.cluster_env.agent import is_agent
from headrace.cluster_env.backends.local import LocalConfig
from headrace.cluster_env.batching import join, join_infos, take
from headrace.cluster_env.head import ClusterHead
from headrace.cluster_env.messages import BackendConfig, Request
from headrace.cluster_env.settings import EnvConfig, as_env_config
from headrace.errors import ConfigError, require
from headrace.ops import tree
from headrace.types import Rollout
from headrace.validation import ranges
from headrace.validation.fields import check


class ClusterEnv(VectorEnv):
    """Environments on workers, as one vector environment in NEXT_STEP autoreset.

    Like Gymnasium's vector environments, it starts its workers on construction.

        envs = ClusterEnv({"env_name": "CartPole-v1", "envs_per_node": 32}, LocalConfig(nodes=2))
        obs, info = envs.reset(seed=0)
        obs, reward, terminated, truncated, info = envs.step(envs.action_space.sample())
        obs, reward, terminated, truncated, info = envs.step(agent)

    Row ``i`` is always environment ``i``, on worker ``i // envs_per_node``. A worker that dies,
    hangs or raises is replaced: its rows end with ``truncated``, ``info["fault"]`` has the reason,
    and their next step is a filler as after any end of an episode. An agent has the interface of
    ``headrace/cluster_env/agent.py``; its outputs are in ``info`` (``action``, ``log_prob`` and
    others), along with ``sync_info`` of each worker.

    With ``runs_ahead`` in the settings a worker begins the next step of ``step(agent)`` while the
    head is busy. Newer weights of the agent apply from the step after that one, except after
    a ``reset``, which discards the step (``sync_info["steps_discarded"]``). Only ``step(agent)``
    and a ``reset`` of all environments are allowed.

    Args:
        env_config: a dict of the settings of :class:`~headrace.cluster_env.settings.EnvConfig`.
        config: where workers run: ``LocalConfig`` (the default) or ``RayConfig``.

    Raises:
        ConfigError: a setting is invalid; nothing was started.
        WorkerFailed: from the constructor and any method: a worker didn't start, or too many died.
        AgentFault: from ``step`` and ``collect``: the agent raised in a worker.
    """

    def __init__(
        self, env_config: dict[str, Any] | EnvConfig, config: BackendConfig | None = None
    ) -> None:
        self.env_config, self.config = as_env_config(env_config), config or LocalConfig()
        valid = "a LocalConfig, RayConfig, SlurmConfig or KubernetesConfig"
        require(hasattr(self.config, "open"), "config", config, valid)
        self.num_envs = self.config.nodes * self.env_config.envs_per_node
        self._example: dict[str, Any] = {}  # an agent's latest outputs on some worker
        self._head: ClusterHead | None = ClusterHead(self.env_config, self.config)  # None: closed
        self.single_observation_space, self.single_action_space, description = (
            self._head.description
        )
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = description | {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def launch(self) -> ClusterEnv:
        """Return this environment once its workers are up; raises ConfigError if it is closed."""
        self._open_head()
        return self

    def _open_head(self) -> ClusterHead:
        if self._head is None:
            raise ConfigError("this ClusterEnv is closed; make another one")
        return self._head

    def close_extras(self, **kwargs: Any) -> None:
        """End all workers."""
        if self._head is not None:
            self._head.pool.close()
        self._head = None

    def __enter__(self) -> ClusterEnv:
        return self.launch()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _forbid_ahead(self, call: str, instead: str) -> None:
        if self.env_config.runs_ahead:
            raise ConfigError(
                f"{call} can't be used with runs_ahead=True, because workers have already begun "
                "the agent's "
                f"next step; {instead}, or leave runs_ahead=False"
            )

    def _ready(self, method: str) -> ClusterHead:
        if self._head is None or not self._head.obs:
            raise ConfigError(f"{method} needs a reset() before it")
        return self._head

    # -- Gymnasium's interface ------------------------------------------------------------------

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those where ``options["reset_mask"]`` ``[N]`` is True.

        Args:
            seed: environment ``i`` gets ``seed + i``, or its own from a list of N.

        Raises:
            ConfigError: seed or mask doesn't have N values, the mask comes before the first reset,
                or workers run ahead.
        """
        head = self._open_head()
        if options is not None and options.get("reset_mask") is not None:
            self._forbid_ahead("reset(options={'reset_mask': …})", "reset all environments")
        if seed is None and not head.obs:
            seed = self.env_config.seed
        if seed is not None:  # also NumPy integers, tuples and arrays
            if np.ndim(seed) == 0:  # type: ignore[arg-type]
                seed = int(seed)  # type: ignore[arg-type]
            else:
                seed = [None if one is None else int(one) for one in seed]  # type: ignore[union-attr]
        requests = self._reset_requests(head, seed, options)
        if isinstance(seed, int):
            super().reset(seed=seed)
            head.pool.seed(seed)
        answers = head.request_all(requests, again=True)
        if not head.obs:
            head.obs = [None] * head.num_workers
        infos: list[dict[str, Any]] = [{}] * head.num_workers
        for i, answer in answers.items():
            head.obs[i], infos[i] = answer.value
            if i in head.faults and "reset_mask" in (options or {}):
                infos[i] = infos[i] | _fault_info(head, i)  # all rows were reset
        return join(self.single_observation_space, head.obs), join_infos(infos, head.size)

    def _reset_requests(
        self, head: ClusterHead, seed: int | list[int | None] | None, options: dict[str, Any] | None
    ) -> dict[int, Request]:
        num_envs = self.num_envs
        if isinstance(seed, list) and len(seed) != num_envs:
            raise ConfigError(f"seed has {len(seed)} values for {num_envs} environments")
        seeds = [seed] if isinstance(seed, int) else seed or []
        for one in seeds:
            require(one is None or one >= 0, "seed", one, "0 or more (nearest: 0)")
        mask = None if options is None else options.get("reset_mask")
        if mask is not None:
            mask = np.asarray(mask)
            if mask.shape != (num_envs,) or mask.dtype != bool or not mask.any():
                raise ConfigError(
                    f"options['reset_mask'] must be a bool array of shape ({num_envs},) with a "
                    f"true value, not one of {mask.dtype} {mask.shape}"
                )
            if not head.obs:
                raise ConfigError("options['reset_mask'] needs a full reset() before it")
        asked = {}
        for i in range(head.num_workers):
            rows = head.rows(i)
            own: Any = seed[rows] if isinstance(seed, list) else seed
            if isinstance(seed, int):
                own = seed + rows.start
            if mask is None:
                asked[i] = Request("reset", (own, options))
            elif mask[rows].any():
                asked[i] = Request("reset", (own, {**(options or {}), "reset_mask": mask[rows]}))
        return asked

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Step every environment with the given actions or with an agent's.

        Args:
            actions: a batch of ``action_space``, or an agent, which is copied to each worker.

        Returns:
            observations, rewards ``[N]`` float64, terminated and truncated ``[N]`` bool, info.

        Raises:
            ConfigError: before the first reset; for another number of actions; for any actions if
                workers run ahead; or for an agent without the required methods.
        """
        head, by_agent = self._ready("step"), is_agent(actions)
        if by_agent:
            answers = head.step(actions)
            acted = {i: answer.value[1] for i, answer in answers.items()}
            steps = {i: answer.value[0] for i, answer in answers.items()}
        else:
            self._forbid_ahead("step(actions)", "use step(agent)")
            parts = enumerate(self._split(head, actions))
            answers = head.request_all({i: Request("step", (part,)) for i, part in parts})
            steps = {i: answer.value for i, answer in answers.items()}
        everyone = [steps.get(i) or _failed_step(head, i) for i in range(head.num_workers)]
        _, *columns, infos = zip(*everyone, strict=True)
        rewards, terminated, truncated = map(np.concatenate, columns)
        info = join_infos(list(infos), head.size)
        if by_agent:
            info |= self._joined_acted(head, acted) | head.sync_info()
        obs = join(self.single_observation_space, head.obs)
        return obs, rewards, terminated, truncated, info

    def _joined_acted(self, head: ClusterHead, acted: dict[int, dict[str, Any]]) -> dict[str, Any]:
        """Join the agent's outputs on each worker; zeros for failed workers."""
        self._example = next(iter(acted.values()), self._example)
        lost = {}
        if len(acted) < head.num_workers:
            lost = tree.map_leaves(np.zeros_like, self._example)
            lost["action"] = create_empty_array(self.single_action_space, head.size)
        each = [acted.get(i, lost) for i in range(head.num_workers)]
        return tree.map_leaves(lambda *x: np.concatenate(x), *each)

    def _split(self, head: ClusterHead, actions: Any) -> list[Any]:
        space, lengths = self.single_action_space, set()
        if isinstance(space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple):
            lengths = {len(leaf) for leaf in tree.leaves(actions)}
        else:
            actions = actions if isinstance(actions, tuple) else np.asarray(actions)
            lengths = {len(actions) if np.ndim(actions) else 0}
        if lengths != {self.num_envs}:
            raise ConfigError(
                f"step received actions for {sorted(lengths)} environments, but there are "
                f"{self.num_envs}"
            )
        return [take(space, actions, head.rows(i)) for i in range(head.num_workers)]

    # -- rollouts -------------------------------------------------------------------------------

    def collect(self, agent: Any, num_steps: int) -> Rollout:
        """Collect ``num_steps`` steps of every environment with the agent, in one request per
        worker.

        The part of a failed worker is padded with fillers (``first`` is True throughout), and
        ``faults`` has the reason.

        Returns:
            a rollout of ``[num_steps, N]``, column ``i`` environment ``i``; see
                ``headrace/types.py``. ``log_prob`` is NaN if the agent doesn't return it.

        Raises:
            ConfigError: as :meth:`step`; workers run ahead; or ``num_steps`` is below 1.
        """
        head = self._ready("collect")
        self._forbid_ahead("collect", "use step(agent)")
        check("num_steps", Annotated[int, ranges.SIZE], num_steps)
        return head.collect(agent, num_steps, self.single_action_space)

    def collect_async(self, agent: Any, fragment_length: int) -> Iterator[Rollout]:
        """Yield rollouts ``[fragment_length, envs_per_node]`` of the first ready worker, endlessly.

        Workers continue while a rollout is used, so its policy lags at least one version behind,
        and more the longer workers keep their weights. ``env_id`` holds the environments' numbers.
        A failed worker delivers nothing and is restarted. Steps in progress when the iteration
        ends are awaited and discarded by the next call.
        """
        head = self._ready("collect_async")
        self._forbid_ahead("collect_async", "use step(agent)")
        check("fragment_length", Annotated[int, ranges.SIZE], fragment_length)
        return head.stream(agent, fragment_length)

    @property
    def faults(self) -> dict[int, str]:
        """Workers that failed in the latest call, with the reasons."""
        return {} if self._head is None else dict(self._head.faults)

    @property
    def sync_info(self) -> dict[str, np.ndarray]:
        """Synchronisation metrics per worker ``[W]``: policy_version, divergence (nats), measure
        ("kl", "estimate", "outputs" or "age"), weight_requests, weight_syncs, weight_bytes and
        steps_discarded.
        """
        return {} if self._head is None else self._head.sync_info()


def _failed_step(head: ClusterHead, worker: int) -> tuple[Any, ...]:
    """Return the step of a worker that failed in it."""
    on = np.ones(head.size, bool)
    return head.obs[worker], np.zeros(head.size), ~on, on, _fault_info(head, worker)


def _fault_info(head: ClusterHead, worker: int) -> dict[str, Any]:
    reason = np.full(head.size, head.faults[worker], object)
    return {"fault": reason, "_fault": np.ones(head.size, bool)}
