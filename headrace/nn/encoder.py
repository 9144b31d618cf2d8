"""The built-in torso: from a tree of observations to one vector for the core or the heads."""

from __future__ import annotations

from typing import cast

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box
from gymnasium.spaces.utils import flatdim
from torch import Tensor, nn

from headrace.errors import ConfigError, EnvironmentFault, nearest
from headrace.nn.convolutions import ImageTorso, min_side
from headrace.nn.inputs import Inputs
from headrace.nn.network import Network, dense, mlp
from headrace.nn.normalizer import ImageNormalizer, Normalizer
from headrace.nn.patches import patches
from headrace.nn.precision import Halved, by_patches, memory_format
from headrace.nn.text import TextEncoder
from headrace.ops import stacks, tree
from headrace.ops.moments import Moments, moments
from headrace.spaces import observations as spaces
from headrace.spaces.images import (
    channels_first,
    image_shape,
    is_image,
    num_symbols,
    one_hot_channels,
    scaled,
)
from headrace.spaces.text import text_paths
from headrace.types import Tree

_SEEN = 32  # images of a batch, at most, of which statistics are taken


class Encoder(nn.Module):
    """Inputs ``[N, ...]`` (see :class:`Inputs`) to features ``[N, num_outputs]``.

    Numbers of every kind (Box values, one-hots of Discrete and MultiDiscrete, bits of MultiBinary,
    the previous action and reward) form one vector, which passes the multi-layer perceptron. Each
    image passes convolutions, each text an LSTM; where several of these meet, one dense layer joins
    them. What counts as an image is said by :func:`headrace.spaces.images.is_image`.

    A recurrent core joins by itself: before one there is no such layer, and the previous action and
    reward come to it as they are (Espeholt et al. 2018, Figure 3).

    Raises:
        ConfigError: a space is not supported, an image too small for its convolutions or of an
            unknown layout, or a text or a grid of symbols not there.
    """

    def __init__(self, inputs: Inputs, network: Network) -> None:
        super().__init__()
        self._inputs = inputs
        self._boxes: list[tuple[spaces.Path, Box]] = []
        self._codes: list[tuple[spaces.Path, gymnasium.Space]] = []
        self._paths: list[spaces.Path] = []  # of self.parts
        self.parts = nn.ModuleList()
        self._sort(inputs.features_space, network)
        # One row of numbers needs nothing but its dtype: training CartPole is a tenth faster so.
        row = bool(self._boxes) and self._boxes[0][0] == () and len(self._boxes[0][1].shape) == 1
        self.is_single = row and inputs.plain and self._boxes[0][1].dtype != np.uint8
        num_values = sum(flatdim(space) for _, space in self._boxes)
        num_inputs = num_values + sum(flatdim(space) for _, space in self._codes)
        num_previous = inputs.distribution.num_features + 1 if inputs.previous else 0
        # Whether they pass by the perceptron.
        self._beside = inputs.previous and network.core is not None
        if not self._beside:
            num_inputs += num_previous
        self.mlp = mlp(num_inputs, network) if num_inputs else None
        # In a tuple it is no second submodule. What follows runs at every step of every actor.
        self._first_layer: tuple[nn.Module, ...] = () if self.mlp is None else (self.mlp[0],)
        normalizes = network.normalize_observations and num_values
        self.normalizer = Normalizer(num_values) if normalizes else None
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

    def _sort(self, observation_space: gymnasium.Space, network: Network) -> None:
        """Every leaf to what reads it."""
        known, texts = {}, text_paths(self._inputs.observation_space)
        for path, space in spaces.leaves(observation_space):
            name = spaces.dotted(path) or "obs"
            known[name] = space
            if path in texts or name in network.text:
                part: nn.Module = TextEncoder(spaces.vocabulary(path, space))
            elif name in network.one_hot:
                part = _Image(path, space, network, num_symbols(name, space, network.num_symbols))
            elif is_image(space):
                part = _Image(path, space, network)
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
            for name in getattr(network, setting):
                if name not in known:
                    raise ConfigError(
                        f"{setting}={name!r} is not in the observation space, which has "
                        f"{', '.join(map(repr, known))}.{nearest(name, known)}"
                    )

    def forward(self, inputs: Tree) -> Tensor:
        outputs = [] if self.mlp is None else [self.mlp(self.numbers(inputs))]
        for path, part in zip(self._paths, self.parts, strict=True):
            outputs.append(part(spaces.at(self._observation(inputs), path)))
        if self._beside:
            reward = inputs["previous_reward"]
            outputs.append(self._previous(inputs, (outputs[0] if outputs else reward).dtype))
        features = outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)
        return features if self.join is None else self.join(features)

    def check(self, inputs: Tree) -> None:
        """Look for symbols, tokens and choices in inputs ``[N, ...]`` that there are none of.

        For whoever has another process call this torso; on a GPU only this tells symbols apart.

        Raises:
            EnvironmentFault, IndexError, RuntimeError: there is one.
        """
        obs = self._observation(inputs)
        for path, part in zip(self._paths, self.parts, strict=True):
            cast(_Image | TextEncoder, part).check(spaces.at(obs, path))
        for path, space in self._codes:
            spaces.encode(space, spaces.at(obs, path))

    def _observation(self, inputs: Tree) -> Tree:
        return inputs if self._inputs.plain else inputs["observation"]

    def numbers(self, inputs: Tree) -> Tensor:
        """What the perceptron is given of inputs ``[N, ...]``: ``[N, num_inputs]``."""
        obs = self._observation(inputs)
        dtype = cast(Tensor, self._first_layer[0].weight).dtype
        if self.is_single:
            x = obs if obs.dtype == dtype else obs.to(dtype)
            return x if self.normalizer is None else self.normalizer(x)
        columns = []
        if self._boxes:
            x = self._values(obs, dtype)
            columns.append(x if self.normalizer is None else self.normalizer(x))
        for path, space in self._codes:
            columns.append(spaces.encode(space, spaces.at(obs, path)).to(dtype))
        if self._inputs.previous and not self._beside:
            columns.append(self._previous(inputs, dtype))
        return columns[0] if len(columns) == 1 else torch.cat(columns, 1)

    def _previous(self, inputs: Tree, dtype: torch.dtype) -> Tensor:
        """The previous action as codes and numbers, and reward: ``[N, num_features + 1]``."""
        action = self._inputs.distribution.features(inputs["previous_action"])
        reward = inputs["previous_reward"].clamp(-1.0, 1.0)  # as IMPALA's LSTM is given it
        return torch.cat([action.to(dtype), reward.unsqueeze(1).to(dtype)], 1)

    def _values(self, obs: Tree, dtype: torch.dtype) -> Tensor:
        parts = [spaces.values(space, spaces.at(obs, path), dtype) for path, space in self._boxes]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def moments(self, inputs: Tree) -> list[Moments]:
        """Of what is normalised of inputs ``[T, B, ...]``, one for each of :attr:`normalizers`."""
        obs, found = self._observation(inputs), []
        if self.normalizer is not None:
            flat = tree.map_leaves(lambda x: x.flatten(0, 1), obs)
            found.append(moments(self._values(flat, torch.float64)))
        for path, part in zip(self._paths, self.parts, strict=True):
            if getattr(part, "normalizer", None) is not None:
                found.append(cast(_Image, part).moments(spaces.at(obs, path)))
        return found

    @property
    def normalizers(self) -> list[Normalizer | ImageNormalizer]:
        """What keeps running statistics of observations."""
        all_parts = (self, *self.parts)
        return [x for x in (getattr(p, "normalizer", None) for p in all_parts) if x is not None]


class _Image(nn.Module):
    """Convolutions on the images of one space: ``[N, *space.shape] -> [N, num_outputs]``.

    Args:
        symbols: how many a grid of symbols has; 0: it is an image.
    """

    def __init__(self, path: spaces.Path, space: Box, network: Network, symbols: int = 0) -> None:
        super().__init__()
        self._space, self._layout = space, network.image_layout
        self._name, self._symbols = spaces.dotted(path) or "obs", symbols
        conv = network.conv
        try:
            channels, *sides = image_shape(space, self._layout)
            if conv == "auto":
                conv = "nature" if min(sides) >= min_side("nature") else "impala_deep"
            self.convolutions = ImageTorso(conv, channels * max(symbols, 1), *sides)
        except ConfigError as error:
            raise ConfigError(f"observation space{spaces.place(path)}: {error}") from error
        scale = 1 / 255 if space.dtype == np.uint8 else 1.0
        normalizes = network.normalize_images and not symbols
        self.normalizer = ImageNormalizer((channels, *sides), scale) if normalizes else None
        self.num_outputs = self.convolutions.num_outputs
        self.halved = Halved(self.convolutions, plain=True)

    def forward(self, x: Tensor) -> Tensor:
        """Raises EnvironmentFault where a grid holds what is no symbol of it."""
        dtype = self.halved.dtype
        order = memory_format(dtype, x.device, self.convolutions.residual)
        if self._symbols:
            if x.device.type == "cpu" and not torch.compiler.is_compiling():
                self.check(x)  # elsewhere it would wait; who acts has looked
            given = self._space, self._symbols, dtype, self._layout
            return self.halved(one_hot_channels(x, *given).contiguous(memory_format=order))
        image = channels_first(x, self._space, self._layout)
        # Bytes are cut before they are cast; of other numbers not all can be cut.
        x = image if image.dtype == torch.uint8 else image.to(dtype, memory_format=order)
        side = self.convolutions.patch_side if by_patches(dtype, x.device) else 1
        if (cut := patches(x, side)) is x:
            side = 1
        else:
            x, order = cut, torch.preserve_format
        if self.normalizer is None:
            return self.halved(scaled(x, self._space, dtype, order))
        x = x.to(dtype, memory_format=order)
        return self.halved(self.normalizer(x, side, in_place=x is not image))

    def moments(self, x: Tree) -> Moments:
        """Of the pixels of some of the images ``[T, B, *space.shape]``, or of stacks apart."""
        rows = tree.map_leaves(lambda x: x.flatten(0, 1).unsqueeze(0), x)
        shape = tree.leaves(rows)[0].shape
        index = torch.linspace(0, shape[1] - 1, min(shape[1], _SEEN)).long()
        some = stacks.flat(tree.map_leaves(lambda x: x[:, index], rows))
        return moments(channels_first(some, self._space, self._layout).flatten(1))

    def check(self, x: Tensor) -> None:
        """See :meth:`Encoder.check`."""
        if not x.numel() or not self._symbols:
            return
        bounds, low = map(int, x.aminmax()), int(self._space.low.min())
        for value in bounds:
            if not low <= value < low + self._symbols:
                raise EnvironmentFault(
                    f"one_hot={self._name!r} holds {value}, which is none of its {self._symbols} "
                    f"symbols, {low} to {low + self._symbols - 1}: give another num_symbols"
                )
