"""Recurrent policies: what is remembered, trained on and kept equals stepping through whole episodes one by one."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from identity_envs import FACTORIES
from interrupted import resumed_to_the_same_bits
from machine import needs_compiler

import phasegrad as pg
from phasegrad.algorithms.surrogate import epoch_of_minibatches
from phasegrad.compute import native
from phasegrad.data.minibatches import Batch, epoch_indices, everything, gather, sequence_positions
from phasegrad.errors import ConfigError, PhasegradWarning
from phasegrad.models.memory import GRU, LSTM, MEMORIES, Memory, Sequences

SMALL: dict[str, Any] = {
    "preset": "none", "num_envs": 3, "num_steps": 16, "hidden_sizes": (8,), "memory_size": 8, "sequence_length": 8,
    "eval_episodes": 0, "seed": 5, "torch_threads": 1,
}  # fmt: skip
COMPILE = ["off", pytest.param("on", marks=needs_compiler)]
AUXILIARY = {"n_pi": 2, "num_minibatches": 3, "aux_minibatches": 4, "e_aux": 2}
# Every algorithm with every architecture it has
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo-dual": ("PPO", {"num_minibatches": 3, "epochs": 2}),
    "ppo-shared": ("PPO", {"num_minibatches": 3, "epochs": 2, "arch": "shared"}),
    "ppg-dual": ("PPG", AUXILIARY),
    "ppg-detach": ("PPG", {**AUXILIARY, "arch": "detach"}),
    "ppg-detach-head": ("PPG", {**AUXILIARY, "arch": "detach", "aux_head": True}),
    "ppg-shared": ("PPG", {**AUXILIARY, "arch": "shared"}),
    "ppg-distilled": ("PPG", {**AUXILIARY, "aux_target": "value_network", "aux_value_loss": False}),
    "a2c": ("A2C", {"updates_per_iteration": 2}),
    "vpg": ("VPG", {"value_steps": 2}),
    "trpo": ("TRPO", {"num_minibatches": 3, "value_epochs": 1, "cg_iterations": 3}),
}


class Schedule(gym.Env):
    """Random observations whatever is done; episodes of 1 to 7 steps that end in every way."""

    def __init__(self, observation_space: gym.Space | None = None) -> None:
        self.observation_space = observation_space or spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.action_space = spaces.Discrete(3)
        self.episode = self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
            self.episode = seed
        self.episode, self.steps = self.episode + 1, 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        over, kind = self.steps > self.episode % 7, self.episode % 3
        reward = float(action) / 3 + self.steps % 2
        return self.observation_space.sample(), reward, over and kind != 0, over and kind != 1, {}


def made(case: str, env: Any = Schedule, **fields: Any) -> Any:
    name, own = CASES[case]
    return getattr(pg, name)(env, **{**SMALL, "memory": "lstm", **own, **fields})


def unrolled(memory: Memory, features: torch.Tensor, states: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Step by step, each sequence by itself."""
    count = len(states)
    found = {}
    for s in range(count):
        state = states[s : s + 1]
        for row in range(s, len(features), count):
            state = torch.zeros_like(state) if starts[row] else state
            output, state = memory.step(features[row : row + 1], state)
            found[row] = output
    return torch.cat([found[row] for row in range(len(features))])


@pytest.fixture
def doubles() -> Any:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


# The layers


@pytest.mark.parametrize("kind", MEMORIES)
def test_a_layer_computes_what_torch_has(kind: str, doubles: None) -> None:
    torch.manual_seed(0)
    steps, count, inputs, size = 6, 4, 5, 7
    memory = MEMORIES[kind](inputs, size)
    theirs: Any = (torch.nn.LSTM if kind == "lstm" else torch.nn.GRU)(inputs, size)
    with torch.no_grad():
        memory.bias.normal_()
        theirs.weight_ih_l0.copy_(memory.input_weights.t())
        theirs.weight_hh_l0.copy_(memory.hidden_weights.t())
        theirs.bias_ih_l0.copy_(memory.bias)
        theirs.bias_hh_l0.zero_()
        if isinstance(memory, GRU):
            memory.new_bias.normal_()
            theirs.bias_hh_l0[-size:] = memory.new_bias
    features, states = torch.randn(steps * count, inputs), torch.randn(count, memory.state_size)
    before = states.split(size, 1)
    start = tuple(part[None].contiguous() for part in before) if isinstance(memory, LSTM) else states[None]
    wanted, last = theirs(features.view(steps, count, inputs), start)
    outputs, after = memory.unroll(features, states, torch.zeros(steps * count, dtype=torch.bool))
    torch.testing.assert_close(outputs, wanted.flatten(0, 1), rtol=0, atol=1e-12)
    joined = torch.cat(list(last), -1)[0] if isinstance(memory, LSTM) else last[0]
    torch.testing.assert_close(after, joined, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", MEMORIES)
@pytest.mark.parametrize("size", [5, 8])
def test_gradients_equal_those_of_single_steps_with_episode_ends_inside(kind: str, size: int, doubles: None) -> None:
    torch.manual_seed(1)
    memory = MEMORIES[kind](4, size)
    for parameter in memory.parameters():
        parameter.data.normal_(std=0.7)
    features = torch.randn(7 * 3, 4, requires_grad=True)
    states, starts = torch.randn(3, memory.state_size), torch.rand(7 * 3) < 0.3
    assert starts[3:].any()
    assert not starts.all()
    weights, wrt = torch.randn(7 * 3, size), [features, *memory.parameters()]
    found, wanted = memory(features, states, starts), unrolled(memory, features, states, starts)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    mine = torch.autograd.grad((found * weights).sum(), wrt)
    theirs = torch.autograd.grad((wanted * weights).sum(), wrt)
    for own, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", MEMORIES)
def test_gradients_can_be_differentiated_again(kind: str, doubles: None) -> None:
    torch.manual_seed(2)
    memory = MEMORIES[kind](3, 4)
    features, states, starts = torch.randn(10, 3), torch.randn(2, memory.state_size), torch.rand(10) < 0.3
    wrt = list(memory.parameters())
    products = []
    for outputs in (memory(features, states, starts), unrolled(memory, features, states, starts)):
        slopes = torch.autograd.grad(outputs.square().sum(), wrt, create_graph=True)
        products.append(torch.autograd.grad(sum(slope.sin().sum() for slope in slopes), wrt))
    for own, other in zip(*products, strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", MEMORIES)
@pytest.mark.parametrize("arch", ["dual", "shared"])
def test_the_gradient_of_a_whole_model_equals_that_of_single_steps(kind: str, arch: str, doubles: None) -> None:
    agent = pg.PPO(Schedule, **{**SMALL, "memory": kind, "arch": arch, "num_minibatches": 3, "device": "cpu"})
    model, count, steps = agent.model, 4, 6
    torch.manual_seed(3)
    observations = torch.randn(steps * count, 3)
    states, starts = torch.randn(count, model.state_size), torch.rand(steps * count) < 0.3
    assert starts[count:].any()
    by_row: dict[int, Any] = {}
    for s in range(count):
        state = states[s : s + 1]
        for row in range(s, steps * count, count):
            state = torch.zeros_like(state) if starts[row] else state
            params, value, state = model.step(observations[row : row + 1], None, state)
            by_row[row] = (params, value)
    wanted = [torch.cat([by_row[row][k] for row in range(steps * count)]) for k in (0, 1)]
    found = model.policy_and_value(Sequences(observations, states, starts))
    wrt = list(model.parameters())
    weights = [torch.randn_like(output) for output in wanted]
    slopes = [
        torch.autograd.grad(sum((o * w).sum() for o, w in zip(outputs, weights, strict=True)), wrt)
        for outputs in (found, wanted)
    ]
    for own, other in zip(*slopes, strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-9)
        assert other.abs().max() > 0


# Acting and what is stored


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("compile", COMPILE)
def test_what_is_stored_equals_whole_episodes_step_by_step(case: str, compile: str) -> None:
    """Parameters, values and the values of what followed, truncated episodes' final observations among them."""
    if compile == "on" and case not in ("ppo-dual", "ppg-detach"):
        pytest.skip("the acting step of these two is that of all")
    agent = made(case, compile=compile)
    agent.computation.settle()
    agent.computation.choose(begun=True)
    model, states = agent.model, torch.zeros(3, agent.model.state_size)
    fresh, truncations = np.ones(3, bool), 0
    with torch.inference_mode():
        for _ in range(3):
            agent.begin_iteration()
            rollout = agent.collect(16)
            collector = agent.experience.collector
            finals = {(t, n): final[k] for t, envs, final in collector.finals for k, n in enumerate(envs)}
            for t in range(16):
                assert np.array_equal(rollout.starts[t].numpy(), fresh)
                if t % 8 == 0:
                    torch.testing.assert_close(rollout.states[t // 8], states, rtol=0, atol=1e-5)
                params, values, states = model.step(rollout.observations[t], None, states)
                torch.testing.assert_close(rollout.behaviour_params[t], params, rtol=0, atol=1e-5)
                torch.testing.assert_close(rollout.values[t], values, rtol=0, atol=1e-5)
                following = torch.from_numpy(collector.observation) if t == 15 else rollout.observations[t + 1]
                for n in range(3):
                    if rollout.terminated[t, n]:
                        continue
                    seen = torch.from_numpy(finals[t, n]) if rollout.truncated[t, n] else following[n]
                    truncations += bool(rollout.truncated[t, n])
                    value = model.step(seen[None], None, states[n : n + 1])[1]
                    torch.testing.assert_close(rollout.next_values[t, n], value[0], rtol=0, atol=1e-5)
                fresh = (rollout.terminated[t] | rollout.truncated[t]).numpy()
                states = states * torch.from_numpy(~fresh)[:, None]
    assert truncations > 5


@pytest.mark.parametrize("kind", MEMORIES)
@pytest.mark.parametrize("case", CASES)
def test_the_first_ratios_of_an_update_are_one(case: str, kind: str) -> None:
    agent = made(case, memory=kind)
    agent.learn(3 * 16 * 4)
    agent.begin_iteration()
    with torch.inference_mode():
        rollout = agent.collect(16)
        generator = torch.Generator().manual_seed(0)
        for index in epoch_indices(rollout, 3, False, generator):
            batch = gather(rollout, index, agent.device, Batch)
            params = agent.model.policy(batch.seen, batch.masks)
            ratios = (agent.distribution.log_prob(params, batch.actions) - batch.old_log_probs).exp()
            assert float((ratios - 1).abs().max()) < 1e-5
    assert agent.mean_kl(rollout) < 1e-8


def test_recomputed_values_are_those_of_acting() -> None:
    agent = made("ppo-dual", recompute_advantages=True)
    agent.learn(3 * 16 * 2)
    agent.begin_iteration()
    rollout = agent.collect(16)
    values, following = rollout.values.clone(), rollout.next_values.clone()
    agent.experience.revalue(rollout)
    torch.testing.assert_close(rollout.values, values, rtol=0, atol=1e-5)
    torch.testing.assert_close(rollout.next_values, following, rtol=0, atol=1e-5)
    with torch.no_grad():
        agent.model.value_head.bias.add_(1.0)
    agent.experience.revalue(rollout)
    torch.testing.assert_close(rollout.values, values + 1.0, rtol=0, atol=1e-4)
    torch.testing.assert_close(rollout.next_values, following + 1.0, rtol=0, atol=1e-4)


# Minibatches


def test_every_step_is_in_one_minibatch_and_sequences_stay_whole() -> None:
    agent = made("ppo-dual")
    agent.begin_iteration()
    whole = agent.collect(16)
    for steps in (16, 12, 5):  # the last two as a shorter last rollout
        rollout = whole.first(steps)
        indices = epoch_indices(rollout, 3, False, torch.Generator().manual_seed(0))
        assert sorted(torch.cat([index.flatten() for index in indices]).tolist()) == list(range(steps * 3))
        for index in indices:
            assert bool((index[1:] - index[:-1] == 3).all())  # one step on, in the same environment
            batch = gather(rollout, index, agent.device, Batch)
            for s, first in enumerate(index[0].tolist()):
                t, n = divmod(first, 3)
                assert t % 8 == 0
                assert torch.equal(batch.states[s], rollout.states[t // 8, n])
            parts = list(batch.split(10))
            assert sum(map(len, parts)) == len(batch)
            assert all(part.sequences for part in parts)
            assert torch.equal(torch.cat([part.states for part in parts]), batch.states)
        batch = everything(rollout, agent.device, Batch)
        assert sorted(batch.advantages.tolist()) == sorted(rollout.advantages.flatten().tolist())
    order = [epoch_indices(whole, 3, False, torch.Generator().manual_seed(seed))[0][0].tolist() for seed in (0, 1)]
    assert order[0] != order[1]


def test_parts_of_a_minibatch_have_the_gradient_of_the_whole() -> None:
    agent = made("ppo-dual")
    agent.learn(3 * 16)
    agent.begin_iteration()
    rollout = agent.collect(16)
    batch = everything(rollout, agent.device, Batch)
    steps, weights = agent.stepper.plain, agent.config.weights() | {"clip_range": 0.2, "kl_beta": 1.0}
    whole = steps.gradient("whole", agent.loss, batch, weights)[0].clone()
    steps.microbatch = 10
    torch.testing.assert_close(steps.gradient("parts", agent.loss, batch, weights)[0], whole, rtol=1e-4, atol=1e-6)


def test_the_auxiliary_phase_finds_states_anew_through_the_whole_buffer() -> None:
    agent = made("ppg-dual", n_pi=3)
    kept: dict[str, Any] = {}
    original = agent.buffer.store_policy

    def store(model: Any, *arguments: Any) -> Any:
        states = original(model, *arguments)
        rollouts = [agent.buffer.storage.rollouts[slot] for slot in range(3)]
        with torch.no_grad():
            now = rollouts[0].states[0].clone()
            for slot, rollout in enumerate(rollouts):
                for t in range(16):
                    now = now * ~rollout.starts[t][:, None]
                    if t % 8 == 0:
                        reference = states.states[slot, t // 8] * ~rollout.starts[t][:, None]
                        torch.testing.assert_close(reference, now, rtol=0, atol=1e-5)
                    params, _, now = model.step(rollout.observations[t], None, now)
                    torch.testing.assert_close(states.old_params[slot, t], params, rtol=0, atol=1e-5)
        kept["moved"] = float((states.states[2, 1] - rollouts[2].states[1]).abs().max())
        return states

    agent.buffer.store_policy = store
    agent.learn(3 * 16 * 3)
    assert kept["moved"] > 1e-4  # what was stored when it was collected is by older networks


# Runs


@pytest.mark.parametrize("case", CASES)
def test_a_killed_run_ends_with_the_same_bits(case: str, tmp_path: Path) -> None:
    """Inside a leg, inside a phase, with environments that are made anew on the way."""
    fields = {"checkpoint_every": 96, "restart_every": 40, "run_dir": tmp_path / "whole"}
    agent = made(case, "CartPole-v1", memory="gru" if case == "ppg-shared" else "lstm", compile="off", **fields)
    resumed = resumed_to_the_same_bits(agent, 48 * 12, killed_at=48 * 7)
    assert torch.equal(resumed.run.remembered, agent.run.remembered)
    assert bool(agent.run.remembered.any())


@needs_compiler
def test_a_killed_compiled_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    agent = made("ppg-dual", "CartPole-v1", compile="on", checkpoint_every=96, run_dir=tmp_path / "whole")
    resumed_to_the_same_bits(agent, 48 * 10, killed_at=48 * 5)


def test_a_damaged_memory_is_refused(tmp_path: Path) -> None:
    import hashlib
    import json

    import safetensors.torch

    agent = made("ppo-dual")
    agent.learn(96)
    agent.save(tmp_path / "saved")
    file, state = tmp_path / "saved" / "leg.safetensors", tmp_path / "saved" / "state.json"
    tensors = safetensors.torch.load_file(file)
    for change in ({"remembered": tensors["remembered"][:, :-1].contiguous()}, {"remembered": None}):
        changed = {name: tensor for name, tensor in (tensors | change).items() if tensor is not None}
        file.write_bytes(safetensors.torch.save(changed))
        data = json.loads(state.read_text())
        data["leg"]["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
        state.write_text(json.dumps(data))
        with pytest.raises(pg.PhasegradError, match=r"leg.safetensors is damaged"):
            pg.load(tmp_path / "saved", env=Schedule)


@pytest.mark.parametrize("kind", MEMORIES)
@pytest.mark.parametrize("case", ["ppo-dual", "ppo-shared", "ppg-dual", "ppg-detach-head", "a2c", "vpg"])
def test_compiled_and_traced_updates_find_what_plain_ones_do(case: str, kind: str) -> None:
    found = {}
    for way in ("off", "replay", *(["on"] if native.compiler() else [])):
        with warnings.catch_warnings():
            warnings.simplefilter("error", PhasegradWarning)
            agent = made(case, memory=kind, compile=way, memory_size=12 if case == "vpg" else 8)
            agent.learn(48 * 4)
        assert agent.config.compile == way
        found[way] = agent.flat.data.clone()
    torch.testing.assert_close(found["replay"], found["off"], rtol=1e-5, atol=1e-6)
    if "on" in found:
        torch.testing.assert_close(found["on"], found["off"], rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.parametrize("compile", COMPILE)
def test_every_space_trains_with_a_memory(name: str, compile: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", PhasegradWarning)
        agent = made("ppg-dual", FACTORIES[name], normalize_observation=True, normalize_reward=True, compile=compile)
        agent.learn(48 * 4)
    assert np.isfinite(agent.evaluate(2).return_mean)


@pytest.mark.parametrize("case", ["ppo-shared", "ppg-dual", "trpo"])
def test_images_train_with_a_memory(case: str) -> None:
    image = spaces.Box(0, 255, (8, 8, 3), np.uint8)
    env = lambda: Schedule(spaces.Dict({"image": image, "vector": spaces.Box(-1, 1, (2,))}))
    agent = made(case, env, compile="off" if case == "trpo" or not native.compiler() else "on")
    agent.learn(48 * 3)
    assert torch.isfinite(agent.flat.data).all()


def test_a_shorter_last_rollout_is_trained_on_too() -> None:
    for case in CASES:
        agent = made(case)
        agent.learn(48 * 2 + 3 * 13)
        assert agent.progress.step == 48 * 2 + 39
        assert torch.isfinite(agent.flat.data).all()


def test_environments_made_anew_begin_with_an_empty_memory() -> None:
    class Endless(Schedule):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return (*super().step(action)[:2], False, False, {})

    agent = made("ppo-dual", Endless, restart_every=12)  # 4 steps of each: made anew at the latest after 16
    agent.learn(48)
    assert bool(agent.run.remembered.all(0).any())
    agent.begin_iteration()
    agent.collect(16)
    assert agent.run.legs.numbers.tolist() == [1, 1, 1]
    assert bool(agent.rollout.starts[0].all())
    assert not bool(agent.rollout.states[0].any())


# Settings


def test_lengths_of_sequences() -> None:
    config = made("ppo-dual").config
    assert config.sequence_steps == 8
    assert config.units_a_rollout == 6
    assert made("ppo-dual", sequence_length=0).config.sequence_steps == 16
    assert made("ppo-dual", sequence_length=None).config.sequence_steps == 16
    assert made("ppo-dual", sequence_length=None, num_minibatches=6).config.sequence_steps == 8
    assert made("ppo-dual", sequence_length=None, whole_segments=True).config.sequence_steps == 16
    assert made("a2c", sequence_length=None, num_steps=5).config.sequence_steps == 5
    assert pg.PPO("CartPole-v1", preset="none").config.sequence_steps == 0
    assert [tuple(kind.shape) for kind in sequence_positions(20, 3, 8)] == [(8, 6), (4, 3)]


@pytest.mark.parametrize(
    ("algorithm", "fields", "sentence"),
    [
        ("PPO", {"memory": "lstm", "sequence_length": 7}, "sequence_length 7 does not divide num_steps 16: use 4 or 8"),
        ("PPO", {"memory": "lstm", "sequence_length": 17}, "sequence_length 17 does not divide num_steps 16: use 16"),
        ("PPO", {"memory": "none", "sequence_length": 8}, "sequence_length belongs to a recurrent policy"),
        ("PPO", {"memory": "rnn"}, "memory must be one of none, gru, lstm"),
        ("PPO", {"memory": "gru", "num_minibatches": 7}, "num_minibatches 7 is more than the 6 sequences of 8 steps"),
        ("TRPO", {"memory": "gru", "num_minibatches": 7}, "num_minibatches 7 is more than the 6 sequences of 8 steps"),
        ("PPO", {"memory": "gru", "whole_segments": True, "num_minibatches": 3}, "whole_segments trains on whole"),
        ("PPO", {"memory": "gru", "memory_size": 0}, "memory_size must be"),
        ("ACER", {"memory": "gru"}, "memory gru is not for acer"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(algorithm: str, fields: dict[str, Any], sentence: str) -> None:
    given = {**SMALL, **fields}
    if algorithm == "ACER":
        del given["sequence_length"]
    with pytest.raises(ConfigError, match=sentence):
        getattr(pg, algorithm)("CartPole-v1", **given)


def test_an_own_loss_that_forgets_what_came_before_is_told_so() -> None:
    agent = made("ppo-dual")
    agent.begin_iteration()
    rollout = agent.collect(16)
    batch = next(iter(epoch_of_minibatches(rollout, agent.config, torch.Generator(), agent.device)))
    with pytest.raises(TypeError, match=r"give it `batch.seen`"):
        agent.model.policy(batch.observations, batch.masks)
