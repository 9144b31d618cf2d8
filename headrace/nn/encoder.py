"""The built-in torso: maps a tree of observations to one feature vector."""

from __future__ import annotations

import itertools
from typing import NamedTuple, cast

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box
from gymnasium.spaces.utils import flatdim
from torch import Tensor, nn

from headrace.errors import ConfigError, nearest
from headrace.nn.activations import ACTIVATIONS, Activation, exact_layers
from headrace.nn.embedding import CodeEmbedding, is_embedded
from headrace.nn.exact_modules import is_exactly
from headrace.nn.image import FastImage, Image
from headrace.nn.inputs import Inputs
from headrace.nn.network import Network, dense, mlp
from headrace.nn.normalizer import ImageNormalizer, Normalizer
from headrace.nn.text import TextEncoder
from headrace.ops import tree
from headrace.ops.moments import Moments, moments
from headrace.spaces import observations as spaces
from headrace.spaces import walk
from headrace.spaces.images import is_image, num_symbols
from headrace.spaces.text import text_paths
from headrace.types import Tree


class DenseLayers(NamedTuple):
    """Linear layers, each followed by the activation."""

    linear: list[nn.Linear]
    activation: Activation


class Encoder(nn.Module):
    """Maps inputs ``[N, ...]`` (see :class:`Inputs`) to features ``[N, num_outputs]``.

    Numbers of every kind (Box values, one-hots of Discrete and MultiDiscrete, bits of MultiBinary,
    the previous action and reward) form one vector for the multi-layer perceptron. Each image goes
    through convolutions, each text through an LSTM, and each space of many discrete values through
    an embedding. If there are several of these, one dense layer combines them.
    :func:`headrace.spaces.images.is_image` defines what an image is, and
    :func:`headrace.nn.embedding.is_embedded` what is embedded.

    With a recurrent core there is no combining layer, and the previous action and reward go
    directly into the core (Espeholt et al. 2018, Figure 3).

    Raises:
        ConfigError: a space is not supported, an image is too small for its convolutions or has an
            ambiguous layout, or a named text or grid of symbols doesn't exist.
    """

    def __init__(self, inputs: Inputs, network: Network) -> None:
        super().__init__()
        self._inputs = inputs
        self._boxes: list[tuple[spaces.Path, Box]] = []
        self._codes: list[tuple[spaces.Path, gymnasium.Space]] = []
        self._paths: list[spaces.Path] = []  # paths of self.parts
        self.parts = nn.ModuleList()
        self._sort(inputs.features_space, network)
        # Fast path for one row of numbers: training CartPole is a tenth faster.
        row = bool(self._boxes) and self._boxes[0][0] == () and len(self._boxes[0][1].shape) == 1
        self.is_single = row and inputs.plain and self._boxes[0][1].dtype != np.uint8
        num_values = sum(flatdim(space) for _, space in self._boxes)
        num_inputs = num_values + sum(flatdim(space) for _, space in self._codes)
        num_previous = inputs.distribution.num_features + 1 if inputs.previous else 0
        # Whether previous action and reward skip the perceptron.
        self._beside = inputs.previous and network.core is not None
        if not self._beside:
            num_inputs += num_previous
        self.mlp = mlp(num_inputs, network) if num_inputs else None
        # Kept in a tuple so that it isn't registered as a second submodule.
        self._first_layer: tuple[nn.Module, ...] = () if self.mlp is None else (self.mlp[0],)
        normalizes = network.normalize_observations and num_values
        self.normalizer = Normalizer(num_values) if normalizes else None
        wide = normalizes and any(spaces.exceeds_float32(space) for _, space in self._boxes)
        self.value_dtype = torch.float64 if wide else None  # None: the dtype of the weights
        widths = [network.units[-1]] if num_inputs else []
        widths += [cast(int, part.num_outputs) for part in self.parts]
        if self._beside:
            widths.append(num_previous)
        if not widths:
            raise ConfigError(f"observation space {inputs.observation_space} is empty")
        join = len(widths) > 1 and network.core is None
        self.join = dense(sum(widths), network.units[-1], network.activation) if join else None
        self.num_outputs = network.units[-1] if join else sum(widths)
        self.is_vector = not self._paths
        self.is_dense = self.is_vector and not self._beside and self.mlp is not None
        self._activation = network.activation

    def _sort(self, observation_space: gymnasium.Space, network: Network) -> None:
        """Assign every leaf of the observation space to the part that encodes it."""
        leaves, texts = {}, text_paths(self._inputs.observation_space)
        for path, space in spaces.leaves(observation_space):
            name = spaces.dotted(path) or "obs"
            leaves[name] = space
            if path in texts or name in network.text:
                part: nn.Module = TextEncoder(spaces.vocabulary(path, space))
            elif name in (network.one_hot or ()):
                part = Image(path, space, network, num_symbols(name, space, network.num_symbols))
            elif is_image(space):
                part = Image(path, space, network)
            elif is_embedded(space):
                spaces.check_codes(path, space)
                part = CodeEmbedding(path, space)
            else:
                if isinstance(space, Box):
                    self._boxes.append((path, space))
                else:
                    spaces.check_codes(path, space)
                    self._codes.append((path, space))
                continue
            self._paths.append(path)
            self.parts.append(part)
        for setting in ("text", "one_hot"):
            for name in getattr(network, setting) or ():
                if name not in leaves:
                    raise ConfigError(
                        f"{setting}={name!r} is not in the observation space, which has "
                        f"{', '.join(map(repr, leaves))}.{nearest(name, leaves)}"
                    )

    def forward(self, inputs: Tree) -> Tensor:
        outputs = [] if self.mlp is None else [self.mlp(self.numbers(inputs))]
        for path, part in zip(self._paths, self.parts, strict=True):
            outputs.append(part(spaces.at(self.observation(inputs), path)))
        if self._beside:
            reward = inputs["previous_reward"]
            outputs.append(self._previous(inputs, (outputs[0] if outputs else reward).dtype))
        features = outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)
        return features if self.join is None else self.join(features)

    def check(self, inputs: Tree) -> None:
        """Check inputs ``[N, ...]`` for symbols, tokens and choices out of range.

        Used before another process calls this torso, and on a GPU, which doesn't report them.

        Raises:
            EnvironmentFault, IndexError, RuntimeError: a value is out of range.
        """
        obs = self.observation(inputs)
        for path, part in zip(self._paths, self.parts, strict=True):
            cast(Image | TextEncoder | CodeEmbedding, part).check(spaces.at(obs, path))
        for path, space in self._codes:
            spaces.encode(space, spaces.at(obs, path))

    def exact_layers(self) -> DenseLayers | None:
        """Return the layers that fast paths may compute instead of :meth:`forward`.

        None if anything else affects its result, such as a hook, a subclass or a replaced module.
        """
        if not self.is_dense or not is_exactly(self, Encoder) or self.join is not None:
            return None
        if self.normalizer is not None and not is_exactly(self.normalizer, Normalizer):
            return None
        linear = exact_layers(cast(nn.Module, self.mlp), self._activation)
        return None if linear is None else DenseLayers(linear, ACTIVATIONS[self._activation])

    def same_numbers(self, other: Encoder) -> bool:
        """Return True if :meth:`numbers` of both are equal whenever their statistics are."""
        kinds = [type(x.normalizer) for x in (self, other)]
        same_inputs = self._inputs is other._inputs and self._boxes == other._boxes
        return same_inputs and kinds[0] is kinds[1] and self.value_dtype == other.value_dtype

    @property
    def only_row(self) -> spaces.Path | None:
        """Return where the observation holds all numbers, in one Box; None if there are others."""
        others = self._codes or (self._inputs.previous and not self._beside)
        return self._boxes[0][0] if len(self._boxes) == 1 and not others else None

    def fast_image(self) -> FastImage | None:
        """Return the fast path of a torso for one image; None if it does anything else."""
        alone = self._paths == [()] and self._inputs.plain and is_exactly(self, Encoder)
        part = self.parts[0] if alone and self.mlp is None and self.join is None else None
        return cast(Image, part).fast_path() if is_exactly(part, Image) else None

    def observation(self, inputs: Tree) -> Tree:
        """Return the observation ``[N, ...]`` without the actor's additions to it."""
        return inputs if self._inputs.plain else inputs["observation"]

    def numbers(self, inputs: Tree) -> Tensor:
        """Compute the perceptron's input ``[N, num_inputs]`` from inputs ``[N, ...]``."""
        obs = self.observation(inputs)
        dtype = cast(Tensor, self._first_layer[0].weight).dtype
        if self.is_single:
            x = obs.to(self.value_dtype or dtype)
            return x if self.normalizer is None else self.normalizer(x)
        columns = []
        if self._boxes:
            x = self._values(obs, self.value_dtype or dtype)
            columns.append(x if self.normalizer is None else self.normalizer(x))
        for path, space in self._codes:
            columns.append(spaces.encode(space, spaces.at(obs, path)).to(dtype))
        if self._inputs.previous and not self._beside:
            columns.append(self._previous(inputs, dtype))
        return columns[0] if len(columns) == 1 else torch.cat(columns, 1)

    def _previous(self, inputs: Tree, dtype: torch.dtype) -> Tensor:
        """Encode the previous action and reward as ``[N, num_features + 1]``."""
        action = self._inputs.distribution.features(inputs["previous_action"])
        reward = inputs["previous_reward"].clamp(-1.0, 1.0)  # as in IMPALA
        return torch.cat([action.to(dtype), reward.unsqueeze(1).to(dtype)], 1)

    def _values(self, obs: Tree, dtype: torch.dtype) -> Tensor:
        parts = [spaces.values(space, spaces.at(obs, path), dtype) for path, space in self._boxes]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def moments(self, inputs: Tree) -> list[Moments]:
        """Return moments of inputs ``[T, B, ...]``, one for each of :attr:`normalizers`."""
        obs, parts = self.observation(inputs), []
        if self.normalizer is not None:
            flat = tree.map_leaves(lambda x: x.flatten(0, 1), obs)
            parts.append(moments(self._values(flat, torch.float64)))
        for path, part in zip(self._paths, self.parts, strict=True):
            if getattr(part, "normalizer", None) is not None:
                parts.append(cast(Image, part).moments(spaces.at(obs, path)))
        return parts

    @property
    def normalizers(self) -> list[Normalizer | ImageNormalizer]:
        """Return the parts with running statistics of observations."""
        all_parts = (self, *self.parts)
        return [x for x in (getattr(p, "normalizer", None) for p in all_parts) if x is not None]


def least_bytes(network: Network, observation_space: gymnasium.Space) -> int:
    """Return a lower bound on the size of a policy's weights in bytes, without allocating them."""
    rows = [
        isinstance(leaf, Box) and len(leaf.shape) == 1 and spaces.dotted(path) not in network.text
        for path, leaf in walk.leaves(observation_space)  # texts are replaced later
    ]
    units = network.units if network.torso is None and any(rows) else ()
    count = sum(units) + sum(a * b for a, b in itertools.pairwise(units))
    gates = {"lstm": 4, "gru": 3}.get(str(network.core), 0)
    return 4 * (count + gates * network.core_size**2)
