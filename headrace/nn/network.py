"""Settings of the policy network, and constructors of dense layers."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from torch import nn

from headrace.errors import ConfigError
from headrace.nn.activations import ACTIVATIONS
from headrace.spaces.images import Layout
from headrace.spaces.text import check_vocabulary
from headrace.validation import ranges
from headrace.validation.fields import check_fields, settings

LOG_STD = ranges.Range(-20, 20, words="between -20 and 20")
TORSO = ranges.Constraint(
    "a torch.nn.Module, a callable that returns one, its name (as in 'module:function'), or None",
    bool,
    whole=True,
)
if TYPE_CHECKING:
    Torso: TypeAlias = Any  # a module, a callable that returns one, or the callable's name
else:
    Torso = Annotated[str | None, ranges.PythonOnly(Callable[..., Any]), TORSO]


SYMBOLS = ("one_hot", "num_symbols", "clip_symbols")
LEFT_TO_THE_RUN = (
    *("hidden", "normalize_observations", "normalize_values", "scale_actions"),
    *SYMBOLS,
)


@settings()
@dataclass(frozen=True)
class Network:
    """Settings of the policy network."""

    hidden: Annotated[tuple[Annotated[int, ranges.WIDTH], ...] | None, ranges.A_FEW] = None
    """Units of each hidden layer of the multi-layer perceptron; None: two layers of 64, or of 256
    if one network is trained on several tasks."""
    activation: Literal["tanh", "relu", "elu"] = "tanh"
    """Activation after each hidden layer: tanh, relu or elu."""
    shared: bool | None = None
    """Share one torso between policy and value. None: only with images, a core or a custom
    torso."""
    conv: Literal[
        "auto", "nature", "impala_shallow", "impala_deep", "impact", "minatar", "small"
    ] = "auto"
    """Convolutions for images; auto: nature, for sides below 36 small, and below 16 minatar."""
    image_layout: Layout = "auto"
    """Position of the channels of images; auto: derived from the shape (last if all sides are
    equal); an ambiguous shape raises an error."""
    one_hot: tuple[str, ...] | None = None
    """Parts of a Dict observation that are grids of symbols instead of images ("obs": an
    observation without parts). Convolutions get one channel per symbol. None: images with few
    possible values, or only small ones at the start; none: no part."""
    num_symbols: Annotated[int | None, ranges.WIDTH] = None
    """Number of symbols in such a grid, counted from its lower bound; None: up to its upper
    bound, or what recognised grids need."""
    clip_symbols: bool | None = None
    """Treat values beyond these symbols as the last one. False: they raise an error. None: only in
    recognised grids."""
    text: tuple[str, ...] = ()
    """Parts of a Dict observation that are rows of tokens for an LSTM (0 is padding). Text spaces
    are recognised without being named."""
    vocabulary: tuple[str, ...] = ()
    """Known words of texts; (): all words, by hash."""
    word_buckets: Annotated[int, ranges.SIZE] = 1000
    """Number of hash buckets for words; IMPALA's agents had 1000."""
    max_words: Annotated[int, ranges.WIDTH] = 32
    """Largest number of words read from a text; later words are ignored."""
    core: Literal["lstm", "gru"] | None = None
    """Recurrent layer between torso and heads."""
    core_size: Annotated[int, ranges.WIDTH] = 128
    """Units of the recurrent layer."""
    previous_action_reward: bool = False
    """Feed the previous action and the previous reward, clipped to [-1, 1], to the network."""
    normalize_observations: bool | None = None
    """Normalise Box observations by their running mean and standard deviation; None: same as the
    run's scale_free, and False with a custom torso."""
    normalize_images: bool = False
    """Subtract each pixel's running mean from images, and divide by one running standard deviation
    of all pixels, before the convolutions."""
    normalize_values: bool | None = None
    """Train values in units of the running standard deviation of their targets (PopArt); None: same
    as the run's scale_free."""
    scale_actions: bool | None = None
    """Scale Box actions with two finite bounds, so that the policy acts in [-1, 1]. None: as the
    run's scale_free. Actions with an infinite bound keep the environment's units."""
    squash_actions: bool = False
    """Squash Box actions to their bounds with tanh instead of clipping them; always scales them."""
    log_std_init: Annotated[float, LOG_STD] = 0.0
    """Log of the initial standard deviation of Box actions, in the units of scale_actions."""
    use_sde: bool = False
    """State-dependent exploration (gSDE): the noise of Box actions is a random linear function of
    the last features. Turns off compiled acting and gradients."""
    sde_sample_freq: Annotated[int | None, ranges.COUNT] = None
    """Steps after which use_sde draws a new random function; None: once per rollout."""
    task_id: bool = False
    """With several tasks: give the network the task's number as a one-hot vector."""
    per_task_values: bool = False
    """With several tasks: a separate value head and running statistics of targets for each task
    (PopArt). The rest of the network doesn't get the task's number."""
    torso: Torso = None
    """Custom torso instead of the built-in ones: a module, or a callable (or its "module:name")
    that returns one for an observation space. It maps observations [N, …] to features [N, F]."""

    def __post_init__(self) -> None:
        named = isinstance(self.one_hot, str | tuple | list)
        if named and self.one_hot in ("none", ("none",), ["none"]):
            object.__setattr__(self, "one_hot", ())
        check_fields(self)
        if self.core is not None and self.shared is False:
            raise ConfigError(
                f"shared=False is for feed-forward networks: with core={self.core!r} policy and "
                "value share torso and core (leave shared out, or set core=None)"
            )
        check_vocabulary(self.vocabulary)
        if self.sde_sample_freq is not None and not self.use_sde:
            raise ConfigError("sde_sample_freq requires use_sde=True: set use_sde, or leave it out")
        for name in ("normalize_observations", "normalize_images"):
            if self.torso is not None and getattr(self, name):
                raise ConfigError(
                    f"{name}=True is for the built-in torsos: a custom torso normalises its "
                    "observations itself (leave one of the two out)"
                )

    @property
    def units(self) -> tuple[int, ...]:
        """Return ``hidden``, or its default for one task."""
        return (64, 64) if self.hidden is None else self.hidden

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict of the arguments that make an equal network."""
        fields: dict[str, Any] = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        torso = self.torso
        if torso is not None and not isinstance(torso, str):
            named = torso if hasattr(torso, "__qualname__") else type(torso)
            fields["torso"] = f"{named.__module__}:{named.__qualname__}"
        return fields


def orthogonal(layer: Any, gain: float) -> Any:
    """Initialise a layer in place with orthogonal weights of this gain and zero biases."""
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def dense(num_inputs: int, num_outputs: int, activation: str) -> nn.Sequential:
    """Create one layer with its activation, orthogonal with gain sqrt(2)."""
    kind = ACTIVATIONS[activation]
    linear = orthogonal(kind.linear(num_inputs, num_outputs), math.sqrt(2))
    return nn.Sequential(linear) if kind.module is None else nn.Sequential(linear, kind.module())


def mlp(num_inputs: int, network: Network) -> nn.Sequential:
    """Create a multi-layer perceptron, ``[..., num_inputs] -> [..., units[-1]]``."""
    layers: list[nn.Module] = []
    for num_in, num_out in itertools.pairwise((num_inputs, *network.units)):
        layers += dense(num_in, num_out, network.activation)
    return nn.Sequential(*layers)
