"""Action distributions, as pure functions of the parameters that a network outputs.

Noise is drawn separately from sampling: an actor draws it once for a whole fragment, and a sample
is a function of its arguments. Parameters and actions may have any leading dimensions;
log-probabilities, entropies and divergences are sums over the dimensions of one action. A logit of
-inf forbids a choice and is safe in every method. Each distribution has

    noise(shape, generator)   ``[*shape, num_noise]`` float32 on the generator's device (None: CPU)
    sample(params, noise)     the action ``[..., *]`` selected by the noise
    log_prob(params, action)  ``[...]``
    entropy(params)           ``[...]`` in nats
    kl(params_p, params_q)    ``KL(p || q)`` ``[...]``, inf where p allows a choice that q forbids
    mode(params)              the likeliest action
    apply_mask(params, mask)  -inf where ``mask`` ``[..., num_mask]`` bool is False
    features(action)          ``[..., num_features]`` float32

    num_outputs   outputs of a policy's head
    num_free      parameters that depend on no observation: a Gaussian's log standard deviations
    num_params    their sum; params = cat([outputs, free], -1)
    num_noise     the noise's last dimension
    num_mask      bits of an action mask, one for each choice; 0 without masks
    num_features  features of an action as an input of a network (:meth:`features`)

Methods raise ValueError for a wrong shape or structure, and TypeError for a wrong dtype.
"""

from __future__ import annotations

from typing import TypeAlias

from headrace.ops.distributions.composite import Composite
from headrace.ops.distributions.discrete import Bernoulli, Categorical, MultiCategorical
from headrace.ops.distributions.gaussian import DiagGaussian, SquashedGaussian

Distribution: TypeAlias = (
    Categorical | MultiCategorical | Bernoulli | DiagGaussian | SquashedGaussian | Composite
)

__all__ = [
    "Bernoulli",
    "Categorical",
    "Composite",
    "DiagGaussian",
    "Distribution",
    "MultiCategorical",
    "SquashedGaussian",
]
