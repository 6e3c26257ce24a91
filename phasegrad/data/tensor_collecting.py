"""Collecting from environments that are tensors on the device where the rollout lies: nothing of a step crosses to the host.

What the host must know of a rollout, how episodes ended and what was done, it reads once, when the rollout is full.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from phasegrad.data.collecting import LARGEST_REWARD, Collector
from phasegrad.data.soundness import observation_flags, rollout_flags
from phasegrad.data.storage import Rollout
from phasegrad.data.transfers import device_of, fetch, send, to_device
from phasegrad.envs.contract import Episode
from phasegrad.envs.tensor_adapter import TensorAdapter
from phasegrad.tree import tree_map


class TensorCollector(Collector):
    """Steps environments of a `TensorAdapter`; its policy may have a memory, but no stack of observations."""

    env: TensorAdapter

    @property
    def observation(self) -> Any:
        """What the environments are at, on the host: read only when somebody asks."""
        return tree_map(lambda leaf: leaf.cpu().numpy(), self.env.latest)

    @observation.setter
    def observation(self, _: Any) -> None:
        """It is what the environments say it is."""

    @torch.inference_mode()
    def collect(self, rollout: Rollout, noise: Tensor, first_step: int) -> list[Episode]:
        env, actor, states = self.env, self.actor, self.states
        self._where = device_of(rollout.observations)
        scored = _Scores(rollout, env)
        finals = tree_map(torch.empty_like, rollout.observations)  # [T, N, ...], which count where an episode was cut
        before = None if states is None else rollout.values.new_empty(*rollout.values.shape, states.shape[1])
        fresh = None if states is None else (states == 0).all(1)
        for t in range(rollout.num_steps):
            with self.clock.section("inference"):
                tree_map(lambda stored, leaf, t=t: stored[t].copy_(leaf), rollout.observations, env.latest)
                if rollout.masks is not None and env.latest_mask is not None:
                    rollout.masks[t].copy_(env.latest_mask)
                if t == 0:
                    actor.begin(rollout, noise, states, None)
                if rollout.starts is not None and fresh is not None:
                    rollout.starts[t].copy_(fresh)
                if rollout.states is not None and states is not None and t % rollout.sequence == 0:
                    rollout.states[t // rollout.sequence] = states
                actor.act(t)
            with self.clock.section("environment"):
                step = env.step_tensors(self.bounds.on_device(rollout.actions[t]))
            rollout.raw_rewards[t].copy_(step.reward)
            rollout.terminated[t].copy_(step.terminated)
            rollout.truncated[t].copy_(step.truncated)
            tree_map(lambda kept, leaf, t=t: kept[t].copy_(leaf), finals, step.final_observation)
            done = step.terminated | step.truncated
            scored.add(t, step.reward, done, step.success)
            if states is not None and before is not None:
                before[t].copy_(states)
                states.masked_fill_(done[:, None], 0.0)
                fresh = done
        episodes = self._report(rollout, finals, before, scored)
        self._require_finite(rollout, first_step)
        with self.clock.section("inference"):
            actor.end()
            rollout.log_probs.copy_(self.model.distribution.log_prob(rollout.behaviour_params, rollout.actions))
            if self.model.value_is_separate and states is None:
                rollout.values.copy_(self._values_over(rollout))
            self._value_what_followed(rollout)
        return episodes

    def _report(self, rollout: Rollout, finals: Any, before: Tensor | None, scored: _Scores) -> list[Episode]:
        """Read from the device, in one transfer, all that the host must know; and the final observations that count."""
        cut = rollout.truncated & ~rollout.terminated
        sound, *found = fetch([self._soundness(rollout, finals, cut), cut, rollout.actions, *scored.tensors()])
        self._sound, self.taken = bool(sound), found[1]
        positions = torch.from_numpy(np.flatnonzero(found[0].numpy()))
        where = to_device(positions, self._where)
        self._followed = tree_map(lambda leaf: leaf.flatten(0, 1).index_select(0, where), finals)
        self._final_states = [] if before is None else [before.flatten(0, 1).index_select(0, where)]
        at = np.stack(np.divmod(positions.numpy(), rollout.num_envs), 1)
        self._finals = [(int(t), at[at[:, 0] == t, 1], None) for t in np.unique(at[:, 0])]  # type: ignore[misc]
        if not self._sound:  # somebody is going to look at them
            kept = tree_map(lambda leaf: leaf.cpu().numpy(), self._followed)
            self._finals = [
                (t, envs, tree_map(lambda leaf, t=t: leaf[at[:, 0] == t], kept)) for t, envs, _ in self._finals
            ]
        episodes, self.ended_at = scored.read(found[2:])
        self.renewed = []
        return episodes

    def _soundness(self, rollout: Rollout, finals: Any, cut: Tensor) -> Tensor:
        """Whether there is no fault in a rollout, as a flag on the device."""
        flags = rollout_flags(rollout, self._choices, LARGEST_REWARD)
        flags += observation_flags(self.env.latest, self._choices) + observation_flags(finals, self._choices, cut)
        return torch.stack(flags).all()

    def _is_sound(self, rollout: Rollout) -> bool:
        return self._sound

    def followers(self) -> tuple[Any, Tensor | None]:
        seen = tree_map(lambda now, ended: torch.cat([now.to(ended.dtype), ended]), self.env.latest, self._followed)
        return seen, None if self.states is None else torch.cat([self.states, *self._final_states])


class _Scores:
    """Returns and lengths of episodes, counted where the rewards are."""

    def __init__(self, rollout: Rollout, env: TensorAdapter) -> None:
        self.env = env
        device = rollout.raw_rewards.device
        self.running, self.lengths = (
            each.clone() for each in send([torch.from_numpy(each) for each in env.running], device)
        )
        self.ended = torch.zeros_like(rollout.terminated)
        self.returns = torch.zeros_like(rollout.raw_rewards)
        self.counts = torch.zeros(rollout.raw_rewards.shape, dtype=torch.int64, device=device)
        self.successes = torch.full_like(self.counts, -1)

    def add(self, t: int, reward: Tensor, done: Tensor, success: Tensor | None) -> None:
        self.running += reward
        self.lengths += 1
        self.ended[t], self.returns[t], self.counts[t] = done, self.running, self.lengths
        if success is not None:
            self.successes[t] = success.long()
        self.running.masked_fill_(done, 0.0)
        self.lengths.masked_fill_(done, 0)

    def tensors(self) -> list[Tensor]:
        return [self.ended, self.returns, self.counts, self.successes, self.running, self.lengths]

    def read(self, found: list[Tensor]) -> tuple[list[Episode], list[int]]:
        """The episodes in the order they ended, and at which steps."""
        ended, returns, counts, successes, running, lengths = (each.numpy() for each in found)
        self.env.count(running, lengths)
        places = np.argwhere(ended)
        episodes = [
            Episode(
                int(n), float(returns[t, n]), int(counts[t, n]), None if successes[t, n] < 0 else bool(successes[t, n])
            )
            for t, n in places
        ]
        return episodes, [int(t) for t, _ in places]
