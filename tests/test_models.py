"""Networks: shapes, initialisation, which loss reaches which parameters, the flat vector and the steps on it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from phasegrad.algorithms.ppo import PPOConfig
from phasegrad.compute.optimizers import Adam
from phasegrad.compute.stepping import Stepper
from phasegrad.errors import ConfigError
from phasegrad.models import ActorCritic, FlatParameters, build_model
from phasegrad.models.encoders import GridCNN, ImpalaCNN, NatureCNN

HWC = spaces.Box(0, 255, (64, 64, 3), np.uint8)
CHW = spaces.Box(0, 255, (3, 64, 64), np.uint8)
VECTOR = spaces.Box(-1, 1, (5,))
MIXED = spaces.Dict({"image": spaces.Box(0, 255, (40, 44, 3), np.uint8), "speed": VECTOR, "kind": spaces.Discrete(3)})
OBSERVATIONS: dict[str, gym.Space] = {
    "vector": VECTOR,
    "matrix": spaces.Box(-1, 1, (2, 3)),
    "hwc": HWC,
    "chw": CHW,
    "grid": spaces.Box(0, 10, (7, 7, 3), np.uint8),
    "discrete": spaces.Discrete(6),
    "multidiscrete": spaces.MultiDiscrete([2, 3]),
    "multibinary": spaces.MultiBinary(4),
    "dict": MIXED,
}
ACTIONS: dict[str, gym.Space] = {
    "discrete": spaces.Discrete(4),
    "multidiscrete": spaces.MultiDiscrete([2, 3]),
    "multibinary": spaces.MultiBinary(3),
    "box": spaces.Box(-2, 2, (2,)),
}


def config(**fields: Any) -> PPOConfig:
    fields = {"arch": "shared"} | fields
    made = PPOConfig(**{name: value for name, value in fields.items() if name != "arch"})
    made.arch = fields["arch"]  # also detach, which PPO's config does not offer
    return made


def model_of(
    observation: gym.Space = VECTOR, action: gym.Space = ACTIONS["discrete"], auxiliary: bool = False, **fields: Any
) -> ActorCritic:
    return build_model(observation, action, config(**fields), auxiliary)


def batch_of(space: gym.Space, size: int = 3, seed: int = 0) -> Any:
    space.seed(seed)
    samples = [space.sample() for _ in range(size)]
    if isinstance(space, spaces.Dict):
        return {name: torch.from_numpy(np.stack([s[name] for s in samples])) for name in space}
    return torch.from_numpy(np.stack(samples))


@pytest.mark.parametrize("arch", ["shared", "dual", "detach"])
@pytest.mark.parametrize("name", OBSERVATIONS)
def test_shapes_for_every_observation_space(name: str, arch: str) -> None:
    space = OBSERVATIONS[name]
    model = model_of(space, arch=arch)
    batch = batch_of(space)
    params, values = model.policy_and_value(batch)
    assert params.shape == (3, 4)
    assert values.shape == (3,)
    assert torch.equal(params, model.policy(batch))
    assert torch.equal(values, model.value(batch))
    assert values.dtype == torch.float32
    # Every part of the observation must matter: a network that ignores an entry has the right shapes as well.
    for key in space if isinstance(space, spaces.Dict) else [None]:
        other = batch_of(space, seed=5)
        changed = other if key is None else {**batch, key: other[key]}
        assert not torch.equal(model.value(changed), values), key


@pytest.mark.parametrize("name", ACTIONS)
def test_parameter_shapes_for_every_action_space(name: str) -> None:
    model = model_of(action=ACTIONS[name])
    params = model.policy(batch_of(VECTOR))
    assert params.shape == (3, model.distribution.parameter_size)
    assert model.distribution.mode(params).shape == (3, *model.distribution.action_shape)


def test_encoder_for_each_image() -> None:
    assert isinstance(model_of(HWC).policy_encoder, NatureCNN)
    assert isinstance(model_of(OBSERVATIONS["grid"]).policy_encoder, GridCNN)
    assert isinstance(model_of(HWC, encoder="impala").policy_encoder, ImpalaCNN)
    for space, encoder in ((OBSERVATIONS["grid"], "nature"), (VECTOR, "impala"), (VECTOR, "nature"), (VECTOR, "grid")):
        with pytest.raises(ConfigError, match="encoder"):
            model_of(space, encoder=encoder)


@pytest.mark.parametrize("encoder", ["nature", "impala", "grid"])
def test_both_image_layouts_give_the_same_features(encoder: str) -> None:
    hwc, chw = (model_of(space, encoder=encoder, seed=4).policy_encoder for space in (HWC, CHW))
    for mine, theirs in zip(hwc.parameters(), chw.parameters(), strict=True):
        assert torch.equal(mine, theirs), "the weights are a function of the seed"
    images = batch_of(HWC, 4)
    features = hwc(images)
    assert features.shape == (4, hwc.features)
    assert features.abs().max() > 0.01
    torch.testing.assert_close(chw(images.permute(0, 3, 1, 2).contiguous()), features, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("space", [HWC, CHW])
def test_pixels_are_scaled_floats_in_channels_last_memory(space: spaces.Box) -> None:
    encoder = model_of(space, encoder="impala").policy_encoder
    images = batch_of(space)
    kept = images.clone()
    pixels = encoder.pixels(images)
    assert pixels.shape == (3, 3, 64, 64)
    assert pixels.is_contiguous(memory_format=torch.channels_last)
    expected = (images.permute(0, 3, 1, 2) if space is HWC else images).double() / 255
    torch.testing.assert_close(pixels.double(), expected, rtol=1e-6, atol=1e-7)
    assert torch.equal(images, kept)


def unit_norms(layer: nn.Module) -> Tensor:
    return layer.weight.detach().flatten(1).norm(dim=1)


def test_impala_initialisation_is_the_published_one() -> None:
    model = model_of(HWC, encoder="impala", arch="dual", auxiliary=True)
    for encoder in (model.policy_encoder, model.value_encoder):
        convolutions = [m for m in encoder.modules() if isinstance(m, nn.Conv2d)]
        assert [c.out_channels for c in convolutions] == [16] * 5 + [32] * 10
        for index, layer in enumerate(convolutions):
            norm = 1.0 if index % 5 == 0 else math.sqrt(1 / math.sqrt(3) / math.sqrt(2))
            torch.testing.assert_close(unit_norms(layer), torch.full((layer.out_channels,), norm), rtol=1e-5, atol=0)
        assert encoder.dense.weight.shape == (256, 32 * 8 * 8)
        torch.testing.assert_close(unit_norms(encoder.dense), torch.full((256,), 1.4), rtol=1e-5, atol=0)
    for head in (model.policy_head.linear, model.value_head, model.auxiliary_head):
        torch.testing.assert_close(unit_norms(head), torch.full((head.out_features,), 0.1), rtol=1e-5, atol=0)
    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert all((layer.bias == 0).all() for layer in layers)


def test_mlp_initialisation_is_orthogonal() -> None:
    model = model_of(arch="dual", policy_gain=0.01)
    first, second = (m for m in model.policy_encoder.modules() if isinstance(m, nn.Linear))
    torch.testing.assert_close(first.weight.T @ first.weight, 2 * torch.eye(5), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(second.weight @ second.weight.T, 2 * torch.eye(64), rtol=1e-4, atol=1e-4)
    head = model.policy_head.linear.weight
    torch.testing.assert_close(head @ head.T, 1e-4 * torch.eye(4), rtol=1e-4, atol=1e-7)
    assert model.value_head.weight.norm().item() == pytest.approx(1.0, rel=1e-4)
    assert all((m.bias == 0).all() for m in model.modules() if isinstance(m, nn.Linear))


def test_impoola_pools_over_the_image() -> None:
    assert model_of(HWC, encoder="impala", impala_pooling="mean").policy_encoder.dense.in_features == 32


def test_weights_are_a_function_of_the_seed_and_leave_the_global_generator_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    first, second, other = (model_of(seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.policy_head.linear.weight, other.policy_head.linear.weight)


# What a loss reaches


def reached(model: ActorCritic, loss: Tensor) -> set[str]:
    """The modules whose parameters get a gradient."""
    model.zero_grad(set_to_none=True)
    loss.backward()
    return {name.split(".")[0] for name, p in model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}


@pytest.mark.parametrize(
    ("arch", "policy", "value", "auxiliary"),
    [
        (
            "dual",
            {"policy_encoder", "policy_head"},
            {"value_encoder", "value_head"},
            {"policy_encoder", "auxiliary_head"},
        ),
        (
            "shared",
            {"policy_encoder", "policy_head"},
            {"policy_encoder", "value_head"},
            {"policy_encoder", "value_head"},
        ),
        ("detach", {"policy_encoder", "policy_head"}, {"value_head"}, {"policy_encoder", "value_head"}),
    ],
)
def test_each_loss_reaches_exactly_its_parameters(
    arch: str, policy: set[str], value: set[str], auxiliary: set[str]
) -> None:
    model = model_of(arch=arch, auxiliary=True)
    batch = batch_of(VECTOR)
    assert reached(model, model.policy_and_value(batch)[0].square().sum()) == policy
    assert reached(model, model.policy_and_value(batch)[1].square().sum()) == value
    assert reached(model, model.value(batch).square().sum()) == value
    assert reached(model, model.policy_and_auxiliary_value(batch)[1].square().sum()) == auxiliary
    assert reached(model, model.policy_and_auxiliary_value(batch)[0].square().sum()) == policy


def test_parameter_groups_hold_every_parameter_once() -> None:
    for arch, names in (("dual", ["policy", "value"]), ("shared", ["policy"]), ("detach", ["policy", "value"])):
        model = model_of(arch=arch, auxiliary=True, action=ACTIONS["box"])
        groups = model.parameter_groups()
        assert list(groups) == names
        found = [id(p) for group in groups.values() for p in group]
        assert sorted(found) == sorted(id(p) for p in model.parameters())
    model = model_of(arch="detach")
    assert {id(p) for p in model.parameter_groups()["value"]} == {id(p) for p in model.value_head.parameters()}


# Continuous actions


def test_state_independent_std_starts_as_asked_and_learns() -> None:
    model = model_of(action=ACTIONS["box"], std="state_independent", initial_std=0.5)
    params = model.policy(batch_of(VECTOR))
    torch.testing.assert_close(params[:, 2:], torch.full((3, 2), math.log(0.5)))
    (gradient,) = torch.autograd.grad(params[:, 2:].sum(), model.policy_head.log_std)
    assert gradient.tolist() == [3.0, 3.0]


def test_state_dependent_std_starts_as_asked_follows_the_state_and_keeps_its_floor() -> None:
    model = model_of(action=ACTIONS["box"], std="state_dependent", initial_std=0.5, std_floor=0.01)
    batch = batch_of(VECTOR)
    torch.testing.assert_close(model.policy(batch)[:, 2:].exp(), torch.full((3, 2), 0.51), rtol=0.05, atol=0)
    with torch.no_grad():
        model.policy_head.linear.weight[2:].mul_(100)
    stds = model.policy(batch)[:, 2:].exp()
    assert (stds[0] != stds[1]).all()
    with torch.no_grad():
        model.policy_head.linear.bias[2:] = -1000.0
    torch.testing.assert_close(model.policy(batch)[:, 2:].exp(), torch.full((3, 2), 0.01))


def test_fixed_std_is_a_share_of_the_action_range() -> None:
    space = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
    clipped, rescaled = (model_of(action=space, std="fixed", action_bounds=b) for b in ("clip", "rescale"))
    torch.testing.assert_close(clipped.policy(batch_of(VECTOR))[:, 2:].exp()[0], torch.tensor([0.05 * 4, 0.05 * 10]))
    torch.testing.assert_close(rescaled.policy(batch_of(VECTOR))[:, 2:].exp()[0], torch.tensor([0.1, 0.1]))
    assert not any("std" in name for name, _ in clipped.named_parameters())
    with pytest.raises(ConfigError, match="finite bounds"):
        model_of(action=spaces.Box(-np.inf, np.inf, (2,)), std="fixed")


def test_mean_tanh_bounds_the_mean_and_nothing_else() -> None:
    plain, bounded = (
        model_of(action=ACTIONS["box"], mean_tanh=flag, policy_gain=50.0, initial_std=0.3) for flag in (False, True)
    )
    batch = batch_of(VECTOR)
    raw, squashed = plain.policy(batch), bounded.policy(batch)
    assert raw[:, :2].abs().max() > 1
    torch.testing.assert_close(squashed[:, :2], raw[:, :2].tanh())
    assert torch.equal(squashed[:, 2:], raw[:, 2:])


def test_masks_reach_the_parameters() -> None:
    model = model_of()
    mask = torch.tensor([[True, False, True, True]] * 3)
    probabilities = model.policy(batch_of(VECTOR), mask).softmax(-1)
    assert (probabilities[:, 1] == 0).all()
    assert torch.equal(model.policy_and_value(batch_of(VECTOR), mask)[0], model.policy(batch_of(VECTOR), mask))


# A user's own encoder


class DoublingEncoder(nn.Module):
    def __init__(self, space: gym.Space) -> None:
        super().__init__()
        self.features = 7
        self.linear = nn.Linear(space.shape[0], 7)

    def forward(self, observation: Tensor) -> Tensor:
        return 2 * self.linear(observation)


def test_a_custom_encoder_is_one_argument() -> None:
    model = model_of(arch="dual", encoder=DoublingEncoder)
    assert isinstance(model.policy_encoder, DoublingEncoder)
    assert isinstance(model.value_encoder, DoublingEncoder)
    assert model.policy_encoder is not model.value_encoder
    batch = batch_of(VECTOR)
    torch.testing.assert_close(model.value(batch), model.value_head(2 * model.value_encoder.linear(batch)).squeeze(-1))


@pytest.mark.parametrize("encoder", [lambda space: nn.Linear(5, 3), lambda space: "mlp"])
def test_a_custom_encoder_without_features_is_refused(encoder: Any) -> None:
    with pytest.raises(ConfigError, match="features"):
        model_of(encoder=encoder)


# The flat vector


@pytest.mark.parametrize(("space", "encoder"), [(VECTOR, "mlp"), (HWC, "impala"), (MIXED, "auto")])
@pytest.mark.parametrize("arch", ["shared", "dual"])
def test_flattening_keeps_the_function_and_collects_the_gradients(space: gym.Space, encoder: str, arch: str) -> None:
    model, twin = (model_of(space, arch=arch, encoder=encoder, auxiliary=True) for _ in range(2))
    flat = FlatParameters(model.parameter_groups())
    batch = batch_of(space)
    for mine, theirs in zip(model.policy_and_value(batch), twin.policy_and_value(batch), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    for each in (model, twin):
        params, values = each.policy_and_value(batch)
        (params.square().sum() + values.square().sum()).backward()
    total = 0.0
    for (name, mine), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        if theirs.grad is None:  # a head this loss does not use
            assert (mine.grad == 0).all(), name
            continue
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-4)
        total += theirs.grad.double().square().sum().item()
    assert flat.grad.double().square().sum().item() == pytest.approx(total, rel=1e-3)
    assert total > 0


def test_flat_slices_partition_the_vector_and_parameters_are_views_of_it() -> None:
    model = model_of(HWC, arch="dual", encoder="impala")
    flat = FlatParameters(model.parameter_groups())
    assert [flat.slices["policy"].start, flat.slices["policy"].stop] == [0, flat.slices["value"].start]
    assert flat.slices["value"].stop == flat.data.numel()
    convolutions = [p for p in model.parameters() if p.dim() == 4]
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in convolutions)
    with torch.no_grad():
        flat.data[flat.slices["policy"]] = 0.0
    groups = model.parameter_groups()
    assert all((p == 0).all() for p in groups["policy"])
    assert any((p != 0).any() for p in groups["value"])
    with torch.no_grad():  # no two parameters share a place, and padding is all that is left over
        flat.data.zero_()
        for p in model.parameters():
            p.add_(1.0)
    assert set(flat.data.unique().tolist()) == {0.0, 1.0}
    assert flat.data.sum().item() == sum(p.numel() for p in model.parameters())


# Gradient steps


@pytest.mark.parametrize("eps", [1e-5, 1e-8])
def test_adam_is_that_of_torch(eps: float) -> None:
    model, twin = (model_of(arch="dual") for _ in range(2))
    flat = FlatParameters(model.parameter_groups())
    optimizers = {group: Adam(flat, where, eps) for group, where in flat.slices.items()}
    rates = {"policy": 1e-2, "value": 3e-3}
    theirs = torch.optim.Adam(
        [{"params": p, "lr": rates[name]} for name, p in twin.parameter_groups().items()], eps=eps
    )
    for step in range(60):
        batch = batch_of(VECTOR, 8, seed=step)
        flat.grad.zero_()
        twin.zero_grad(set_to_none=False)
        for each in (model, twin):
            params, values = each.policy_and_value(batch)
            (params.square().sum() + (values - 1).square().sum()).backward()
        for name, optimizer in optimizers.items():
            optimizer.step(flat.grad[flat.slices[name]], rates[name])
        theirs.step()
    for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-5)
    assert optimizers["policy"].steps.item() == 60
    assert set(optimizers["policy"].state()) == {"first", "second", "steps"}


@dataclass
class Rows:
    """The least that a Stepper needs of a batch."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.inputs)

    def split(self, size: int) -> Any:
        for start in range(0, len(self), size):
            yield Rows(self.inputs[start : start + size], self.targets[start : start + size])


class Regression:
    """Two linear maps as parameter groups, and a loss on both; in float64 where nothing speaks against it."""

    def __init__(
        self, max_grad_norm: float = 0.0, microbatch: int = 1 << 30, dtype: torch.dtype = torch.float64
    ) -> None:
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, 1, dtype=dtype), nn.Linear(3, 1, dtype=dtype)
        self.flat = FlatParameters({"policy": list(self.first.parameters()), "value": list(self.second.parameters())})
        self.optimizers = {name: Adam(self.flat, where) for name, where in self.flat.slices.items()}
        self.stepper = Stepper(self.flat, self.optimizers, max_grad_norm, microbatch)
        generator = torch.Generator().manual_seed(1)
        inputs, targets = (torch.randn(shape, generator=generator, dtype=dtype) for shape in ((37, 3), (37,)))
        self.batch = Rows(inputs, targets)

    def loss(self, batch: Rows, scalars: Any) -> tuple[Tensor, dict[str, Tensor]]:
        errors = (self.first(batch.inputs).squeeze(-1) - scalars["scale"] * batch.targets).square().mean()
        small = 1e-3 * self.second(batch.inputs).square().mean()
        return errors + small, {"error": errors}

    def step(self) -> dict[str, Tensor]:
        """One step with a learning rate of 0; the gradients as Adam saw them, from the change of its first moment."""
        before = {name: optimizer.first.clone() for name, optimizer in self.optimizers.items()}
        self.stepper.step("regression", self.loss, self.batch, {"scale": 5.0}, {"policy": 0.0, "value": 0.0})
        return {name: (optimizer.first - 0.9 * before[name]) / 0.1 for name, optimizer in self.optimizers.items()}

    def expected(self) -> dict[str, Tensor]:
        """The gradient of the loss over the whole batch."""
        value, _ = self.loss(self.batch, {"scale": 5.0})
        modules = {"policy": self.first, "value": self.second}
        return {
            name: torch.cat(
                [g.flatten() for g in torch.autograd.grad(value, list(module.parameters()), retain_graph=True)]
            )
            for name, module in modules.items()
        }


@pytest.mark.parametrize("microbatch", [1, 5, 36, 37])
def test_microbatches_give_the_gradient_and_metrics_of_one_pass(microbatch: int) -> None:
    whole, pieces = Regression(), Regression(microbatch=microbatch)
    wanted = whole.expected()
    for problem in (whole, pieces):
        for name, gradient in problem.step().items():
            torch.testing.assert_close(gradient, wanted[name], rtol=1e-9, atol=1e-12)
    mine, theirs = pieces.stepper.take_metrics(), whole.stepper.take_metrics()
    assert mine == pytest.approx(theirs, rel=1e-12)
    assert set(mine) == {"error", "policy_grad_norm", "value_grad_norm"}
    assert mine["policy_grad_norm"] == pytest.approx(wanted["policy"].norm().item(), rel=1e-9)


def test_each_group_is_clipped_by_its_own_norm() -> None:
    problem = Regression(max_grad_norm=0.5, dtype=torch.float32)  # torch's kernel scales float32 gradients only
    free, clipped = problem.expected(), problem.step()
    assert free["policy"].norm() > 0.5 > free["value"].norm() > 0
    torch.testing.assert_close(clipped["policy"], 0.5 * free["policy"] / free["policy"].norm(), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(clipped["value"], free["value"], rtol=1e-5, atol=1e-9)  # a short gradient stays as it is
    norms = problem.stepper.take_metrics()
    assert norms["policy_grad_norm"] == pytest.approx(free["policy"].norm().item()), "the norm before clipping"


def test_gradients_do_not_add_up_over_steps() -> None:
    problem = Regression()
    first, second = problem.step(), problem.step()
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-9, atol=1e-12)
    assert problem.stepper.mean_since("error", 1) == pytest.approx(problem.stepper.mean_since("error", 0))
