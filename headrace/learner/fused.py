"""Computes forward and backward passes of the built-in dense networks in few operations.

With a few hundred samples per step, autograd's bookkeeping takes longer than the arithmetic. Both
torsos have the same shape, so they are computed as one network with a leading dimension of two,
and gradients are written into one flat vector. A recurrent core still uses autograd for its few
calls. Other networks use autograd alone, which is also the oracle of the tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from headrace.algos.common import Hyperparameters, PolicyOutputs
from headrace.learner.native import native_network
from headrace.learner.parameter_views import ParameterViews
from headrace.nn.encoder import DenseLayers, Encoder
from headrace.nn.exact_modules import is_exactly
from headrace.nn.policy import Policy
from headrace.nn.popart import PopArt
from headrace.nn.recurrent import Recurrent, UnrolledCore
from headrace.ops import tree
from headrace.ops.action_bounds import bounds_slope
from headrace.ops.distributions.scores import has_score, score
from headrace.ops.loss_derivatives import derivatives
from headrace.types import Batch, Loss, Metrics, State, Tree


def can_fuse(policy: Policy) -> bool:
    """Return True if :class:`FusedNetwork` computes exactly the same function as this policy."""
    heads = policy.policy_head, policy.value_head
    if policy.network.use_sde or not is_exactly(policy, Policy):
        return False
    if not all(is_exactly(x, nn.Linear) for x in heads):
        return False
    units = policy.popart is None or is_exactly(policy.popart, PopArt)
    if not units or not (policy.core is None or is_exactly(policy.core, Recurrent)):
        return False
    each = _dense_layers(policy)
    if each is None or any(head.bias is None for head in heads):
        return False
    first, *others = each
    activation = first.activation
    if activation.in_place is None or activation.backward is None:
        return False
    if any(dense.activation is not activation for dense in others):
        return False
    shapes = [[layer.weight.shape for layer in dense.linear] for dense in each]
    if shapes[0] != shapes[-1]:
        return False
    layers = [layer for dense in each for layer in dense.linear]
    shared = {id(layer.weight) for layer in layers} | {id(layer.bias) for layer in layers}
    return len(shared) == 2 * len(layers)  # tied ones would overwrite each other's gradients


def _dense_layers(policy: Policy) -> list[DenseLayers] | None:
    """Return the dense layers of each torso.

    None if a torso has other parts, or if the torsos have different inputs.
    """
    torso, value_torso = policy.torso, policy.value_torso
    if not isinstance(torso, Encoder):
        return None
    torsos = [torso]
    if value_torso is not None:
        if not isinstance(value_torso, Encoder) or not torso.same_numbers(value_torso):
            return None
        torsos.append(value_torso)
    layers = [x.exact_layers() for x in torsos]
    return None if any(x is None for x in layers) else cast(list[DenseLayers], layers)


class _Passed(NamedTuple):
    """Intermediate results of a forward pass; samples are the last dimension of the outputs."""

    layers: list[Tensor]  # [K, N, inputs], then [K, N, outputs] of each layer
    core: UnrolledCore | None
    hidden: tuple[Tensor, Tensor]  # [N, width] each: inputs of the policy head and the value head
    outputs: Tensor  # [num_outputs, N] of the policy's head
    params: Tensor  # [N, num_params]
    value: Tensor  # [N]


class FusedNetwork:
    """Computes the gradient of a loss with respect to a policy; safe to use from several threads.

    Args:
        policy: a policy for which :func:`can_fuse` is True.
        flat: tensor of which the parameters are views.

    Attributes:
        native: compiled functions that replace :meth:`by_hand`; None without them.
    """

    def __init__(self, policy: Policy, flat: Tensor) -> None:
        layers = _dense_layers(policy)
        assert layers is not None
        self._policy, self._layers = policy, layers
        self._weights = ParameterViews(policy, layers, flat)
        self._torso, self._activation = cast(Encoder, policy.torso), layers[0].activation
        both = (cast(Encoder, x) for x in (policy.torso, policy.value_torso) if x is not None)
        self._normalizers = [x.normalizer for x in both if x.normalizer is not None]
        self._free: list[ParameterViews] = []  # gradient buffers that aren't in use
        self.native = native_network(policy, layers, flat)

    def knows(self, algorithm: Hyperparameters, state: State) -> bool:
        """Return True if :meth:`by_hand` supports this algorithm's loss and the distribution."""
        return algorithm.has_whole_loss(state) and has_score(self._policy.distribution)

    def is_current(self) -> bool:
        """Return True if both torsos have equal statistics, because they share one input."""
        if len(self._normalizers) < 2:
            return True
        one, other = self._normalizers
        dtype = self._torso.value_dtype or self._weights.flat.dtype
        same_center = torch.equal(one.center_for(dtype), other.center_for(dtype))
        return same_center and torch.equal(one.scale, other.scale)

    def by_hand(
        self, algorithm: Hyperparameters, batch: Batch, state: State
    ) -> tuple[Tensor, Metrics]:
        """Return the flat gradient ``[P]`` and metrics of the loss of an algorithm's terms."""
        if self.native is not None:
            return self.native.by_hand(algorithm, batch, state)
        with torch.inference_mode():  # whose operations cost a fifth less than no_grad's
            gradient, metrics = self._by_hand(algorithm, batch, state)
        return self._taken(gradient), metrics

    def _by_hand(
        self, algorithm: Hyperparameters, batch: Batch, state: State
    ) -> tuple[ParameterViews, Metrics]:
        passed, policy, shape = self._forward(batch), self._policy, batch.valid.shape
        num = batch.num_steps
        action = tree.map_leaves(lambda x: x.flatten(0, 1), batch.action)
        outputs = passed.params.t()[: passed.outputs.shape[0], :num]
        scored = score(policy.distribution, outputs, self._weights.log_std, action)
        said = PolicyOutputs(
            scored.log_prob.view(shape),
            scored.entropy.view(shape),
            passed.value.view(-1, shape[1]),
            passed.params[:num].unflatten(0, shape),
            policy.popart,
            policy.action_bounds,
        )
        d_log_prob, d_value, metrics = derivatives(
            algorithm.terms(said, batch, state),
            said.log_prob,
            said.entropy,
            said.value[: shape[0]],
            batch.log_prob,
            batch.valid,
            algorithm.value_coef,
            self._value_scale,
        )
        coef = algorithm.entropy_coef
        d_entropy = batch.valid.flatten().to(d_value.dtype).mul_(-coef) if coef > 0 else None
        d_outputs, *d_free = scored.pull(d_log_prob, d_entropy)
        if algorithm.bounds_coef > 0 and said.bounds is not None:
            slope = bounds_slope(passed.params[:num], said.bounds)
            slope = torch.where(batch.valid.reshape(-1, 1), slope, 0.0)
            d_outputs.index_add_(0, said.bounds.places, slope.t(), alpha=algorithm.bounds_coef)
        return self._backward(passed, d_value, d_outputs, *d_free), {**metrics}

    def by_autograd(self, loss: Callable[[Any], Loss], batch: Batch) -> tuple[Tensor, Metrics]:
        """Return the flat gradient ``[P]`` and metrics of any loss.

        Autograd differentiates the loss with respect to the network's outputs only.

        Args:
            loss: called with an object that has the policy's interface and fixed outputs.
        """
        with torch.no_grad():
            passed, shape = self._forward(batch), batch.first.shape
        outputs = passed.params.unflatten(0, shape), passed.value.view(shape)
        params, value = (x.detach().requires_grad_() for x in outputs)
        total, metrics = loss(_Outputs(self._policy, params, value))
        d_params, d_value = torch.autograd.grad(total, (params, value), materialize_grads=True)
        with torch.no_grad():
            split = d_params.flatten(0, 1).t().tensor_split([len(passed.outputs)])
            gradient = self._backward(passed, d_value.flatten() * self._value_scale, *split)
        return self._taken(gradient), metrics

    @property
    def _value_scale(self) -> float:
        return 1.0 if self._policy.popart is None else float(self._policy.popart.scale)

    def _forward(self, batch: Batch) -> _Passed:
        policy, weights, core = self._policy, self._weights, None
        inputs = tree.map_leaves(lambda x: x.flatten(0, 1), batch.obs)
        x = self._torso.numbers(inputs)
        layers = [x.expand(weights.transposed[0].shape[0], *x.shape)]
        for weight, (_, bias) in zip(weights.transposed, weights.layers, strict=True):
            layers.append(self._dense(layers[-1], weight, bias))
        hidden, value_hidden = layers[-1][0], layers[-1][-1]
        if policy.core is not None:
            core = UnrolledCore(policy.core, hidden, batch.first, batch.core)
            hidden = value_hidden = core.y  # which both share
        weight, bias = weights.policy_head
        outputs = torch.addmm(bias.unsqueeze(1), weight, hidden.t())
        weight, bias = weights.value_head
        value = torch.addmv(bias, value_hidden, weight[0])
        value = value if policy.popart is None else policy.popart(value)
        params = policy.finished(outputs.t(), inputs)
        return _Passed(layers, core, (hidden, value_hidden), outputs, params, value)

    def _dense(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Compute one layer of all torsos."""
        of = self._activation
        assert of.in_place is not None
        return of.in_place(torch.baddbmm(bias, x, weight, beta=of.factor, alpha=of.factor))

    def _backward(
        self, passed: _Passed, d_value: Tensor, d_outputs: Tensor, d_free: Tensor | None = None
    ) -> ParameterViews:
        """Return the gradient; derivatives may cover only the first samples.

        Args:
            d_value: ``[N]``, derivatives by the value head's output.
            d_outputs: ``[num_outputs, N]``, derivatives by the policy head's outputs.
            d_free: ``[num_free, N]``, derivatives by parameters that don't depend on observations.
        """
        try:
            gradient = self._free.pop()  # another thread may take the last one
        except IndexError:
            gradient = self._new_gradient()
        num = d_value.shape[0]
        hidden, value_hidden = (x[:num] for x in passed.hidden)
        weight, bias = gradient.policy_head
        torch.mm(d_outputs, hidden, out=weight)
        torch.sum(d_outputs, 1, out=bias)
        weight, bias = gradient.value_head
        torch.mv(value_hidden.t(), d_value, out=weight[0])
        torch.sum(d_value, 0, keepdim=True, out=bias)
        if d_free is not None and gradient.log_std is not None:
            torch.sum(d_free, 1, out=gradient.log_std)
        self._backward_torsos(gradient, passed, d_value, d_outputs)
        return gradient

    def _backward_torsos(
        self, gradient: ParameterViews, passed: _Passed, d_value: Tensor, d_outputs: Tensor
    ) -> None:
        weights, activation = self._weights, self._activation.backward
        assert activation is not None
        num, layers = d_value.shape[0], passed.layers
        if num < passed.value.shape[0]:
            layers = [y[:, :num] for y in layers]
        grad = torch.empty_like(layers[-1])
        rows = grad[0] if passed.core is None else torch.zeros_like(passed.hidden[0])
        torch.mm(d_outputs.t(), weights.policy_head[0], out=rows[:num])
        if grad.shape[0] == 1:
            rows[:num].addr_(d_value, weights.value_head[0][0])
        else:
            torch.mul(d_value.unsqueeze(1), weights.value_head[0], out=grad[1])
        if passed.core is not None:
            grad[0] = passed.core.backward(rows, gradient.core)[:num]
        for i in reversed(range(len(weights.layers))):
            weight, bias = gradient.layers[i]
            grad = activation(grad, layers[i + 1])
            torch.sum(grad, 1, keepdim=True, out=bias)
            if i == 0:  # with few inputs the transposed product takes half as long
                weight.copy_(torch.bmm(layers[0].transpose(1, 2), grad).transpose(1, 2))
            else:
                torch.bmm(grad.transpose(1, 2), layers[i], out=weight)
                grad = torch.bmm(grad, weights.layers[i][0])

    def _taken(self, gradient: ParameterViews) -> Tensor:
        flat = gradient.flat.clone()
        self._free.append(gradient)
        return flat

    def _new_gradient(self) -> ParameterViews:
        with torch.inference_mode(False):
            return ParameterViews(self._policy, self._layers, torch.zeros_like(self._weights.flat))


class _Outputs:
    """Has a policy's interface and returns given outputs."""

    def __init__(self, policy: Policy, params: Tensor, value: Tensor) -> None:
        self._policy, self._params, self._value = policy, params, value

    def __call__(self, inputs: Tree, first: Tensor, core: Tree) -> tuple[Tensor, Tensor, Tree]:
        return self._params, self._value, core

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)
