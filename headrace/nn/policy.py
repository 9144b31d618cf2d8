"""The actor-critic policy used by actors, learner, checkpoints and users."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import torch
from torch import Tensor, nn

from headrace.errors import ConfigError
from headrace.nn.custom_torso import CustomTorso
from headrace.nn.encoder import Encoder
from headrace.nn.exact_modules import is_exactly
from headrace.nn.image import FastImage
from headrace.nn.image_precision import Precision, bfloat16_modules
from headrace.nn.inputs import Inputs, mask_source
from headrace.nn.native_policy import NativePolicy, native_policy
from headrace.nn.network import Network, orthogonal
from headrace.nn.normalizer import ImageNormalizer, Normalizer
from headrace.nn.popart import PopArt
from headrace.nn.predict import predict
from headrace.nn.recurrent import Recurrent
from headrace.nn.saving import Saver, saved_by
from headrace.nn.state_noise import Explorer, log_std_of, noise_of
from headrace.nn.task_values import TaskPopArt
from headrace.ops import stacks
from headrace.ops.action_bounds import ActionBounds
from headrace.ops.distributions.composite import gaussian_places
from headrace.ops.moments import Moments
from headrace.spaces.actions import ActionTransform, distribution_for, output_bounds
from headrace.spaces.text import Words, text_paths
from headrace.spaces.unified_spaces import TASK, Spaces
from headrace.types import Tree


def policy_weights(policy: nn.Module) -> Tree:
    """Return the tensors that travel from learner to actors: parameters and buffers."""
    return {name: value.detach() for name, value in policy.state_dict().items()}


class Policy(nn.Module):
    """A policy and a value function for one observation and one action space.

    Observations pass through the torso, the recurrent core if there is one, and both heads. With
    ``shared=False`` there is a second torso for the values.

    Args:
        observation_space: space of a single environment; an ``action_mask`` in it is applied.
        action_space: space of a single environment.
        network: settings of torso and core.
        info_mask: the environment returns an action mask in ``info["action_mask"]``.

    Raises:
        ConfigError: a space is not supported, or the network doesn't fit it.
    """

    def __init__(
        self,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        network: Network | None = None,
        info_mask: bool = False,
    ) -> None:
        super().__init__()
        self.observation_space, self.action_space = observation_space, action_space
        self.network = network = network or Network()
        squash, scale = network.squash_actions, bool(network.scale_actions)
        self.distribution = distribution_for(action_space, squash)
        self._to_env = ActionTransform(action_space, squash, scale)
        mask = mask_source(observation_space, self.distribution, info_mask)
        words = None
        if text_paths(observation_space):
            words = Words(network.vocabulary, network.word_buckets, network.max_words)
        previous = network.previous_action_reward
        hides = None if not network.per_task_values else not network.task_id
        self.inputs = Inputs(
            observation_space, action_space, self.distribution, mask, previous, words, hides
        )
        make: type[Encoder | CustomTorso] = Encoder if network.torso is None else CustomTorso
        self.torso = make(self.inputs, network)
        alone = network.core is None and self.torso.is_vector
        shared = not alone if network.shared is None else network.shared
        self.value_torso = None if shared else make(self.inputs, network)
        width = self.torso.num_outputs
        self.core = None
        if network.core is not None:
            self.core = Recurrent(network.core, width, network.core_size)
            width = network.core_size
        self.policy_head = orthogonal(nn.Linear(width, self.distribution.num_outputs), 0.01)
        tasks = observation_space[TASK].n if network.per_task_values else 1  # type: ignore
        self.value_head = orthogonal(nn.Linear(width, tasks), 1.0)
        self.popart: PopArt | TaskPopArt | None = PopArt() if network.normalize_values else None
        if network.per_task_values:
            self.popart = TaskPopArt(tasks)
        num_free = self.distribution.num_free
        free = torch.full((num_free,), network.log_std_init)
        if network.use_sde:
            if not num_free:
                raise ConfigError("use_sde=True requires Box actions, but there are none")
            # With features of size 1 (tanh's maximum), the log deviation starts at log_std_init.
            free = free.expand(width, num_free) - 0.5 * math.log(width)
            self._noise_places = list(gaussian_places(self.distribution))
        self.log_std = nn.Parameter(free) if num_free else None
        bounds = output_bounds(action_space, squash, scale) or (None, None, None)
        for name, values in zip(ActionBounds._fields, bounds, strict=True):
            self.register_buffer(f"_bounds_{name}", values, persistent=False)
        self._fast_image: FastImage | None = None
        self._native: NativePolicy | None = None
        self.tasks: tuple[str, ...] = ()  # names of its tasks by number, if there are several
        self.task_spaces: tuple[Spaces, ...] = ()  # spaces of each task
        # Part of the unified space that observation_space is; None: the whole space.
        self.place: Any = None
        self.task: int | None = None  # task number, if observation_space doesn't include it

    def initial_core(self, num_envs: int) -> Tree:
        """Return the recurrent state at an episode's start, ``[num_envs, ...]``; () without one."""
        return () if self.core is None else self.core.initial(num_envs)

    @property
    def action_bounds(self) -> ActionBounds | None:
        """Return the Gaussian means that have bounds, or None."""
        bounds = (getattr(self, f"_bounds_{name}") for name in ActionBounds._fields)
        return None if self._bounds_places is None else ActionBounds(*bounds)

    @property
    def precision(self) -> Precision:
        """Return the precision of image layers; everything else is always float32."""
        return "bfloat16" if any(part.enabled for part in bfloat16_modules(self)) else "float32"

    def compute_in(self, precision: Precision) -> None:
        """Set the precision of image layers, also for later copies of this policy."""
        for part in bfloat16_modules(self):
            part.enabled = precision == "bfloat16"

    def compile_torsos(self) -> None:
        """Compile the torsos with ``torch.compile`` at their next call; copies aren't compiled."""
        for torso in filter(None, (self.torso, self.value_torso)):
            torso.compile()
        for part in bfloat16_modules(self):
            part.compiled = True

    @contextlib.contextmanager
    def frozen_weights(self, learns: bool = False) -> Iterator[None]:
        """Return a context with constant weights: bfloat16 casts them once, inference is faster.

        Args:
            learns: gradients are computed inside; see :meth:`BFloat16Module.frozen_weights`.
        """
        with contextlib.ExitStack() as stack:
            for part in bfloat16_modules(self):
                stack.enter_context(part.frozen_weights(learns))
            before = {"_fast_image": self._fast_image, "_native": self._native}
            stack.callback(vars(self).update, before)
            is_fast = not learns and is_exactly(self.policy_head, nn.Linear)
            self._native = native_policy(self) if is_fast and type(self) is Policy else None
            torso = self.torso if is_fast and type(self.torso) is Encoder else None
            self._fast_image = None if torso is None else torso.fast_image()
            yield

    def __getstate__(self) -> dict[str, Any]:  # weights of copies may change
        return vars(self) | {"_fast_image": None, "_native": None}

    def act(self, inputs: Tree, first: Tensor, core: Tree) -> tuple[Tensor, Tree]:
        """Compute one step of the policy head: parameters ``[B, num_params]`` and the next state.

        Args:
            inputs: ``[B, ...]``, see :class:`Inputs`.
            first: ``[B]`` bool, the observation came from a reset.
            core: recurrent state ``[B, ...]``.
        """
        if self._native is not None and self.core is None and not torch.is_grad_enabled():
            return self._native.params(inputs), core
        hidden, core = self._features(inputs, first, core)
        return self.finished(self.policy_head(hidden), inputs, hidden), core

    def _features(self, inputs: Tree, first: Tensor, core: Tree) -> tuple[Tensor, Tree]:
        """Return the policy head's inputs ``[B, F]`` for one step, and the next core state."""
        native, torso = self._native, self._fast_image or self.torso
        if torch.is_grad_enabled():
            native, torso = None, self.torso
        hidden = torso(inputs) if native is None else native.features(inputs)
        if self.core is not None:
            hidden, core = self.core.step(hidden, first, core)
        return hidden, core

    def explorer(self) -> Explorer | None:
        """Return the explorer if the noise of actions depends on the state, else None."""
        if not self.network.use_sde or self.log_std is None:
            return None
        num_features, num_actions = self.log_std.shape
        return Explorer(self.explore, (num_features, num_actions), self.network.sde_sample_freq)

    def explore(
        self, inputs: Tree, first: Tensor, core: Tree, directions: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tree]:
        """Act like :meth:`act`, and fill in the noise of continuous actions.

        Args:
            directions: ``[B, F, k]``, see :func:`headrace.nn.state_noise.noise_of`.
            noise: ``[B, num_noise]``, changed in place.
        """
        hidden, core = self._features(inputs, first, core)
        assert self.log_std is not None
        noise[:, self._noise_places] = noise_of(hidden, self.log_std, directions)
        return self.finished(self.policy_head(hidden), inputs, hidden), core

    def chooser(
        self, inputs: Tree, noise: Tensor, action: Tree, log_prob: Tensor
    ) -> Callable[[int], None] | None:
        """See :meth:`NativePolicy.chooser`; None also while weights may change."""
        return (
            None if self._native is None else self._native.chooser(inputs, noise, action, log_prob)
        )

    def forward(self, inputs: Tree, first: Tensor, core: Tree) -> tuple[Tensor, Tensor, Tree]:
        """Time-major pass of both heads.

        Args:
            inputs: ``[T, B, ...]``, stacks also as they are held (``ops/stacks.py``);
            first: ``[T, B]`` bool; core: ``[B, ...]``.

        Returns:
            parameters ``[T, B, num_params]``, values ``[T, B]``, the core after the last row.
        """
        flat = stacks.flat(inputs)
        hidden = self.torso(flat)
        if self.core is not None:
            hidden, core = self.core(hidden.unflatten(0, first.shape), first, core)
            hidden = hidden.flatten(0, 1)
        value_hidden = hidden if self.value_torso is None else self.value_torso(flat)
        params = self.finished(self.policy_head(hidden), flat, hidden)
        value = self._value(value_hidden, flat)
        return params.unflatten(0, first.shape), value.view(first.shape), core

    def values(self, inputs: Tree, first: Tensor, core: Tree) -> Tensor:
        """The values ``[T, B]`` of :meth:`forward`, without the policy's torso if they have one."""
        if self.value_torso is None:
            return self(inputs, first, core)[1]
        flat = stacks.flat(inputs)
        return self._value(self.value_torso(flat), flat).view(first.shape)

    def _value(self, hidden: Tensor, inputs: Tree) -> Tensor:
        value = self.value_head(hidden)
        return value if self.popart is None else self.popart(value, inputs)

    def finished(self, params: Tensor, inputs: Tree, hidden: Tensor | None = None) -> Tensor:
        """Turn the head's outputs into parameters ``[N, num_params]``, and apply masks.

        Args:
            hidden: ``[N, F]`` inputs of the head; only needed with ``use_sde``.
        """
        if self.log_std is not None:
            if self.network.use_sde:
                free = log_std_of(hidden, self.log_std)  # type: ignore[arg-type]
            else:
                free = self.log_std.expand(*params.shape[:-1], len(self.log_std))
            params = torch.cat([params, free], dim=-1)
        if self.inputs.mask != "none":
            params = self.distribution.apply_mask(params, inputs["action_mask"])
        return params

    @torch.no_grad()
    def moments(self, inputs: Tree) -> list[Moments]:
        """Return moments of inputs ``[T, B, ...]`` for each part with running statistics."""
        return [x for torso in self._torsos for x in torso.moments(inputs)]

    def take(self, new: Iterable[Moments]) -> None:
        """Update the running statistics with the results of :meth:`moments`."""
        for normalizer, part in zip(self.normalizers, new, strict=True):
            normalizer.take(part)

    @property
    def normalizers(self) -> list[Normalizer | ImageNormalizer]:
        """Return the parts with running statistics of observations."""
        return [x for torso in self._torsos for x in torso.normalizers]

    @property
    def _torsos(self) -> list[Encoder]:
        return [x for x in (self.torso, self.value_torso) if isinstance(x, Encoder)]

    def env_action(self, action: Tree) -> Any:
        """Convert actions for the environment, in new memory; see :class:`ActionTransform`."""
        return self._to_env(action)

    @torch.inference_mode()
    def predict(
        self,
        obs: Any,
        state: Tree | None = None,
        episode_start: Any = None,
        deterministic: bool = True,
        *,
        action_mask: Any = None,
        reward: Any = None,
    ) -> tuple[Any, Tree]:
        """Return the action for one observation or a batch of observations.

        Args:
            obs: one observation of ``observation_space``, or a batch of them; texts are strings.
            state: recurrent state that the previous call returned; None at the start.
            episode_start: bool or ``[B]`` bools, True if obs came from a reset.
            deterministic: return the mode of the distribution instead of a sample.
            action_mask: ``info["action_mask"]``, if the environment returns one.
            reward: reward of the previous action, if the network uses it.

        Returns:
            the environment's action(s), batched like the input, and the state for the next call.

        Raises:
            ConfigError: the observation isn't in ``observation_space`` (wrong shape, a missing
                part, NaN or infinity), or the network needs the previous reward and it is missing.
        """
        return predict(self, obs, state, episode_start, deterministic, action_mask, reward)

    @property
    def device(self) -> torch.device:
        """Return the device of the weights."""
        return self.policy_head.weight.device

    saver: Saver | None = None  # set if the run's settings are known

    def save(self, path: str | Path) -> Path:
        """Save the policy to a folder for ``hr.load(path)``, and return its path.

        Raises:
            ConfigError: the policy wasn't trained or loaded by headrace, or is part of a team.
            CheckpointError: the path holds something else, or can't be written.
        """
        return saved_by(self.saver, self, Path(path))

    def export_onnx(self, path: str | Path) -> Path:
        """Write the deterministic policy as ONNX; see :func:`headrace.nn.onnx.export`."""
        from headrace.nn.onnx import export

        return export(self, Path(path))
