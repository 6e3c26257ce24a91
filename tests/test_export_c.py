"""Policies as C files: compiled here, apart from the export's own check, they do what `predict` does, for every kind."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hybrid_envs import HybridIdentityEnv, MaskedHybridEnv
from identity_envs import FACTORIES, DictIdentityEnv, IdentityEnv
from machine import needs_compiler
from test_export import Picture, wide_box
from torch import nn

import phasegrad as pg
from phasegrad.cli.main import main
from phasegrad.compute import native
from phasegrad.errors import RunError
from phasegrad.export import c as c_module
from phasegrad.export import c_parity, c_source
from phasegrad.export.c import export_c
from phasegrad.export.c_layout import Layout
from phasegrad.export.onnx import provenance

SMALL: dict[str, Any] = {
    "num_envs": 4, "num_steps": 16, "num_minibatches": 2, "epochs": 1, "seed": 2, "memory_size": 5, "hidden_sizes": (8,),
    "policy_gain": 1.0, "eval_episodes": 0, "compile": "off",
}  # fmt: skip
STRICT = ("-std=c99", "-O0", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror")


class Counted(IdentityEnv):
    """Observes every kind of number at once, nested, with choices that do not count from 0; its action does not either."""

    def __init__(self) -> None:
        super().__init__(spaces.Discrete(3))
        self.action_space = spaces.Discrete(3, start=-7)
        self.observation_space = spaces.Dict(
            {
                "deep": spaces.Tuple((spaces.Discrete(4, start=5), spaces.Box(-2.0, 2.0, (2, 2), np.float64))),
                "keys": spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 0], [-3, 100]]),
                "bits": spaces.MultiBinary([2, 2]),
                "bytes": spaces.Box(0, 255, (3,), np.uint8),
                "wide": spaces.Box(-5000, 5000, (2,), np.int32),
            }
        )

    def pay(self, action: Any) -> float:
        assert self.action_space.contains(action)
        return 1.0


class Evil(DictIdentityEnv):
    """Entries whose names would end a comment, or hide what comes after them."""

    def __init__(self) -> None:
        super().__init__()
        self.names = {"noise": "*/ int x; /*", "part": 'a"\\\n??/b', "half": "\u202eesrever*\u200b/"}
        old = self.observation_space
        assert isinstance(old, spaces.Dict)
        self.observation_space = spaces.Dict({self.names[key]: space for key, space in old.items()})

    def draw(self) -> Any:
        observation = self.observation_space.sample()
        self.wanted = int(observation[self.names["part"]])
        return observation


KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "discrete": (FACTORIES["discrete"], {}),
    "multi_discrete": (FACTORIES["multi_discrete"], {"activation": "relu"}),
    "multi_binary": (FACTORIES["multi_binary"], {"activation": "silu", "arch": "shared"}),
    "clipped": (wide_box, {"normalize_observation": True, "initial_std": 4.0, "activation": "gelu"}),
    "rescaled": (wide_box, {"action_bounds": "rescale", "std": "state_dependent", "mean_tanh": True}),
    "tanh": (wide_box, {"action_distribution": "tanh", "activation": "elu", "layer_norm": True}),
    "beta": (wide_box, {"action_distribution": "beta", "activation": "leaky_relu"}),
    "masked": (FACTORIES["masked"], {}),
    "counted": (Counted, {"normalize_observation": True}),
    "hybrid": (HybridIdentityEnv, {"normalize_observation": True}),
    "masked_hybrid": (MaskedHybridEnv, {"action_distribution": "tanh"}),
}


COMBINATIONS = [(kind, memory, 1) for kind in KINDS for memory in ("none", "gru", "lstm")]
COMBINATIONS += [("counted", "none", 3), ("counted", "lstm", 3), ("clipped", "none", 2), ("masked", "gru", 3)]


def made(kind: str, memory: str = "none", **more: Any) -> Any:
    factory, fields = KINDS[kind]
    agent = pg.PPO(factory, **{**SMALL, **fields, "memory": memory, **more})
    model, generator = agent.model, torch.Generator().manual_seed(3)
    with torch.no_grad():  # a network that cares about all it sees, with normalisers that are not at their start
        for part in (model.policy_encoder, model.policy_memory, model.policy_head):
            for parameter in () if part is None else part.parameters():
                parameter.add_(0.7 * torch.randn(parameter.shape, generator=generator))
        for name, buffer in model.normalizer.named_buffers():
            if not name.startswith("moments"):
                buffer.add_(0.2 * torch.rand(buffer.shape, generator=generator))
    return agent


def written(agent: Any, path: Path) -> str:
    """The file as the export writes it, without the check that the export makes."""
    text, _ = c_source.c_source(Layout(agent.agent), provenance(agent))
    path.write_text(text)
    return text


def library(source: Path, folder: Path, compiler: str | None = None, flags: tuple[str, ...] = STRICT) -> Any:
    """`phasegrad_act` of a file, built with warnings as errors."""
    target = folder / "own.so"
    command = [compiler or str(native.compiler()), *flags, "-DPHASEGRAD_NO_MAIN", "-fPIC", "-shared", str(source)]
    done = subprocess.run([*command, "-o", str(target), "-lm"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:2000]
    return ctypes.CDLL(str(target))


def sizes(text: str) -> dict[str, int]:
    return {name.lower(): int(size) for name, size in re.findall(r"#define PHASEGRAD_(\w+)_SIZE (\d+)", text)}


def numbers_of(space: gym.Space, value: Any) -> list[np.ndarray]:
    """The numbers of an observation or action in the order of its space."""
    if isinstance(space, spaces.Dict):
        return [n for key, part in space.spaces.items() if key != "action_mask" for n in numbers_of(part, value[key])]
    if isinstance(space, spaces.Tuple):
        return [n for part, entry in zip(space.spaces, value, strict=True) for n in numbers_of(part, entry)]
    return [np.asarray(value, np.float32).reshape(-1)]


def pointer(array: np.ndarray | None) -> Any:
    return None if array is None else array.ctypes.data_as(ctypes.c_void_p)


@needs_compiler
@pytest.mark.parametrize(("kind", "memory", "stack"), COMBINATIONS)
def test_over_episodes_the_function_does_what_predict_does(kind: str, memory: str, stack: int, tmp_path: Path) -> None:
    """Driven here one observation at a time, each side with its own state, in an environment of its own."""
    agent = made(kind, memory, frame_stack=stack)
    text = written(agent, tmp_path / "policy.c")
    own, size = library(tmp_path / "policy.c", tmp_path), sizes(text)
    env, action_space = KINDS[kind][0](), agent.agent.spaces.original_action
    state, theirs = np.full(max(1, size["state"]), 7.0, np.float32), None
    own.phasegrad_reset(pointer(state))
    assert not state[: size["state"]].any()
    random = np.random.default_rng(0)
    seen = set()
    for episode in range(2):
        observation, info = env.reset(seed=episode)
        own.phasegrad_reset(pointer(state))
        for step in range(6):
            mask = info.get("action_mask")
            row = np.concatenate(numbers_of(env.observation_space, observation))
            assert len(row) == size["observation"]
            allowed = None if mask is None else np.asarray(mask, np.uint8)
            action = np.full(size["action"], np.nan, np.float32)
            assert own.phasegrad_act(pointer(row), pointer(allowed), pointer(state), pointer(action)) == 0
            wanted, theirs = agent.predict(observation, theirs, step == 0, mask)
            np.testing.assert_allclose(action, np.concatenate(numbers_of(action_space, wanted)), rtol=1e-5, atol=1e-5)
            seen.add(action.tobytes())
            chosen = wanted if mask is not None else sampled(action_space, random)
            observation, _, _, _, info = env.step(chosen)
    assert len(seen) > 1  # it reads what it is shown


def sampled(space: gym.Space, random: np.random.Generator) -> Any:
    space.seed(int(random.integers(1 << 30)))
    return space.sample()


@needs_compiler
@pytest.mark.parametrize(
    ("kind", "memory", "stack"), [("counted", "gru", 2), ("masked_hybrid", "lstm", 1), ("beta", "none", 1)]
)
def test_the_export_checks_itself_on_whole_episodes(kind: str, memory: str, stack: int, tmp_path: Path) -> None:
    report = export_c(made(kind, memory, frame_stack=stack), tmp_path / "policy.c")
    assert report.checked is not None
    assert (report.checked.random, report.checked.real, report.checked.episodes) == (256, 80, 4)
    assert report.checked.difference <= 1e-5
    assert "agrees with predict on 256 random and 80 real observations, 4 whole episodes" in report.describe()
    assert [path.name for path in tmp_path.iterdir()] == ["policy.c"]


@needs_compiler
def test_a_wrong_file_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults in every stage of the text are found by the export's own check."""
    agents = {
        "gru": made("counted", "gru", frame_stack=2),
        "mask": made("masked"),
        "box": made("clipped", "lstm"),
    }
    right = c_source.c_source
    faults = [
        ("gru", "seen[f * 18 + 7 + i]", "seen[f * 18 + 8 + i]"),  # another entry's numbers
        ("gru", "memmove(seen, seen + 18", "memmove(seen, seen + 17"),
        ("gru", "f = begun ? 1 : 0", "f = 1"),  # a first observation that is not repeated
        ("gru", "memcpy(state, after, sizeof after)", "(void)after"),
        ("mask", "mask ? mask[i] != 0 : 1", "1"),
        ("mask", "> x[at * 1]", "< x[at * 1]"),
        ("box", "1.0f / (1.0f + expf(-x))", "1.0f / (1.0f + expf(x))"),
        ("box", "out[j] = bias ? bias[j] : 0.0f", "out[j] = 0.0f"),
        ("box", "printf(\"%s%.9g\"", "printf(\"%s%.5g\""),
    ]  # fmt: skip
    for name, old, new in faults:

        def broken(*arguments: Any, old: str = old, new: str = new) -> tuple[str, int]:
            text, stack = right(*arguments)
            assert old in text, old
            return text.replace(old, new), stack

        monkeypatch.setattr(c_module, "c_source", broken)
        with pytest.raises(RunError, match=r"not written\.$"):
            export_c(agents[name], tmp_path / "policy.c")
        assert not list(tmp_path.iterdir()), old


@needs_compiler
def test_the_program_reads_lines_and_prints_actions(tmp_path: Path) -> None:
    agent = made("masked", "gru")
    export_c(agent, tmp_path / "policy.c")
    program = tmp_path / "policy"
    command = [str(native.compiler()), *STRICT, str(tmp_path / "policy.c"), "-o", str(program), "-lm"]
    assert subprocess.run(command, capture_output=True).returncode == 0

    def run(text: str) -> tuple[int, str, str]:
        done = subprocess.run([str(program)], input=text, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    masks = ["1 1 0 1 0 1", "0 1 1 1 1 1", "1 0 1 0 1 0"]
    wanted, state = [], None
    for turn in range(2):
        for step, mask in enumerate(masks):
            action, state = agent.predict(step + turn, state, step == 0, np.array(mask.split(), int))
            wanted.append(str(action))
    lines = [f"{step + turn}, {mask}" for turn in range(2) for step, mask in enumerate(masks)]
    text = "\n".join([*lines[:3], "", *lines[3:]])
    assert run(text) == (0, "\n".join(wanted) + "\n", "")
    assert run("\n".join(lines))[1] != run(text)[1] or wanted[3:] == wanted[:3]
    assert run("0 1 1\n") == (1, "", "Line 1 has 3 numbers, but 7 are needed.\n")
    assert run(lines[0] + "\n" + lines[0] + " 1\n")[::2] == (1, "Line 2: too many numbers.\n")
    assert run("x 1 1 1 1 1 1\n")[::2] == (1, "Line 1: not a number.\n")
    assert run("1" * 600 + "\n")[::2] == (1, "Line 1: not a number.\n")
    for choice in ("6", "-1", "0.5", "nan"):
        code, _, said = run(f"{choice} 1 1 1 1 1 1\n")
        assert (code, said) == (1, "Line 1: the observation has a number that is no choice of its entry.\n")
    assert run("") == (0, "", "")


@needs_compiler
@pytest.mark.parametrize("compiler", ["gcc", "clang", "g++", "clang++"])
def test_compilers_have_nothing_to_say(compiler: str, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler} on this machine")
    for kind, memory in (("counted", "lstm"), ("masked_hybrid", "gru"), ("beta", "none"), ("tanh", "none")):
        agent = made(kind, memory, frame_stack=2)
        written(agent, tmp_path / "policy.c")
        flags = STRICT if "+" not in compiler else ("-x", "c++", "-std=c++11", "-Wall", "-Wextra", "-Werror")
        own = library(tmp_path / "policy.c", tmp_path, compiler, flags)
        size = sizes((tmp_path / "policy.c").read_text())
        zeros = [np.zeros(max(1, size[name]), np.float32) for name in ("observation", "state", "action")]
        assert own.phasegrad_act(None, None, pointer(zeros[1]), pointer(zeros[2])) == 1
        assert own.phasegrad_act(pointer(zeros[0]), None, None, pointer(zeros[2])) == 1


@needs_compiler
def test_names_that_strangers_chose_end_no_comment(tmp_path: Path) -> None:
    agent = pg.PPO(Evil, **SMALL)
    export_c(agent, tmp_path / "policy.c")
    payload = (tmp_path / "policy.c").read_bytes()
    assert payload.isascii()
    head = payload.decode().partition("#include")[0]
    assert head.count("*/") == 1
    assert head.count("/*") == 1
    assert "??" not in head
    assert "* / int x; / *" in head
    library(tmp_path / "policy.c", tmp_path)


@needs_compiler
def test_the_same_agent_gives_the_same_file_and_floats_keep_their_bits(tmp_path: Path) -> None:
    agent = made("clipped")
    export_c(agent, tmp_path / "a.c")
    export_c(agent, tmp_path / "b.c")
    text = (tmp_path / "a.c").read_text()
    assert text == (tmp_path / "b.c").read_text()
    arrays = re.findall(r"static const float \w+\[\d+\] = \{([^}]*)\}", text)
    found = {np.array([float(n.strip().rstrip("f")) for n in body.split(",")], np.float32).tobytes() for body in arrays}
    weight = agent.model.policy_encoder.mlp.layers[0].weight
    assert weight.detach().t().contiguous().numpy().tobytes() in found


@needs_compiler
def test_what_only_the_value_network_sees_is_not_asked_for(tmp_path: Path) -> None:
    agent = pg.PPO(DictIdentityEnv, **{**SMALL, "critic_only": ("noise",), "memory": "gru", "arch": "dual"})
    agent.learn(64)
    report = export_c(agent, tmp_path / "policy.c")
    assert (report.observation_size, report.state_size) == (2, 5)
    assert report.checked is not None
    assert report.checked.episodes == 4


class Squares(nn.Module):
    """An encoder of a user's own, of operations that the generator knows."""

    features = 6

    def __init__(self, space: gym.Space) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(observation) ** 2).softmax(-1)


class Sorted(Squares):
    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.layer(observation.sort(-1).values)


@needs_compiler
def test_encoders_of_ones_own(tmp_path: Path) -> None:
    export_c(pg.PPO("CartPole-v1", **{**SMALL, "encoder": Squares}), tmp_path / "policy.c")
    with pytest.raises(RunError, match=r"^The policy cannot be written as C, .* sort yet: export it with --onnx\.$"):
        export_c(pg.PPO("CartPole-v1", **{**SMALL, "encoder": Sorted}), tmp_path / "other.c")
    assert [path.name for path in tmp_path.iterdir()] == ["policy.c"]


def large_start() -> gym.Env:
    env = IdentityEnv(spaces.Discrete(3))
    env.action_space = spaces.Discrete(3, start=1 << 30)
    return env


def test_what_c_does_not_have_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"^A policy that sees images is not written as C: export it with --onnx\.$"):
        export_c(pg.PPO(Picture, **SMALL), tmp_path / "p.c")
    with pytest.raises(RunError, match=r"^The actions have numbers that no C float holds: export it with --onnx\.$"):
        export_c(pg.PPO(large_start, **SMALL), tmp_path / "p.c")
    assert not list(tmp_path.iterdir())


def test_only_files_of_its_own_are_replaced(tmp_path: Path) -> None:
    agent = pg.PPO("CartPole-v1", **SMALL)
    other = tmp_path / "mine.c"
    other.write_text("int main(void) { return 0; }\n")
    with pytest.raises(RunError, match="is no C file of an exported policy"):
        export_c(agent, other)
    assert other.read_text().startswith("int main")
    with pytest.raises(RunError, match="is a directory: name a file"):
        export_c(agent, tmp_path)
    os.mkfifo(tmp_path / "pipe.c")
    with pytest.raises(RunError, match="is a named pipe, not a file"):
        export_c(agent, tmp_path / "pipe.c")
    export_c(agent, tmp_path / "policy.c")
    export_c(agent, tmp_path / "policy.c")


def test_without_a_compiler_it_says_that_it_was_not_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = pg.PPO("CartPole-v1", **SMALL)
    agent.save(tmp_path / "agent")
    monkeypatch.setattr(c_module.native, "compiler", lambda: None)
    assert main(["export", str(tmp_path / "agent"), "--c", str(tmp_path / "p.c")]) == 0
    assert "not checked, since there is no C compiler here" in capsys.readouterr().out
    assert (tmp_path / "p.c").exists()
    monkeypatch.setattr(c_module.native, "compiler", lambda: str(tmp_path / "missing"))
    assert main(["export", str(tmp_path / "agent"), "--c", str(tmp_path / "q.c")]) == 2
    assert "The C compiler cannot be started" in capsys.readouterr().err
    assert c_parity.FLAGS[0] == "-std=c99"


@needs_compiler
@pytest.mark.parametrize("after", ["chmod a-x *policy", ": > policy.so"])
def test_where_nothing_may_be_run_it_says_what_to_set(
    after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = pg.PPO("CartPole-v1", **SMALL)
    script = tmp_path / "compiler"
    script.write_text(
        f'#!/bin/sh\n{native.compiler()} "$@"\nfor each; do case "$each" in */policy.c) cd "$(dirname "$each")" && {after};; esac; done\n'
    )
    script.chmod(0o755)
    monkeypatch.setattr(c_module.native, "compiler", lambda: str(script))
    sentence = r"^The C file cannot be checked, since what is compiled does not run in \S+ \([^/]+\): set TMPDIR to a .*; not written\.$"
    with pytest.raises(RunError, match=sentence):
        export_c(agent, tmp_path / "p.c")
    assert not (tmp_path / "p.c").exists()


def test_the_command_wants_a_file_and_says_what_belongs_to_which(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(tmp_path)]) == 2
    assert "Name a file to write: --onnx FILE, --c FILE or both." in capsys.readouterr().err
    assert main(["export", str(tmp_path), "--c", "p.c", "--stochastic"]) == 2
    assert "--stochastic is for ONNX files" in capsys.readouterr().err
    assert main(["export", str(tmp_path), "--c", "p.c", "--onnx", "./p.c"]) == 2
    assert "--onnx and --c both name p.c" in capsys.readouterr().err
