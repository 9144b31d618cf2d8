"""The recurrent core: single steps for actors, whole fragments with resets for the learner.

A column of a fragment restarts wherever an observation came from a reset. A fragment without resets
is one call of torch's fused kernel. On a CPU an LSTM with resets needs one call as well: a row
before each reset clears the state (0), and columns with fewer resets end in rows without effect
(dots)

    column 0   a a a 0 b b b b b
    column 1   c c c c c c c c .

On an accelerator a fragment is cut at its resets into segments for one packed call. CPUs have no
fused kernel for a GRU. It is unrolled with a hand-written backward pass, which is faster than
torch's because it has one matrix product for all inputs and one for each weight's gradient.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence

from headrace.errors import ConfigError, require_choice

CORES = ("lstm", "gru")
_SHUT = 1e4  # input of a gate at which it is exactly closed; with the opposite sign it is open

State = dict[str, Tensor]


class Recurrent(nn.Module):
    """One recurrent layer whose state is cleared at every start of an episode.

    ``state`` is always the state *before* the reset of the first row. Nothing before a reset
    affects values or gradients after it, not even NaN.

    Args:
        kind: one of ``CORES``. "lstm": Hochreiter & Schmidhuber (1997) with the forget gates of
            Gers et al. (2000). "gru": Cho et al. (2014), in the variant of ``torch.nn.GRU``.
        num_inputs: number of features of a row, ``F`` below.
        size: number of units, ``H`` below.

    Raises:
        ConfigError: the kind is unknown or a number is below 1.
    """

    def __init__(self, kind: str, num_inputs: int, size: int) -> None:
        super().__init__()
        require_choice("core", kind, CORES)
        for name, value in (("num_inputs", num_inputs), ("size", size)):
            if value < 1:
                raise ConfigError(f"{name}={value} of the {kind} core must be at least 1")
        self.kind, self.size = kind, size
        self._names = ("h", "c") if kind == "lstm" else ("h",)
        self.rnn = orthogonal_gates((nn.LSTM if kind == "lstm" else nn.GRU)(num_inputs, size))

    def initial(self, num_envs: int) -> State:
        """Return zeros, the state at an episode's start: ``{"h": [num_envs, H]}``, and ``"c"``."""
        zeros = self.rnn.weight_hh_l0.new_zeros
        return {name: zeros(num_envs, self.size) for name in self._names}

    def step(self, x: Tensor, first: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute one row: the output ``[B, H]``, which is also the state's "h", and the new state.

        Args:
            x: ``[B, F]``, features.
            first: ``[B]`` bool, the row came from a reset.
            state: ``[B, H]`` each.
        """
        begins = first.unsqueeze(1)
        h = state["h"].masked_fill(begins, 0.0)
        if self.kind == "gru":
            h = torch.gru_cell(x, h, *self._weights())
            return h, {"h": h}
        c = state["c"].masked_fill(begins, 0.0)
        h, c = torch.lstm_cell(x, (h, c), *self._weights())
        return h, {"h": h, "c": c}

    def forward(self, x: Tensor, first: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute the outputs ``[T, B, H]`` of a fragment, as with ``step``, and the last state.

        Differentiable once.

        Args:
            x: ``[T, B, F]`` with ``T >= 1``, features.
            first: ``[T, B]`` bool, the row came from a reset.
            state: ``[B, H]`` each.
        """
        first_cpu = first.cpu()  # packed sequences need their lengths on the CPU
        if not first_cpu[1:].any():
            return self._run(x, self._begin(first[0], state))
        if x.device.type != "cpu":
            return self._packed(x, first_cpu, self._begin(first[0], state))
        if self.kind == "lstm":
            begin = self._begin(first[0], state)
            whole = math.isfinite(sum(float(part.detach().sum()) for part in (x, *begin)))
            way = self._with_cleared_state if whole else self._packed  # gates don't stop NaN
            return way(x, first_cpu, begin)
        y = _UnrollGRU.apply(x, first, state["h"], *self._weights())
        return y, {"h": y[-1]}

    def _weights(self) -> list[Tensor]:
        return self.rnn.all_weights[0]

    def _begin(self, first: Tensor, state: State) -> list[Tensor]:
        return [state[name].masked_fill(first.unsqueeze(1), 0.0) for name in self._names]

    def _packed(self, x: Tensor, first: Tensor, begin: list[Tensor]) -> tuple[Tensor, State]:
        batch_sizes, *indices = segments(first)
        place, order, initial, final = (index.to(x.device) for index in indices)
        zeros = x.new_zeros(int(batch_sizes[0]), self.size)
        rows = PackedSequence(x.flatten(0, 1)[order], batch_sizes)
        y, end = self._run(rows, [zeros.index_copy(0, initial, part) for part in begin])
        state = {name: part[final] for name, part in end.items()}
        return y.data[place].unflatten(0, first.shape), state

    def _with_cleared_state(
        self, x: Tensor, first: Tensor, begin: list[Tensor]
    ) -> tuple[Tensor, State]:
        """Compute an LSTM's columns in one fused call, with inserted rows that clear the state.

        Two additional inputs control the gates in the inserted rows. Both close the input gate; one
        closes the forget gate, which clears the state, the other opens it, which keeps c.
        """
        (num_rows, num_columns), num_inputs = first.shape, x.shape[2]
        resets = first.clone()
        resets[0] = False
        before = resets.cumsum(0)  # rows inserted before this one
        place = torch.arange(num_rows * num_columns).view_as(before) + before * num_columns
        total = num_rows + int(before[-1].max())
        rows = x.new_zeros(total * num_columns, num_inputs + 2)
        rows[:, num_inputs + 1] = 1.0
        rows[place[resets] - num_columns, num_inputs:] = rows.new_tensor([1.0, 0.0])
        place = place.flatten()
        rows = rows.index_copy(0, place, functional.pad(x.flatten(0, 1), (0, 2)))
        w_ih, *others = self._weights()
        gates = w_ih.new_tensor([[-1.0, -1.0], [-1.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
        works = gates.mul_(_SHUT).repeat_interleave(self.size, 0)
        y, _, c = torch.lstm(
            rows.view(total, num_columns, -1),
            tuple(part.unsqueeze(0) for part in begin),
            [torch.cat((w_ih, works), 1), *others],
            *(True, 1, 0.0, False, False, False),
        )
        y = y.flatten(0, 1).index_select(0, place).unflatten(0, first.shape)
        return y, {"h": y[-1], "c": c[0]}

    def _run(self, x: Any, begin: list[Tensor]) -> tuple[Any, State]:
        hidden = tuple(part.unsqueeze(0) for part in begin)
        y, end = self.rnn(x, hidden if self.kind == "lstm" else hidden[0])
        parts = zip(self._names, end if self.kind == "lstm" else (end,), strict=True)
        return y, {name: part[0] for name, part in parts}


class UnrolledCore:
    """A core's output for a fragment with its backward pass, for callers without autograd.

    Args:
        x: ``[N, F]``, features.
        first, state: as in :meth:`Recurrent.forward`.
    """

    def __init__(self, core: Recurrent, x: Tensor, first: Tensor, state: State) -> None:
        with torch.inference_mode(False), torch.enable_grad():
            self._inputs = [x.clone().requires_grad_(), *core.parameters()]
            self._y = core(self._inputs[0].unflatten(0, first.shape), first, state)[0].flatten(0, 1)
        self.y = self._y.detach()  # [N, H]

    def backward(self, grad: Tensor, into: list[Tensor]) -> Tensor:
        """Return the gradient of x from that of y; gradients of weights are written to ``into``."""
        with torch.inference_mode(False):
            grad_x, *others = torch.autograd.grad(self._y, self._inputs, grad.clone())
        for to, part in zip(into, others, strict=True):
            to.copy_(part)
        return grad_x


def orthogonal_gates(rnn: Any) -> Any:
    """Initialise the weights of a one-layer LSTM or GRU in place.

    Each gate's matrix is orthogonal with gain 1. Recurrent states thus keep their norm over many
    steps (Saxe et al., 2014). Biases are 0, except 1 for an LSTM's forget gate, so that it starts
    by remembering (Jozefowicz et al., 2015).
    """
    size, bias = rnn.hidden_size, rnn.bias_ih_l0
    with torch.no_grad():
        for weight in (rnn.weight_ih_l0, rnn.weight_hh_l0):
            for gate in weight.split(size):
                nn.init.orthogonal_(gate)
        bias.zero_()
        rnn.bias_hh_l0.zero_()
        if isinstance(rnn, nn.LSTM):
            bias[size : 2 * size] = 1.0  # torch's order: input, forget, cell, output
    return rnn


def segments(first: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Cut every column at its resets, and number the segments from the longest to the shortest.

    Args:
        first: ``[T, B]`` bool on the CPU; row 0 always begins a segment.

    Returns:
        batch sizes of the ``PackedSequence`` of all segments; ``place`` ``[T * B]``, the position
        of each element of the flattened fragment in it, and ``order``, its inverse; ``initial`` and
        ``final`` ``[B]``, the first and last segment of each column. All int64.
    """
    num_rows, num_columns = first.shape
    begins = first.clone()
    begins[0] = True
    row = torch.arange(num_rows).unsqueeze(1)
    age = row - torch.where(begins, row, 0).cummax(0).values  # rows since the segment's beginning
    number = begins.t().reshape(-1).cumsum(0).view(num_columns, num_rows).t() - 1
    longest_first = number.reshape(-1).bincount().argsort(descending=True, stable=True)
    rank = longest_first.argsort()[number]
    batch_sizes = age.reshape(-1).bincount()
    place = ((batch_sizes.cumsum(0) - batch_sizes)[age] + rank).reshape(-1)
    return batch_sizes, place, place.argsort(), rank[0], rank[-1]


class _UnrollGRU(torch.autograd.Function):
    """Unrolls a GRU: ``(x, first, h, weights) -> outputs [T, B, H]``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, first: Tensor, h: Tensor, *weights: Tensor) -> Tensor:
        w_ih, w_hh, b_ih, b_hh = weights
        num_rows, size, begins = len(x), w_hh.shape[1], first.unsqueeze(2)
        bias = torch.cat(((b_ih + b_hh)[: 2 * size], b_ih[2 * size :]))
        gates = torch.addmm(bias, x.flatten(0, 1), w_ih.t()).unflatten(0, first.shape)
        hs = torch.cat((h[None], h.new_empty(num_rows, *h.shape)))
        recalled = torch.empty_like(hs[1:])  # what the reset gate scales
        w_rz, w_n = w_hh[: 2 * size].t(), w_hh[2 * size :].t()
        for t in range(num_rows):
            h_before = hs[t].masked_fill(begins[t], 0.0)
            gates[t, :, : 2 * size].addmm_(h_before, w_rz).sigmoid_()
            r, z, n = gates[t].chunk(3, 1)
            n.addcmul_(r, torch.addmm(b_hh[2 * size :], h_before, w_n, out=recalled[t])).tanh_()
            torch.lerp(n, h_before, z, out=hs[t + 1])
        ctx.save_for_backward(x, first, w_ih, w_hh, gates, hs, recalled)
        return hs[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        x, first, w_ih, w_hh, gates, hs, recalled = ctx.saved_tensors
        begins = first.unsqueeze(2)
        h_before = hs[:-1].masked_fill(begins, 0.0)
        r, z, n = gates.chunk(3, 2)
        # Derivative of the output by each gate's input, which becomes the gradient. The candidate
        # has two: by the product with the state, which the reset gate scales, and by that with x.
        slope_n = (1 - z) * (1 - n * n)
        slope = torch.stack(
            (slope_n * recalled * r * (1 - r), (h_before - n) * z * (1 - z), slope_n * r), 2
        )
        grad_h = torch.zeros_like(h_before[0])
        for t in reversed(range(len(x))):
            grad_h += grad_y[t]
            slope[t] *= grad_h.unsqueeze(1)
            slope_n[t] *= grad_h
            grad_h.mul_(z[t]).addmm_(slope[t].flatten(1), w_hh).masked_fill_(begins[t], 0.0)
        grad = slope.flatten(2).flatten(0, 1)
        grad_w_hh, grad_b_hh = _weight_gradient(h_before, grad), grad.sum(0)
        slope[:, :, 2] = slope_n
        grad_x = (grad @ w_ih).unflatten(0, first.shape) if ctx.needs_input_grad[0] else None
        return grad_x, None, grad_h, _weight_gradient(x, grad), grad_w_hh, grad.sum(0), grad_b_hh


def _weight_gradient(rows: Tensor, grad: Tensor) -> Tensor:
    # The transposed product is faster with few inputs.
    return (rows.flatten(0, 1).t() @ grad).t()
