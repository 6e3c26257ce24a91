"""Collecting experience: T steps of N environments into a rollout, every slot a real transition.

Acting computes only what acting needs; values, log-probabilities and the bootstrap follow in large batches afterwards.
Nothing here knows which algorithm will train on the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from phasegrad.data.action_bounds import ActionBounds
from phasegrad.data.landing import landing_for, store_before
from phasegrad.data.minibatches import in_chunks, over_rollout
from phasegrad.data.soundness import arrays_are_sound, rollout_flags
from phasegrad.data.stacking import RunningStack, steps_since_start
from phasegrad.data.storage import Rollout
from phasegrad.data.transfers import device_of, fetch, send_tree, to_device
from phasegrad.envs.contract import Episode, Observation, VectorEnv
from phasegrad.envs.spaces import CHOICES, describe_outside, outside_choices
from phasegrad.errors import EnvError, NonFiniteError
from phasegrad.machine.clock import Clock
from phasegrad.models import ActorCritic
from phasegrad.models.memory import Sequences
from phasegrad.tree import named_leaves, tree_map

LARGEST_REWARD = 1e18  # the square of a larger error is infinite in float32, and a larger one drowns all others


class ActingStep(Protocol):
    """What a policy makes of the observations of a step, written where the rollout keeps it."""

    model: ActorCritic
    device: torch.device

    def begin(self, rollout: Rollout, noise: Tensor, states: Tensor | None, stack: Any) -> None:
        """Get ready to fill `rollout`, whose first observations are in place, from `noise` [T, N, K].

        `states` [N, M] is what the policy remembers; each step puts there what it remembers next. `stack` [N, ...] is
        what it sees, where that is more than the last observation.
        """

    def act(self, t: int) -> None:
        """Fill step `t`; the steps of a rollout come in order."""

    def end(self) -> None:
        """The rollout is full; the weights may change."""


class Collector:
    """Steps the environments with the current policy and remembers where they are."""

    def __init__(
        self,
        env: VectorEnv,
        actor: ActingStep,
        bounds: ActionBounds,
        clock: Clock,
        first_env: int = 0,
        all_envs: int = 0,
        played: tuple[Any, ...] | None = None,
        state: Mapping[str, Tensor] | None = None,
    ) -> None:
        """The environments may be part of `all_envs`, from the number `first_env` on.

        `played`: what `env.play_back` takes, where they do not begin at their reset; or `state`: what `env.load_state` does.
        """
        self.env, self.actor, self.bounds, self.clock = env, actor, bounds, clock
        self.first_env, self.all_envs = first_env, all_envs or env.num_envs
        self.model, self.device = actor.model, actor.device
        # Entries whose numbers are choices: one that does not exist would look like nothing at all.
        parts = env.observation_space.spaces if isinstance(env.observation_space, gym.spaces.Dict) else None
        entries = {"": env.observation_space} if parts is None else parts
        self._choices = [(name, space) for name, space in entries.items() if isinstance(space, CHOICES)]
        env.checks_actions = True  # what is played back comes from a file
        if state is not None:
            self.observation, self.mask = env.load_state(state)
        else:
            self.observation, self.mask = env.reset() if played is None else env.play_back(*played)
        env.checks_actions = not type(actor.model.distribution).__module__.startswith("phasegrad.")  # ours sample well
        self.states: Tensor | None = None  # what the policy remembers of each running episode [N, K], on its device
        if self.model.state_size:
            self.states = torch.zeros(env.num_envs, self.model.state_size, device=self.device)
        self.stack: RunningStack | None = None  # the latest observations, where the policy sees several
        if self.model.stacking is not None:
            self.stack = RunningStack(self.model.stacking, self.observation)
        self._finals: list[tuple[int, np.ndarray, Observation]] = []  # (t, environments, final observations) where cut
        self._final_states: list[Tensor] = []  # and what had been remembered by then
        self._final_stacks: list[Any] = []  # and what the policy would have seen then
        self.ended_at: list[int] = []  # the step t of each episode that finished in the last rollout
        self.renewed: list[tuple[int, list[int]]] = []  # (t, environments) made anew in the last rollout
        self._where = torch.device("cpu")  # the last rollout lies
        self.taken: Tensor | None = None  # the actions of the last rollout, in this machine's memory

    @torch.inference_mode()
    def collect(self, rollout: Rollout, noise: Tensor, first_step: int) -> list[Episode]:
        """Fill `rollout` with transitions sampled by `noise` [T, N, K]; the episodes that finished meanwhile."""
        env, actor, distribution = self.env, self.actor, self.model.distribution
        finals: list[tuple[int, np.ndarray, Observation]] = []
        final_states: list[Tensor] = []
        final_stacks: list[Any] = []
        episodes: list[Episode] = []
        stack, states, self._where = self.stack, self.states, device_of(rollout.observations)
        if stack is not None:
            store_before(rollout, stack)
        landing = landing_for(rollout, stack)
        starts, rewards, terminated, truncated = landing.starts, landing.rewards, landing.terminated, landing.truncated
        fresh = None if states is None else (states == 0).all(1).cpu().numpy()  # whose episodes start now
        self.ended_at, self.renewed = [], []
        for t in range(rollout.num_steps):
            with self.clock.section("inference"):
                landing.observe(t, self.observation, self.mask)
                if t == 0:
                    actor.begin(rollout, noise, states, landing.seen)
                if rollout.states is not None and starts is not None and states is not None:
                    starts[t] = fresh
                    if t % rollout.sequence == 0:
                        rollout.states[t // rollout.sequence] = states
                actor.act(t)
                env_actions = self.bounds(landing.actions(t))
            with self.clock.section("environment"):
                try:
                    step = env.step(env_actions)
                except EnvError:  # an action that is no number may be why
                    landing.settle()
                    self._require_finite(rollout.first(t + 1), first_step)
                    raise
            rewards[t], terminated[t], truncated[t] = step.reward, step.terminated, step.truncated
            if len(step.ended):
                cut = step.truncated[step.ended] & ~step.terminated[step.ended]
                if cut.any():
                    if states is not None:
                        final_states.append(states[to_device(torch.tensor(step.ended[cut]), states.device)])
                    final = tree_map(lambda leaf, cut=cut: leaf[cut], step.final_observation)
                    if stack is not None:
                        final_stacks.append(stack.following(step.ended[cut], final))
                    finals.append((t, step.ended[cut], final))
                episodes += step.episodes
                self.ended_at += [t] * len(step.episodes)
                if step.renewed:
                    self.renewed.append((t, step.renewed))
            if states is not None:
                fresh = step.terminated | step.truncated
                if len(step.ended):
                    states.index_fill_(0, to_device(torch.tensor(step.ended), states.device), 0.0)
            self.observation, self.mask = step.observation, step.action_mask
            if stack is not None:
                stack.push(step.observation, step.ended)
        landing.settle()
        self.taken = landing.taken()
        self._finals, self._final_states, self._final_stacks = finals, final_states, final_stacks
        if stack is not None and rollout.since is not None:
            done = rollout.terminated | rollout.truncated
            rollout.since.copy_(steps_since_start(done, stack.stacking.count - 1))
        self._require_finite(rollout, first_step)
        with self.clock.section("inference"):
            actor.end()
            rollout.log_probs.copy_(distribution.log_prob(rollout.behaviour_params, rollout.actions))
            if self.model.value_is_separate and states is None:  # else acting has put the values in place
                rollout.values.copy_(self._values_over(rollout))
            self._value_what_followed(rollout)
        return episodes

    @property
    def finals(self) -> list[tuple[int, np.ndarray, Observation]]:
        """(t, environments, true final observations) of the last rollout, where an episode was cut short."""
        return self._finals

    def revalue(self, rollout: Rollout) -> None:
        """The rollout last collected as the value function now sees it, and what followed each of its steps."""
        with torch.inference_mode():
            rollout.values.copy_(self._values_over(rollout))
        self._value_what_followed(rollout)

    def _values_over(self, rollout: Rollout) -> Tensor:
        return over_rollout(lambda seen, _: self.model.value(seen), rollout, self.device)

    def _value_what_followed(self, rollout: Rollout) -> None:
        rollout.next_values[:-1] = rollout.values[1:]
        values = self.values(*self.followers())
        rollout.next_values[-1] = values[: rollout.num_envs]
        if self._finals:
            places = [t * rollout.num_envs + torch.from_numpy(envs) for t, envs, _ in self._finals]
            where = to_device(torch.cat(places), values.device)
            rollout.next_values.view(-1)[where] = values[rollout.num_envs :]

    def followers(self) -> tuple[Any, Tensor | None]:
        """What is seen after the last rollout, then at each end of an episode that was cut, and what is remembered."""
        if self.stack is not None:
            seen = tree_map(lambda *leaves: torch.cat(leaves), self.stack.seen, *self._final_stacks)
        else:
            finals = [final for _, _, final in self._finals]
            seen = tree_map(lambda *leaves: torch.from_numpy(np.concatenate(leaves)), self.observation, *finals)
        seen = send_tree([seen], self._where)[0]
        return seen, None if self.states is None else torch.cat([self.states, *self._final_states])

    @torch.inference_mode()
    def values(self, observations: Any, states: Tensor | None = None) -> Tensor:
        """V of what is seen [B, ...], where that lies, in passes that stay within the cache; `states` where it has a memory."""
        if states is None:
            return in_chunks(self.model.value, (observations,), 1, self.device)

        def value(seen: Any, states: Tensor) -> Tensor:
            return self.model.value(
                Sequences(seen, states, torch.zeros(len(states), dtype=torch.bool, device=self.device))
            )

        return in_chunks(value, (observations, states), 1, self.device)

    @torch.inference_mode()
    def policy(self, rollout: Rollout) -> Tensor:
        """Distribution parameters [T, N, P] of the policy as it now is, over a rollout."""
        return over_rollout(self.model.policy, rollout, self.device)

    def _require_finite(self, rollout: Rollout, first_step: int) -> None:
        """Stop at the first number that nothing can be learnt from, before it is, and say where it came from.

        A policy that has diverged spoils what its environments return, so of several faults the earliest is named.
        """
        if self._where.type != "cpu":
            if self._is_sound(rollout):
                return
            rollout = rollout.on_host()
        faults: list[tuple[tuple[int, int], str]] = []  # (when: the step and the order within it, the sentence)

        def note(order: int, what: str, values: Tensor, bad: Tensor) -> None:
            if bad.any():
                place = tuple(bad.nonzero()[0].tolist())
                n, step = self._place(place[0], place[1], first_step)
                faults.append(((place[0], order), _sentence(what, n, f"at step {step}", float(values[place]))))

        for name, space in self._choices:
            outside = outside_choices(dict(named_leaves(rollout.observations))[name].numpy(), space)
            if outside.any():
                t, n = (int(place[0]) for place in outside.nonzero()[:2])
                n, step = self._place(t, n, first_step)
                raise EnvError(describe_outside(name, n, f"at step {step}", space))
        for name, leaf in named_leaves(rollout.observations):
            if leaf.is_floating_point():
                note(0, f"observation {name}".strip(), leaf, ~torch.isfinite(leaf))
        rewards = rollout.raw_rewards
        note(2, "reward", rewards, ~(rewards.abs() <= LARGEST_REWARD))  # true of NaN too
        last = (rollout.num_steps, np.arange(rollout.num_envs), self.observation)
        for t, envs, final in [*self._finals, last]:  # these are not acted on here, but their value counts
            for name, space in self._choices:
                outside = outside_choices(dict(named_leaves(final))[name], space)
                if outside.any():
                    n = int(envs[outside][0]) + self.first_env
                    raise EnvError(describe_outside(name, n, f"after step {first_step + t * self.all_envs + n}", space))
            for name, leaf in named_leaves(final):
                bad = ~np.isfinite(leaf.reshape(len(leaf), -1)).all(1)
                if bad.any():
                    n, step = self._place(t, int(envs[bad][0]), first_step)
                    sentence = _sentence(f"observation {name}".strip(), n, f"after step {step}", np.inf)
                    faults.append(((t, 0 if t == rollout.num_steps else 3), sentence))
        policy = self._policy_fault(rollout, first_step)
        if policy is not None:
            faults.append(policy)
        if faults:
            raise NonFiniteError(min(faults)[1])
        if rollout.masks is not None and not rollout.masks.any(-1).all():
            t, n = (~rollout.masks.any(-1)).nonzero()[0].tolist()
            n, step = self._place(t, n, first_step)
            raise EnvError(f"The action mask of environment {n} allows no action at step {step}: one must be allowed.")

    def _is_sound(self, rollout: Rollout) -> bool:
        """Whether there is no fault in a rollout on a device, by one number from there; what followed it is here."""
        followed = [self.observation, *(final for _, _, final in self._finals)]
        if not all(arrays_are_sound(each, self._choices) for each in followed):
            return False
        return bool(fetch([torch.stack(rollout_flags(rollout, self._choices, LARGEST_REWARD)).all()])[0])

    def _policy_fault(self, rollout: Rollout, first_step: int) -> tuple[tuple[int, int], str] | None:
        """The first output of the policy, or action drawn from it, that is no number: when, and a sentence."""
        outputs = {"output": rollout.behaviour_params, "action": rollout.actions}
        for what, values in outputs.items():
            if values.is_floating_point() and not torch.isfinite(values).all():
                t, n = (~torch.isfinite(values)).nonzero()[0, :2].tolist()
                env, step = self._place(t, n, first_step)
                return (t, 1), (
                    f"The policy's {what} is NaN or infinite for environment {env} at step {step}: training has diverged; "
                    "lower learning_rate or set normalize_observation."
                )
        return None

    def _place(self, t: int, n: int, first_step: int) -> tuple[int, int]:
        """The number of an environment among all, and of the step it takes at time `t` of a rollout."""
        return n + self.first_env, first_step + t * self.all_envs + n + self.first_env


def _sentence(what: str, env: int, when: str, value: float) -> str:
    if not np.isfinite(value):
        return f"The {what} of environment {env} is NaN or infinite {when}: check the environment."
    return (
        f"The reward of environment {env} is {value:.3g} {when}, too large to learn from (the limit is "
        f"{LARGEST_REWARD:.0e}): scale the rewards of the environment."
    )
