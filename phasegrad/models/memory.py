"""Recurrent layers: what a network remembers of an episode, as a GRU or an LSTM between encoder and heads.

A batch of sequences lies step by step, [L S, ...] for S sequences of L steps. Their states before the first step are
given and count as constants; a step that starts an episode forgets what came before it. The loop over steps is one
operation, `torch.ops.phasegrad.lstm` or `.gru`, with its gradient written out: autograd would spend its time on
thousands of small nodes, and compiled code has a loop of its own in its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from phasegrad.models.encoders import Encoder


@dataclass
class Sequences:
    """Observations of S sequences of L steps, with what came before each of them."""

    observations: Any  # [L S, ...], the first step of every sequence, then the second of each ...
    states: Tensor  # [S, K], before the first step
    starts: Tensor  # [L S], whether an episode starts with this step


class Memory(Encoder):
    """A recurrent layer over features; `features` is the width of what it puts out.

    Weights are [inputs, outputs], as a product with a few rows reads them.
    """

    gates: int  # of a unit
    parts: int  # of its state

    def __init__(self, inputs: int, size: int, head_initialisation: str = "orthogonal") -> None:
        super().__init__()
        self.features, self.state_size = size, self.parts * size
        self.head_initialisation = head_initialisation
        self.input_weights = nn.Parameter(torch.empty(inputs, self.gates * size))
        self.hidden_weights = nn.Parameter(torch.empty(size, self.gates * size))
        self.bias = nn.Parameter(torch.zeros(self.gates * size))
        for weights in (self.input_weights, self.hidden_weights):
            for gate in weights.data.split(size, 1):
                nn.init.orthogonal_(gate)
        # A unit that keeps 0.73 of itself from step to step, and not half, can learn what lies some steps back
        # (Jozefowicz et al. 2015).
        self.bias.data[size : 2 * size] = 1.0

    def forward(self, features: Tensor, states: Tensor, starts: Tensor) -> Tensor:
        """Outputs [L S, features]."""
        return self.unroll(features, states, starts)[0]

    def unroll(self, features: Tensor, states: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs [L S, features] and the states [S, K] after the last step, which carry no gradient."""
        keep = (~starts).to(features.dtype)
        return self._unrolled(self._projected(features), states, keep)

    def step(self, features: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs [S, features] and states [S, K] of one step."""
        states = self._stepped(self._projected(features), states)
        return states[:, : self.features], states

    def _projected(self, features: Tensor) -> Tensor:
        return torch.addmm(self.bias, features, self.input_weights)

    def _stepped(self, projected: Tensor, states: Tensor) -> Tensor:
        raise NotImplementedError

    def _unrolled(self, projected: Tensor, states: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


class LSTM(Memory):
    """Hochreiter and Schmidhuber's cell with a forget gate; gates in torch's order: in, forget, cell, out."""

    gates, parts = 4, 2

    def _stepped(self, projected: Tensor, states: Tensor) -> Tensor:
        hidden, cell = states.chunk(2, 1)
        return torch.cat(lstm_step(projected, hidden, cell, self.hidden_weights), 1)

    def _unrolled(self, projected: Tensor, states: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        outputs, cells = _LSTMUnroll.apply(projected, states, keep, self.hidden_weights)
        count = len(states)
        return outputs, torch.cat([outputs[-count:], cells[-count:]], 1).detach()


class GRU(Memory):
    """Cho et al.'s unit, gates in torch's order: reset, update, new; the reset gate is applied after the product."""

    gates, parts = 3, 1

    def __init__(self, inputs: int, size: int, head_initialisation: str = "orthogonal") -> None:
        super().__init__(inputs, size, head_initialisation)
        self.new_bias = nn.Parameter(torch.zeros(size))  # inside the reset gate's product

    def _stepped(self, projected: Tensor, states: Tensor) -> Tensor:
        return gru_step(projected, states, self.hidden_weights, self.new_bias)

    def _unrolled(self, projected: Tensor, states: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        outputs = _GRUUnroll.apply(projected, states, keep, self.hidden_weights, self.new_bias)
        return outputs, outputs[-len(states) :].detach()


MEMORIES: dict[str, type[Memory]] = {"gru": GRU, "lstm": LSTM}


# One step


def lstm_step(projected: Tensor, hidden: Tensor, cell: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The next hidden and cell state [S, H]; `projected` [S, 4 H] is what the inputs and the bias give the gates."""
    enter, forget, new, leave = (projected + hidden @ weights).chunk(4, 1)
    cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
    return leave.sigmoid() * cell.tanh(), cell


def gru_step(projected: Tensor, hidden: Tensor, weights: Tensor, new_bias: Tensor) -> Tensor:
    """The next hidden state [S, H]."""
    own = hidden @ weights
    (reset, update, new), (own_reset, own_update, own_new) = projected.chunk(3, 1), own.chunk(3, 1)
    update = (update + own_update).sigmoid()
    new = (new + (reset + own_reset).sigmoid() * (own_new + new_bias)).tanh()
    return new + update * (hidden - new)


# All steps, with the gradient written out


def _lstm(projected: Tensor, states: Tensor, keep: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs and cells [L S, H], and the gates [L S, 4 H] after their functions."""
    count, size = len(states), len(weights)
    steps = len(projected) // count
    outputs, cells = projected.new_empty(len(projected), size), projected.new_empty(len(projected), size)
    gates = torch.empty_like(projected)
    hidden, cell = states[:, :size], states[:, size:]
    for t in range(steps):
        rows = slice(t * count, (t + 1) * count)
        kept = keep[rows, None]
        own = torch.addmm(projected[rows], hidden * kept, weights, out=gates[rows])
        enter, forget, new, leave = own.chunk(4, 1)
        own[:, : 2 * size].sigmoid_()
        new.tanh_()
        leave.sigmoid_()
        cell = torch.mul(forget, cell * kept, out=cells[rows]).addcmul_(enter, new)
        hidden = torch.mul(leave, cell.tanh(), out=outputs[rows])
    return outputs, cells, gates


def _lstm_backward(grad: Tensor, states: Tensor, keep: Tensor, weights: Tensor, cells: Tensor, gates: Tensor) -> Tensor:
    """The gradient [L S, 4 H] by the gates before their functions, from that by the outputs."""
    count, size = len(states), len(weights)
    result = torch.empty_like(gates)
    turned = weights.t().contiguous()
    hidden_grad, cell_grad = torch.zeros_like(grad[:count]), torch.zeros_like(grad[:count])
    for t in reversed(range(len(grad) // count)):
        rows = slice(t * count, (t + 1) * count)
        enter, forget, new, leave = gates[rows].chunk(4, 1)
        before = cells[(t - 1) * count : t * count] if t else states[:, size:]
        kept, squashed = keep[rows, None], cells[rows].tanh()
        hidden_grad = hidden_grad + grad[rows]
        cell_grad = cell_grad + hidden_grad * leave * (1 - squashed * squashed)
        own = result[rows]
        torch.mul(cell_grad * new, enter * (1 - enter), out=own[:, :size])
        torch.mul(cell_grad * (before * kept), forget * (1 - forget), out=own[:, size : 2 * size])
        torch.mul(cell_grad * enter, 1 - new * new, out=own[:, 2 * size : 3 * size])
        torch.mul(hidden_grad * squashed, leave * (1 - leave), out=own[:, 3 * size :])
        cell_grad = cell_grad * forget * kept
        hidden_grad = (own @ turned) * kept
    return result


def _gru(projected: Tensor, states: Tensor, keep: Tensor, weights: Tensor, new_bias: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs [L S, H], and [L S, 4 H]: the gates after their functions, and the product that the reset gate scales."""
    count, size = len(states), len(weights)
    outputs = projected.new_empty(len(projected), size)
    gates = projected.new_empty(len(projected), 4 * size)
    hidden = states
    for t in range(len(projected) // count):
        rows = slice(t * count, (t + 1) * count)
        hidden = hidden * keep[rows, None]
        own = hidden @ weights
        reset, update, new, inner = gates[rows].chunk(4, 1)
        torch.add(projected[rows, : 2 * size], own[:, : 2 * size], out=gates[rows, : 2 * size]).sigmoid_()
        torch.add(own[:, 2 * size :], new_bias, out=inner)
        torch.addcmul(projected[rows, 2 * size :], reset, inner, out=new).tanh_()
        hidden = torch.addcmul(new, update, hidden - new, out=outputs[rows])
    return outputs, gates


def _gru_backward(
    grad: Tensor, states: Tensor, keep: Tensor, weights: Tensor, outputs: Tensor, gates: Tensor
) -> Tensor:
    """The gradient [L S, 3 H] by the gates before their functions, from that by the outputs."""
    count, size = len(states), len(weights)
    result = grad.new_empty(len(grad), 3 * size)
    turned = weights.t().contiguous()
    hidden_grad = torch.zeros_like(grad[:count])
    for t in reversed(range(len(grad) // count)):
        rows = slice(t * count, (t + 1) * count)
        reset, update, new, inner = gates[rows].chunk(4, 1)
        kept = keep[rows, None]
        before = (outputs[(t - 1) * count : t * count] if t else states) * kept
        hidden_grad = hidden_grad + grad[rows]
        own = result[rows]
        new_grad = torch.mul(hidden_grad * (1 - update), 1 - new * new, out=own[:, 2 * size :])
        torch.mul(new_grad * inner, reset * (1 - reset), out=own[:, :size])
        torch.mul(hidden_grad * (before - new), update * (1 - update), out=own[:, size : 2 * size])
        through = torch.cat([own[:, : 2 * size], new_grad * reset], 1)
        hidden_grad = (hidden_grad * update + through @ turned) * kept
    return result


_LIBRARY = torch.library.Library("phasegrad", "DEF")
for _signature, _function in {
    "lstm(Tensor projected, Tensor states, Tensor keep, Tensor weights) -> (Tensor, Tensor, Tensor)": _lstm,
    "lstm_backward(Tensor grad, Tensor states, Tensor keep, Tensor weights, Tensor cells, Tensor gates) -> Tensor": (
        _lstm_backward
    ),
    "gru(Tensor projected, Tensor states, Tensor keep, Tensor weights, Tensor new_bias) -> (Tensor, Tensor)": _gru,
    "gru_backward(Tensor grad, Tensor states, Tensor keep, Tensor weights, Tensor outputs, Tensor gates) -> Tensor": (
        _gru_backward
    ),
}.items():
    _LIBRARY.define(_signature)
    _LIBRARY.impl(_signature.split("(")[0], _function, "CompositeExplicitAutograd")


def _held_before(outputs: Tensor, states: Tensor, keep: Tensor, size: int) -> Tensor:
    """The hidden state [L S, H] that each step began with."""
    return torch.cat([states[:, :size], outputs[: -len(states)]]) * keep[:, None]


class _LSTMUnroll(torch.autograd.Function):
    """Outputs and cells of all steps; only the outputs have a gradient."""

    @staticmethod
    def forward(ctx: Any, projected: Tensor, states: Tensor, keep: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        outputs, cells, gates = torch.ops.phasegrad.lstm(projected, states, keep, weights)
        ctx.save_for_backward(projected, states, keep, weights, outputs, cells, gates)
        ctx.mark_non_differentiable(cells)
        return outputs, cells

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        projected, states, keep, weights, outputs, cells, gates = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient is to be differentiated: by autograd, step by step
            return _differentiable(_lstm_outputs, grad, states, keep, projected, weights)
        own = torch.ops.phasegrad.lstm_backward(grad.contiguous(), states, keep, weights, cells, gates)
        return own, None, None, _held_before(outputs, states, keep, len(weights)).t() @ own


class _GRUUnroll(torch.autograd.Function):
    """Outputs of all steps."""

    @staticmethod
    def forward(ctx: Any, projected: Tensor, states: Tensor, keep: Tensor, weights: Tensor, new_bias: Tensor) -> Tensor:
        outputs, gates = torch.ops.phasegrad.gru(projected, states, keep, weights, new_bias)
        ctx.save_for_backward(projected, states, keep, weights, new_bias, outputs, gates)
        return outputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        projected, states, keep, weights, new_bias, outputs, gates = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _differentiable(_gru_outputs, grad, states, keep, projected, weights, new_bias)
        own = torch.ops.phasegrad.gru_backward(grad.contiguous(), states, keep, weights, outputs, gates)
        size = len(weights)
        scaled = own[:, 2 * size :] * gates[:, :size]  # of the product that the reset gate scales
        through = torch.cat([own[:, : 2 * size], scaled], 1)
        return own, None, None, _held_before(outputs, states, keep, size).t() @ through, scaled.sum(0)


def _differentiable(
    outputs_of: Any, grad: Tensor, states: Tensor, keep: Tensor, *inputs: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradients of an unroll as autograd finds them, which can be differentiated again."""
    outputs = outputs_of(states, keep, *inputs)
    projected, *rest = torch.autograd.grad(outputs, inputs, grad, create_graph=True)
    return projected, None, None, *rest


def _lstm_outputs(states: Tensor, keep: Tensor, projected: Tensor, weights: Tensor) -> Tensor:
    hidden, cell = states.chunk(2, 1)
    found = []
    for rows, kept in zip(projected.split(len(states)), keep[:, None].split(len(states)), strict=True):
        hidden, cell = lstm_step(rows, hidden * kept, cell * kept, weights)
        found.append(hidden)
    return torch.cat(found)


def _gru_outputs(states: Tensor, keep: Tensor, projected: Tensor, weights: Tensor, new_bias: Tensor) -> Tensor:
    hidden, found = states, []
    for rows, kept in zip(projected.split(len(states)), keep[:, None].split(len(states)), strict=True):
        hidden = gru_step(rows, hidden * kept, weights, new_bias)
        found.append(hidden)
    return torch.cat(found)
