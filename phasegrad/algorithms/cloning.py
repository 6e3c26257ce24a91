"""Behaviour cloning: a policy fitted to a demonstrator's steps before it trains, by maximum likelihood.

Where rewards are known the value function is fitted to the demonstrator's discounted returns too: a critic that knows
nothing leads a good policy astray as soon as training begins. The result is a function of the seed and the data.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from phasegrad.advantages import discounted_suffix_sum
from phasegrad.algorithms.settings import adams
from phasegrad.compute.stepping import Stepper
from phasegrad.config import coerce
from phasegrad.data.demonstrated import as_rollout, divided
from phasegrad.data.demonstrations import Demonstrations, Steps, checked, read_steps
from phasegrad.data.minibatches import Minibatch, Minibatches, epoch_indices, gather, over_rollout, sequence_positions
from phasegrad.data.storage import Rollout
from phasegrad.errors import ConfigError, nearest
from phasegrad.losses import value_loss
from phasegrad.runs.evaluation import own_threads

if TYPE_CHECKING:
    from phasegrad.algorithms.base import Algorithm

LONGEST_GRADIENT = 1.0


@dataclass(frozen=True)
class CloningSettings:
    """How a policy is fitted to demonstrations."""

    epochs: int = 100  # at most: it ends sooner where the held-out loss no longer falls
    minibatch_size: int = 128
    learning_rate: float = 1e-3
    held_out: float = 0.1  # share of the episodes, or of the steps, that only tells when to end
    patience: int = 10  # epochs without a lower held-out loss
    least_std: float = 0.2  # of continuous actions, as a share of half their range: a std of 0 would end all exploring

    def checked(self) -> CloningSettings:
        limits: dict[str, dict[str, Any]] = {
            "epochs": {"low": 1}, "minibatch_size": {"low": 1}, "learning_rate": {"low": 0},
            "held_out": {"low": 0, "high": 0.9}, "patience": {"low": 1}, "least_std": {"low": 1e-6},
        }  # fmt: skip
        kinds = {name: type(value) for name, value in vars(CloningSettings()).items()}
        return CloningSettings(**{n: coerce(n, v, kinds[n], limits[n]) for n, v in vars(self).items()})


@dataclass(frozen=True)
class Cloning:
    """What came of it. Losses are means over steps, of the weights that were kept; None for what was not measured."""

    source: str
    steps: int
    episodes: int | None
    epochs: int  # of the weights that were kept
    loss: float  # -log pi(a|s) over the steps that were fitted
    held_out_steps: int
    held_out_loss: float | None
    agreement: float  # of the most likely actions with the held-out ones (with all where none are): the share that are
    # the same, of continuous ones how much of their variance they explain
    value_explained: float | None  # share of the variance of the held-out returns that the value function explains

    def describe(self) -> str:
        """A sentence of it."""
        episodes = "" if self.episodes is None else f" of {self.episodes:,} episodes"
        held = "" if self.held_out_loss is None else f", {self.held_out_loss:.4f} on {self.held_out_steps:,} held out"
        value = (
            "" if self.value_explained is None else f", value function explains {self.value_explained:.3f} of returns"
        )
        return (
            f"cloned {self.steps:,} steps{episodes} in {self.epochs} epochs: loss {self.loss:.4f}{held}, agreement "
            f"{self.agreement:.3f}{value}"
        )


@dataclass
class Demonstrated(Minibatch):
    """What fitting needs of a demonstrator's steps."""

    actions: Tensor


def clone_from(
    trainer: Algorithm, observations: Any, actions: Any, settings: Mapping[str, Any], **others: Any
) -> Cloning:
    """`clone` as a caller in Python gives it: arrays, or where they are to be read from."""
    known = [entry.name for entry in dataclasses.fields(CloningSettings)]
    for name in settings:
        if name not in known:
            raise ConfigError(f"clone has no setting {name!r}: there are {', '.join(known)}.{nearest(name, known)}")
    if actions is None:
        given = [name for name, value in others.items() if value is not None]
        if given:
            raise ConfigError(f"{given[0]} was given without actions: give both, or a file that holds both.")
        return clone(trainer, read_steps(observations), CloningSettings(**settings))
    return clone(trainer, Steps(observations, actions, **others), CloningSettings(**settings))


def clone(trainer: Algorithm, steps: Steps, settings: CloningSettings) -> Cloning:
    """Fit the trainer's policy, and where rewards are given its value function, to demonstrations."""
    settings, agent, config = settings.checked(), trainer.agent, trainer.config
    if trainer.ranks.size > 1:
        raise ConfigError("clone runs in one process: start it without torchrun, which can resume the run it makes.")
    if trainer.progress.step:
        raise ConfigError(
            f"clone comes before training, and this agent has taken {trainer.progress.step:,} steps: make a new one."
        )
    spaces = agent.spaces
    found = checked(steps, agent.observing, spaces.original_action, agent.bounds, spaces.has_mask)
    if found.ends is None and (found.rewards is not None or config.memory != "none" or config.frame_stack > 1):
        why = "rewards" if found.rewards is not None else "memory" if config.memory != "none" else "frame_stack"
        raise ConfigError(
            f"{why} needs to know where episodes end: give terminated, and truncated where some were cut."
        )
    with own_threads(agent):
        result = Fitting(trainer, found, settings).run()
    trainer.leash.take()
    trainer.run.cloned = dataclasses.asdict(result)
    return result


class Fitting:
    """One fitting of an agent to demonstrations."""

    def __init__(self, trainer: Algorithm, found: Demonstrations, settings: CloningSettings) -> None:
        self.trainer, self.agent, self.settings, self.found = trainer, trainer.agent, settings, found
        self.config, self.model, self.distribution = trainer.config, trainer.model, trainer.distribution
        self.draw = trainer.generator("clone")
        # Q(s, a) of ACER is no function of the state alone, which returns could be fitted by.
        self.with_values = found.rewards is not None and self.model.value_outputs() == 1
        self.model.normalizer.update(found.observations)
        if found.rewards is not None and found.ends is not None:
            normalizer = self.agent.reward_normalizer
            found.rewards = normalizer(found.rewards[:, None], found.ends[:, None])[:, 0]
            normalizer.start_leg()  # the environments' own returns begin anew
        in_order = self.config.memory != "none" or self.config.frame_stack > 1
        fitted, held = divided(found, settings.held_out, in_order, self.draw)
        self.fitted = self._stored(fitted)
        self.held = None if held is None else self._stored(held)
        self.centre, self.scale = 0.0, 1.0
        if self.with_values:
            targets = self._returns(self.fitted, bootstrap=False)
            self.centre, spread = float(targets.mean()), float(targets.std(correction=0))
            self.scale = spread if spread > 1e-6 * (1 + abs(self.centre)) else 1.0
        self.least_log_std = self._least_log_std(found.actions) if self.distribution.has_std else None

    def run(self) -> Cloning:
        trainer, settings, config = self.trainer, self.settings, self.config
        stepper = Stepper(
            trainer.flat, adams(trainer.flat, 1e-8), LONGEST_GRADIENT, trainer.computation.microbatch,
            config=config, mode=trainer.computation.training_mode,
        )  # fmt: skip
        apart = "value" in trainer.flat.slices and config.arch == "dual"  # each network is then kept at its own best
        names = ["policy", "value"] if apart and self.with_values else ["policy"]
        rates = {group: settings.learning_rate for group in trainer.flat.slices if not apart or group in names}
        self._rescale_value_head(1 / self.scale, -self.centre / self.scale)
        best = {name: (math.inf, 0, trainer.flat.data.clone()) for name in names}  # loss, epoch, parameters
        for epoch in range(1, settings.epochs + 1):
            self._refresh(self.fitted)
            count = max(1, round(self.fitted.num_steps / settings.minibatch_size))
            indices = epoch_indices(self.fitted, count, False, self.draw)
            minibatches = Minibatches(self.fitted, indices, self.agent.device, Demonstrated)
            stepper.epoch("clone", self.loss, minibatches, {}, rates)
            stepper.take_metrics()  # which refuses what is not finite
            losses = self.losses(self.fitted if self.held is None else self.held)
            if not apart:
                losses = {"policy": sum(losses.values())}
            for name in names:
                if losses[name] < best[name][0] or self.held is None:
                    best[name] = (losses[name], epoch, trainer.flat.data.clone())
            if epoch - max(kept for _, kept, _ in best.values()) >= settings.patience:
                break
        for name in names:
            where = trainer.flat.slices[name] if apart else slice(None)
            trainer.flat.data[where] = best[name][2][where]
        self._keep_std()
        return self._result(best["policy"][1])

    def loss(self, batch: Demonstrated, _: Mapping[str, float]) -> tuple[Tensor, dict[str, Tensor]]:
        """-log pi(a|s), and 1/2 (V - G)^2 in units of the returns' deviation, over one minibatch."""
        if not self.with_values:
            params, errors = self.model.policy(batch.seen, batch.masks), None
        else:
            params, values = self.model.policy_and_value(batch.seen, batch.masks)
            errors = value_loss(values, batch.value_targets)
        unlikely = -self.distribution.log_prob(self._with_least_std(params), batch.actions).mean()
        metrics = {"policy": unlikely} if errors is None else {"policy": unlikely, "value": errors}
        return unlikely if errors is None else unlikely + errors, metrics

    @torch.no_grad()
    def losses(self, stored: Rollout) -> dict[str, float]:
        """The mean of each term over all of some steps, in evaluation mode."""
        self._refresh(stored)
        sums: dict[str, float] = {}
        chunk = self.trainer.computation.chunk
        parts = list(torch.arange(stored.num_steps).split(chunk))
        if stored.states is not None:
            parts = sequence_positions(stored.num_steps, 1, stored.sequence)
        for part in parts:
            batch = gather(stored, part, self.agent.device, Demonstrated)
            for name, mean in self.loss(batch, {})[1].items():
                sums[name] = sums.get(name, 0.0) + float(mean) * len(batch)
        return {name: total / stored.num_steps for name, total in sums.items()}

    def _stored(self, found: Demonstrations) -> Rollout:
        memory = (self.model.state_size, self.config.sequence_steps)
        return as_rollout(found, self.agent.observation_space, self.distribution, *memory, self.model.stacking)

    @torch.no_grad()
    def _refresh(self, stored: Rollout) -> None:
        """What depends on the networks as they now are: states before sequences, returns beyond a time limit."""
        if stored.states is not None and stored.starts is not None:
            self._remember(stored, stored.states, stored.starts)
        if self.with_values:
            stored.value_targets.copy_(
                (self._returns(stored, self.config.bootstrap_truncated) - self.centre) / self.scale
            )

    def _remember(self, stored: Rollout, states: Tensor, starts: Tensor) -> None:
        """The states before each sequence. A sequence in which an episode starts ends the same whatever came before it,
        so all of those go first, together, then the ones that follow them, and so on.
        """
        length = stored.sequence
        begins = [bool(part.any()) for part in starts[:, 0].split(length)]
        depths: list[int] = []
        for begin in begins[:-1]:
            depths.append(0 if begin else depths[-1] + 1)
        states.zero_()
        for depth in range(max(depths, default=-1) + 1):
            rows = torch.tensor([row for row, own in enumerate(depths) if own == depth])
            batch = gather(stored, torch.arange(length)[:, None] + rows * length, self.agent.device, Minibatch)
            states[rows + 1, 0] = self.model.policy_and_states(batch.seen, batch.masks)[1].cpu()

    def _returns(self, stored: Rollout, bootstrap: bool) -> Tensor:
        """Discounted returns [B, 1] of the rewards as the agent learns from them; where an episode was cut, what would
        have followed counts by the value of its last state.
        """
        gamma, rewards = self.config.gamma, stored.rewards.double()
        if bootstrap and stored.truncated.any():
            values = over_rollout(lambda seen, _: self.model.value(seen), stored, self.agent.device).double()
            rewards = rewards + gamma * stored.truncated * (values * self.scale + self.centre)
        ends = stored.terminated | stored.truncated
        return discounted_suffix_sum(rewards, gamma * (~ends).double())

    # Networks

    @torch.no_grad()
    def _rescale_value_head(self, scale: float, shift: float) -> None:
        """V <- scale V + shift: while it is fitted the value head works in units of the returns' deviation."""
        if self.with_values:
            head = self.model.value_head
            head.weight.mul_(scale)
            head.bias.mul_(scale).add_(shift)

    def _least_log_std(self, actions: Tensor) -> Tensor:
        """The least log std of each continuous action, in the units that the policy acts in."""
        bounds = self.agent.bounds
        if bounds.rescale:
            half = torch.ones(actions.shape[1])
        else:
            half = torch.from_numpy(bounds.high - bounds.low).flatten() / 2
            spread = actions.std(0, correction=0)
            half = torch.where(half.isfinite() & (half > 0), half, torch.where(spread > 0, spread, 1.0))
        return (self.settings.least_std * half).log().to(self.agent.device)

    def _with_least_std(self, params: Tensor) -> Tensor:
        if self.least_log_std is None:
            return params
        mean, log_std = params.chunk(2, -1)
        return torch.cat([mean, torch.maximum(log_std, self.least_log_std)], -1)

    @torch.no_grad()
    def _keep_std(self) -> None:
        """A std of its own that went below the least one is put there."""
        log_std = getattr(self.model.policy_head, "log_std", None)
        if log_std is not None and self.least_log_std is not None:
            log_std.copy_(torch.maximum(log_std, self.least_log_std))

    @torch.no_grad()
    def _result(self, epochs: int) -> Cloning:
        found, judged = self.found, self.fitted if self.held is None else self.held
        losses = self.losses(self.fitted)
        held = None if self.held is None else self.losses(self.held)["policy"]
        params = over_rollout(self.model.policy, judged, self.agent.device)
        modes, actions = self.distribution.mode(params), judged.actions
        if self.distribution.is_continuous:
            left = (modes - actions).square().sum() / (actions - actions.mean((0, 1))).square().sum().clamp(min=1e-12)
            agreement = 1 - float(left)
        else:
            agreement = float((modes == actions).reshape(len(modes), -1).all(1).float().mean())
        explained = None
        if self.with_values:
            values = over_rollout(lambda seen, _: self.model.value(seen), judged, self.agent.device)
            left = (values - judged.value_targets).square().mean()
            explained = 1 - float(left / judged.value_targets.var(correction=0).clamp(min=1e-12))
        self._rescale_value_head(self.scale, self.centre)
        return Cloning(
            source=found.source,
            steps=len(found),
            episodes=None if found.ends is None else int(found.ends.sum()),
            epochs=epochs,
            loss=losses["policy"],
            held_out_steps=0 if self.held is None else self.held.num_steps,
            held_out_loss=held,
            agreement=agreement,
            value_explained=explained,
        )
