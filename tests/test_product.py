"""The product of distributions against sums over torch's, its noise, masks and layout, with parts of every kind."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch import distributions as td

from phasegrad.distributions import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    Distribution,
    MultiCategorical,
    Product,
    distribution_for,
    register_distribution,
)
from phasegrad.distributions.choosing import DISTRIBUTIONS
from phasegrad.errors import ConfigError, EnvError

KINDS = {
    "choice": lambda: Categorical(3),
    "choices": lambda: MultiCategorical([2, 4]),
    "bits": lambda: Bernoulli(2),
    "numbers": lambda: DiagonalGaussian(2),
}


def reference(part: Distribution, params: Tensor) -> list[td.Distribution]:
    """Independent distributions of torch, one for each number of an action."""
    if isinstance(part, Categorical):
        return [td.Categorical(logits=params)]
    if isinstance(part, MultiCategorical):
        return [td.Categorical(logits=logits) for logits in params.split(part.sizes, -1)]
    if isinstance(part, Bernoulli):
        return [td.Bernoulli(logits=logit) for logit in params.unbind(-1)]
    means, logs = params.chunk(2, -1)
    return [td.Normal(mean, log.exp()) for mean, log in zip(means.unbind(-1), logs.unbind(-1), strict=True)]


def references(product: Product, params: Tensor) -> list[td.Distribution]:
    pieces = zip(product.parts.values(), params.split(product.parameter_sizes, -1), strict=True)
    return [one for part, own in pieces for one in reference(part, own)]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=5), seed=st.integers(0, 10**6))
def test_log_prob_entropy_kl_and_gradients_are_sums_of_those_of_torch(kinds: list[str], seed: int) -> None:
    product = Product({f"{i}": KINDS[kind]() for i, kind in enumerate(kinds)})
    draw = torch.Generator().manual_seed(seed)
    params, other = (torch.randn(5, product.parameter_size, generator=draw, dtype=torch.float64) for _ in range(2))
    params, other = params.requires_grad_(), other.requires_grad_()
    actions = product.sample(params, product.draw_noise((5,), draw)).detach()
    assert actions.shape == (5, *product.action_shape)
    assert actions.dtype == (torch.float32 if "numbers" in kinds else torch.int64)
    ps, qs = references(product, params), references(product, other)
    columns = actions.double().unbind(-1)
    wanted = {
        "log_prob": sum(p.log_prob(column) for p, column in zip(ps, columns, strict=True)),
        "entropy": sum(p.entropy() for p in ps),
        "kl": sum(td.kl_divergence(p, q) for p, q in zip(ps, qs, strict=True)),
    }
    found = {
        "log_prob": product.log_prob(params, actions),
        "entropy": product.entropy(params),
        "kl": product.kl(params, other),
    }
    for name, value in found.items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-6, atol=1e-6, msg=name)
        for tensor in (params, other) if name == "kl" else (params,):
            mine, theirs = (
                torch.autograd.grad(result.sum(), tensor, retain_graph=True)[0] for result in (value, wanted[name])
            )
            torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6, msg=f"gradient of {name}")
    torch.testing.assert_close(
        product.mode(params).double(),
        torch.stack([p.mean if isinstance(p, td.Normal) else p.mode.double() for p in ps], -1).detach(),
        check_dtype=False,
        rtol=1e-6,
        atol=1e-6,
    )


def test_each_part_has_its_own_kind_of_noise() -> None:
    product = Product({name: make() for name, make in KINDS.items()})
    noise = product.draw_noise((4000, 3), torch.Generator().manual_seed(0))
    assert torch.equal(noise, product.draw_noise((4000, 3), torch.Generator().manual_seed(0)))
    uniform, normal = noise[..., :5], noise[..., 5:]
    assert uniform.min() >= 0
    assert uniform.max() < 1
    torch.testing.assert_close(uniform.mean(), torch.tensor(0.5), rtol=0, atol=0.01)
    torch.testing.assert_close(normal.mean(), torch.tensor(0.0), rtol=0, atol=0.03)
    torch.testing.assert_close(normal.std(), torch.tensor(1.0), rtol=0, atol=0.03)
    assert abs(torch.corrcoef(noise.reshape(-1, 7).T).fill_diagonal_(0)).max() < 0.04


def test_samples_have_the_probabilities_of_their_parts() -> None:
    product = Product({"move": Categorical(3), "aim": DiagonalGaussian(1)})
    params = torch.tensor([0.0, 1.0, -1.0, 0.5, -0.7]).expand(20_000, -1)
    actions = product.sample(params, product.draw_noise((20_000,), torch.Generator().manual_seed(1)))
    shares = torch.bincount(actions[:, 0].long(), minlength=3) / 20_000
    torch.testing.assert_close(shares, params[0, :3].softmax(-1), rtol=0, atol=0.01)
    torch.testing.assert_close(actions[:, 1].std(), torch.tensor(-0.7).exp(), rtol=0.03, atol=0)


def test_masks_reach_the_parts_they_belong_to() -> None:
    product = Product({"aim": DiagonalGaussian(2), "move": Categorical(3), "keys": MultiCategorical([2, 2])})
    assert product.mask_size == 7
    assert product.mask_sizes == (3, 2, 2)
    draw = torch.Generator().manual_seed(0)
    params = torch.randn(64, product.parameter_size, generator=draw)
    mask = torch.rand(64, 7, generator=draw) < 0.4
    for start, stop in ((0, 3), (3, 5), (5, 7)):
        mask[torch.arange(64), torch.randint(start, stop, (64,), generator=draw)] = True
    masked = product.masked(params, mask)
    assert torch.equal(masked[:, :4], params[:, :4])  # of the numbers
    for actions in (product.mode(masked), product.sample(masked, product.draw_noise((64,), draw))):
        rows = torch.arange(64)
        for column, start in ((2, 0), (3, 3), (4, 5)):
            assert mask[rows, start + actions[:, column].long()].all()
    allowed = product.parts["move"].masked(params[:, 4:7], mask[:, :3])
    assert torch.equal(masked[:, 4:7], allowed)
    assert product.masked(params, None) is params


class Flipped(Distribution):
    """A bounded distribution of one number, whose stored action is 10 times what it means."""

    parameter_size = noise_size = 1
    action_shape = (1,)
    action_dtype = torch.float32
    bounded = True

    def __init__(self, space: Any = None) -> None:
        self.space = space

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        return 10 * (params + noise)

    def mode(self, params: Tensor) -> Tensor:
        return 10 * params

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        return -(actions / 10 - params).abs().sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        return params.sum(-1)

    def kl(self, params: Tensor, other: Tensor) -> Tensor:
        return (params - other).abs().sum(-1)

    def within(self, actions: Tensor) -> Tensor:
        return actions / 10


def test_any_distribution_may_be_a_part_a_bounded_one_and_a_product_too() -> None:
    inner = Product({"x": Flipped(), "n": Categorical(2)})
    product = Product({"inner": inner, "keys": Bernoulli(1)})
    assert product.bounded
    params = torch.tensor([[0.3, 0.0, 1.0, -2.0]])
    actions = product.sample(params, torch.tensor([[0.1, 0.9, 0.5]]))
    torch.testing.assert_close(actions, torch.tensor([[4.0, 1.0, 0.0]]))
    torch.testing.assert_close(product.within(actions), torch.tensor([[0.4, 1.0, 0.0]]))
    expected = -0.1 + params[0, 1:3].log_softmax(-1)[1] + torch.nn.functional.logsigmoid(torch.tensor(2.0))
    torch.testing.assert_close(product.log_prob(params, actions)[0], expected)
    assert product.described(params).keys() == {"inner.x.params", "inner.n.logits", "keys.logits"}
    assert product.named_actions(actions).keys() == {"action.inner.x", "action.inner.n", "action.keys"}
    assert product.named_actions(actions)["action.inner.n"].dtype == torch.int64


def test_a_named_distribution_is_that_of_the_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phasegrad.distributions.choosing.DISTRIBUTIONS", DISTRIBUTIONS.copy())
    register_distribution("flipped", Flipped)
    space = spaces.Dict(
        {"a": spaces.Discrete(3), "b": spaces.Box(-1, 1, (1,)), "c": spaces.Tuple([spaces.Discrete(2)])}
    )
    product = distribution_for(space, "flipped")
    assert isinstance(product, Product)
    assert [type(part) for part in product.parts.values()] == [Categorical, Flipped, Product]
    assert [type(part) for part in distribution_for(space).parts.values()] == [Categorical, DiagonalGaussian, Product]  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="must be one of auto, gaussian, tanh, beta, flipped, not 'fliped'"):
        distribution_for(space, "fliped")
    only: gym.Space = spaces.Dict({"a": spaces.Discrete(3)})
    with pytest.raises(ConfigError, match="gaussian needs a Box action space"):
        distribution_for(only, "gaussian")


def test_choices_that_single_precision_cannot_count_are_refused() -> None:
    Product({"a": Categorical(1 << 24), "b": DiagonalGaussian(1)})
    Product({"a": Categorical((1 << 24) + 1), "b": Bernoulli(1)})  # stored as integers
    with pytest.raises(EnvError, match=r"part 'a' of the actions has a choice of 16,777,217; beside real numbers"):
        Product({"a": Categorical((1 << 24) + 1), "b": DiagonalGaussian(1)})
