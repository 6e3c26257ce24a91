"""The acting step: what a policy makes of the observations of a step, written where the rollout keeps it."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from phasegrad.compute.checking import require_same_outputs
from phasegrad.compute.native import Program
from phasegrad.compute.native.program import pointers
from phasegrad.data.transfers import device_of, fetch, send_tree, to_device
from phasegrad.errors import PhasegradWarning
from phasegrad.machine.clock import compiling
from phasegrad.models import ActorCritic
from phasegrad.models.encoders import ImageEncoder, JointEncoder
from phasegrad.models.modes import require_recordable
from phasegrad.models.precision import FULL, in_precision
from phasegrad.tree import named_leaves, tree_map

if TYPE_CHECKING:
    from phasegrad.data.storage import Rollout


class Actor:
    """Distribution parameters, sampled actions and, where the trunk is shared, values, step by step of a rollout.

    `compiled` puts the whole step, or all that follows an image encoder, into one call of machine code; it writes the same
    fields from the same noise.
    """

    def __init__(self, model: ActorCritic, device: torch.device, compiled: bool = False, precision: str = FULL) -> None:
        self.model, self.device, self.compiled, self.precision = model, device, compiled, precision
        self.remembers = model.state_size > 0
        self.acts_with_value = self.remembers or not model.value_is_separate
        self._crosses = False  # whether the rollout lies elsewhere than the networks
        self._program: Program | None = None
        self.runs_program = False  # whether compiled code fills the rollout under way
        self._encoders = [model.policy_encoder]  # whose networks the step goes through
        if self.remembers and model.value_encoder is not None:
            self._encoders.append(model.value_encoder)
        self._images = [pair for encoder in self._encoders for pair in images_of(encoder).items()]

    def begin(self, rollout: Rollout, noise: Tensor, states: Tensor | None = None, stack: Any = None) -> None:
        """Get ready to fill `rollout`, whose first observations are in place, from `noise` [T, N, K].

        `states` [N, M] is what a policy with a memory remembers; each step puts there what it remembers next. `stack`
        [N, ...] is where each step finds what it sees, where that is more than the rollout's observation.
        """
        self.rollout, self.noise, self.states = rollout, to_device(noise, self.device), states
        self._crosses = device_of(rollout.observations).type != self.device.type
        self.seen = rollout.observations  # [T, N, ...]; a stack is at the same place at every step
        if stack is not None:
            self.seen = tree_map(lambda leaf: leaf.expand(rollout.num_steps, *leaf.shape), stack)
        if not self.acts_with_value:
            self.seen = self.model.for_policy(self.seen)
        self._hold_weights(True)
        self.runs_program = self.compiled and self._only_dense_is_left() and self._begin_compiled(rollout, self.noise)

    def end(self) -> None:
        """The rollout is full; the weights may change."""
        self._hold_weights(False)

    def act(self, t: int) -> None:
        """Fill step `t`; the steps of a rollout come in order."""
        rollout = self.rollout
        if self.runs_program and self._program is not None:
            for (name, encoder), features in zip(self._images, self._features, strict=True):
                leaf = self.seen[name] if name else self.seen
                features.copy_(encoder(leaf[t]))
            self._program.run()
            self._program.inputs += self._input_steps
            self._program.outputs += self._output_steps
            return
        observation = tree_map(lambda leaf: leaf[t], self.seen)
        mask = None if rollout.masks is None else rollout.masks[t]
        if self._crosses:  # from storage that did not fit on the device
            observation, mask = send_tree([observation, mask], self.device)
        if self.precision == FULL:
            outputs = self._forward(observation, mask, self.noise[t], self.states)
        else:
            with in_precision(self.model, self.precision):
                outputs = self._forward(observation, mask, self.noise[t], self.states)
        if self.states is not None:
            self.states.copy_(outputs.pop())
        if self._crosses:
            outputs = fetch(outputs)
        for field, output in zip(self._fields(rollout), outputs, strict=True):
            field[t] = output

    def _hold_weights(self, held: bool) -> None:
        for module in self.model.modules():
            if isinstance(module, ImageEncoder) and module.compiled_layers is not None:
                module.compiled_layers.hold(held)

    def _only_dense_is_left(self) -> bool:
        """Whether all convolutions of the policy, if any, are compiled on their own."""
        theirs = {
            id(p) for _, image in self._images if image.compiled_layers is not None for p in image.layers.parameters()
        }
        return all(p.dim() < 4 or id(p) in theirs for encoder in self._encoders for p in encoder.parameters())

    def _forward(self, observation: Any, mask: Tensor | None, noise: Tensor, states: Tensor | None) -> list[Tensor]:
        if states is not None:
            params, value, after = self.model.step(observation, mask, states)
            return [params, self.model.distribution.sample(params, noise), value, after]
        if self.acts_with_value:
            params, value = self.model.policy_and_value(observation, mask)
            return [params, self.model.distribution.sample(params, noise), value]
        params = self.model.policy(observation, mask)
        return [params, self.model.distribution.sample(params, noise)]

    def _fields(self, rollout: Rollout) -> list[Tensor]:
        """Where in a rollout the outputs of a step belong."""
        fields = [rollout.behaviour_params, rollout.actions]
        return [*fields, rollout.values] if self.acts_with_value else fields

    def _begin_compiled(self, rollout: Rollout, noise: Tensor) -> bool:
        """Have the program read and write where the rollout lies; whether there is a program."""
        images = {name for name, _ in self._images}
        vectors = {name: leaf for name, leaf in named_leaves(self.seen) if name not in images}
        steps = [*vectors.values(), *([] if rollout.masks is None else [rollout.masks]), noise.contiguous()]
        fields = self._fields(rollout)
        if self._program is None:
            try:
                with compiling():
                    self._compile(list(vectors), steps, fields)
            except Exception as error:  # a user's network may do what is not known here; it still acts
                self.compiled = False
                warnings.warn(f"Acting runs without compiled code: {error}", PhasegradWarning, stacklevel=2)
                return False
        program = self._program
        assert program is not None
        self._held = steps  # while their addresses are in use
        starts, strides = addresses(steps)
        held = [] if self.states is None else [self.states]  # read and written in place
        still = pointers([*held, *self._features])
        program.inputs[:] = np.concatenate([still, starts])
        self._input_steps = np.concatenate([np.zeros_like(still), strides])
        outputs, output_steps = addresses(fields)
        program.outputs[:] = np.concatenate([outputs, pointers(held)])
        self._output_steps = np.concatenate([output_steps, np.zeros(len(held), dtype=np.uint64)])
        return True

    def _compile(self, vectors: list[str], steps: list[Tensor], fields: list[Tensor]) -> None:
        """The acting step as a program of the images' features, vectors, mask and noise, shown to compute what torch does."""
        first = tree_map(lambda leaf: leaf[0].clone(), self.seen)
        images = {name: first[name] if name else first for name, _ in self._images}

        held = [] if self.states is None else [self.states]

        def function(*given: Tensor) -> list[Tensor]:
            states, inputs = (given[0], given[1:]) if held else (None, given)
            features, rest = inputs[: len(self._images)], inputs[len(self._images) :]
            observation = {**images, **dict(zip(vectors, rest, strict=False))}
            mask = rest[len(vectors)] if len(rest) > len(vectors) + 1 else None
            with given_features([encoder for _, encoder in self._images], features):
                return self._forward(
                    observation if isinstance(first, dict) else observation[""], mask, rest[-1], states
                )

        with torch.inference_mode(False), torch.no_grad():
            self._features = [encoder(images[name]).clone() for name, encoder in self._images]
            before = [torch.randn(state.shape, generator=torch.Generator().manual_seed(0)) for state in held]
            examples = [*before, *self._features, *(tensor[0].clone() for tensor in steps)]
            require_recordable(self.model, lambda: function(*examples))
            program = Program(function, examples)
            places = [*(field[0] for field in fields), *held]
            for output, place in zip(program(*examples), places, strict=True):
                if output.dtype != place.dtype or output.shape != place.shape:
                    wanted = f"{place.dtype} {tuple(place.shape)}"
                    raise TypeError(f"an output is {output.dtype} {tuple(output.shape)}, not {wanted}")
            dense = [
                parameter for parameter in self.model.parameters() if parameter.dim() < 4
            ]  # images come as features
            require_same_outputs(program, function, examples, dense)
        self._program = program


@contextlib.contextmanager
def given_features(encoders: Iterable[ImageEncoder], features: Sequence[Tensor]) -> Iterator[None]:
    """While it lasts, image encoders have these features [B, F], whatever they are shown."""
    replaced = list(encoders)
    for encoder, given in zip(replaced, features, strict=True):
        encoder.forward = lambda _, given=given: given
    try:
        yield
    finally:
        for encoder in replaced:
            del encoder.forward


def images_of(encoder: nn.Module) -> dict[str, ImageEncoder]:
    """The image encoders among a policy's, by the name of what they look at; a plain observation has the empty name."""
    if isinstance(encoder, ImageEncoder):
        return {"": encoder}
    if not isinstance(encoder, JointEncoder):
        return {}
    pairs = zip(encoder.image_names, encoder.images, strict=True)
    return {name: image for name, image in pairs if isinstance(image, ImageEncoder)}


def addresses(tensors: Sequence[Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """Where step 0 of time-major tensors lies, and how many bytes on each further step is."""
    return pointers(tensors), np.array(
        [tensor.stride(0) * tensor.element_size() for tensor in tensors], dtype=np.uint64
    )
