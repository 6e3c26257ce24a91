"""One run on several processes: the same gradients and moments as one, the same bits on each, one run directory.

Two processes joined by gloo stay up for all tests here; those about restarts use torchrun itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rank_work as work
import torch
from machine import needs_compiler
from written_runs import rows_of, write_run

import phasegrad as pg
from phasegrad.data.minibatches import gather
from phasegrad.data.phase_buffer import AuxiliaryBatch, BufferedStates
from phasegrad.distributed import shared_memory
from phasegrad.distributed.shared_memory import is_possible
from phasegrad.losses import OBJECTIVES
from phasegrad.runs.directory import RunDirectory

ROOT = Path(__file__).parents[1]
SMALL: dict[str, Any] = {"num_envs": 4, "num_steps": 32, "seed": 3}


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[work.Team]:
    team = work.Team(2, tmp_path_factory.mktemp("ranks"))
    yield team
    team.close()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_task_that_fails_on_one_process_leaves_the_next_task_alone(team: work.Team, rank: int) -> None:
    """The tests' own helper: an error is told at once, and later answers are those to later questions."""
    before = team.run(work.process_number)
    with pytest.raises(AssertionError, match=f"process {rank}: (?s:.*)ValueError: rank {rank} fails"):
        team.run(work.fail_on, rank)
    after = team.run(work.process_number)
    assert not set(before) & set(after)
    results = team.run(work.reduced, 5)
    assert len({reduced for reduced, _ in results}) == 1


# The arithmetic


CASES = [("ppo", {"objective": objective, "arch": "dual"}) for objective in OBJECTIVES]
CASES += [
    ("ppo", {"arch": "shared", "value_clip": 0.2, "entropy_coef": 0.1, "normalize_advantage": "none"}),
    ("ppo", {"arch": "shared", "whole_segments": True, "num_minibatches": 2}),
    ("ppg", {"arch": "dual"}),
    ("ppg", {"arch": "dual", "aux_target": "value_network", "beta_clone": 2.0}),
    ("ppg", {"arch": "detach", "objective": "kl"}),
    ("ppg", {"arch": "shared", "hold_value": True}),
]


@pytest.mark.parametrize(("algorithm", "fields"), CASES, ids=lambda value: value if isinstance(value, str) else None)
def test_the_step_is_down_the_gradient_of_the_whole_minibatch(
    team: work.Team, algorithm: str, fields: dict[str, Any]
) -> None:
    compare_gradients(team, algorithm, fields, way="plain", tolerance=1e-10)


def test_traced_gradients_are_averaged_too(team: work.Team) -> None:
    compare_gradients(team, "ppo", {"arch": "shared"}, way="traced", tolerance=1e-10)
    compare_gradients(team, "ppg", {"arch": "dual"}, way="traced", tolerance=1e-10)


@needs_compiler
def test_compiled_gradients_are_averaged_too(team: work.Team) -> None:
    compare_gradients(team, "ppo", {"arch": "dual"}, way="compiled", tolerance=2e-6)
    compare_gradients(team, "ppg", {"arch": "shared"}, way="compiled", tolerance=2e-6)


def compare_gradients(team: work.Team, algorithm: str, fields: dict[str, Any], way: str, tolerance: float) -> None:
    """Against plain autograd over the samples of both processes, gathered from the undivided rollout."""
    first, second = team.run(work.stepped_gradients, algorithm, fields, way)
    with contextlib.nullcontext() if way == "compiled" else work.float64():
        agent = work.make_agent(algorithm, **fields)
        rollout = work.random_rollout(agent, agent.config.num_envs, agent.flat.data.dtype)
        for name, (loss, groups, kind) in work.losses(agent).items():
            assert len(first[name]["samples"]) == agent.config.num_minibatches  # type: ignore[attr-defined]
            seen: list[tuple[int, int]] = []
            for number, parts in enumerate(zip(first[name]["samples"], second[name]["samples"], strict=True)):
                samples = torch.from_numpy(np.concatenate(parts))
                seen += [tuple(pair) for pair in samples.tolist()]  # type: ignore[misc]
                states = BufferedStates(rollout.observations, None, rollout.value_targets, rollout.behaviour_params)
                source = states if kind is AuxiliaryBatch else rollout
                batch: Any = gather(source, samples[:, 1] * rollout.num_envs + samples[:, 0], agent.device, kind)
                if hasattr(batch, "advantages") and agent.config.normalize_advantage == "minibatch":  # type: ignore[attr-defined]
                    a = batch.advantages
                    batch.advantages = (a - a.mean()) / (a.var(correction=0).sqrt() + 1e-8)
                agent.flat.grad.zero_()
                loss(batch, {**agent.config.weights(), **work.SCALARS})[0].backward()
                for group in groups:
                    wanted = agent.flat.grad[agent.flat.slices[group]].numpy()
                    assert np.abs(wanted).max() > 1e-4
                    for found in (first, second):
                        mine = found[name]["gradients"][group][number]
                        np.testing.assert_allclose(mine, wanted, rtol=0, atol=tolerance, err_msg=f"{name} {group}")
                    assert (first[name]["gradients"][group][number] == second[name]["gradients"][group][number]).all()
            steps, envs = agent.config.num_steps, agent.config.num_envs
            assert sorted(seen) == [(env, step) for env in range(envs) for step in range(steps)]  # each sample once
        agent.close()


def test_moments_and_normalisers_are_those_of_the_pooled_data(team: work.Team) -> None:
    first, second = team.run(work.pooled_numbers)
    data = work.pool()
    for name in ("observation_moments", "reward_moments", "uneven"):
        assert (first[name] == second[name]).all()
    rows = data["observations"].reshape(-1, 3).numpy()
    close(first["observation_moments"], [np.full(3, len(rows)), rows.mean(0), len(rows) * rows.var(0)])

    returns, running = [], np.zeros(4)
    for rewards, done in zip(data["rewards"].flatten(0, 1).numpy(), data["done"].flatten(0, 1).numpy(), strict=True):
        running = rewards + 0.9 * running
        returns.append(running)
        running = running * ~done
    flat = np.array(returns).reshape(2, -1)
    close(first["reward_moments"], [flat.size, flat.mean(), flat.size * flat.var()])
    scale = np.sqrt([flat[0].var() + 1e-8, flat.var() + 1e-8])
    wanted = (data["rewards"].numpy() / scale[:, None, None]).clip(-10, 10).astype(np.float32)
    np.testing.assert_allclose(np.concatenate([first["rewards"], second["rewards"]], 2), wanted, rtol=1e-6)

    advantages, targets = data["advantages"].numpy(), data["targets"].numpy()
    close(first["uneven"], [advantages.size, advantages.mean(), advantages.size * advantages.var()])
    whole = np.concatenate([first["advantages"], second["advantages"]], 1)
    close(whole, (advantages - advantages.mean()) / (advantages.std() + 1e-8))
    close(first["explained_variance"], 1 - (targets - advantages).var() / targets.var())
    parts = [np.array_split(advantages[:, env : env + 2].reshape(-1), 5) for env in (0, 2)]
    for rank, found in enumerate((first, second)):
        for mine, split in zip(np.array_split(found["advantages_by_minibatch"].reshape(-1), 5), range(5), strict=True):
            together = np.concatenate([parts[0][split], parts[1][split]])
            close(mine, (parts[rank][split] - together.mean()) / (together.std() + 1e-8))


def close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [1, 5, 4097, 100_003])
def test_an_all_reduce_has_the_same_bits_everywhere(team: work.Team, size: int) -> None:
    results = team.run(work.reduced, size)
    assert len({reduced for reduced, _ in results}) == 1
    mean = np.mean([np.frombuffer(own, np.float32) for _, own in results], 0, dtype=np.float64)
    np.testing.assert_allclose(np.frombuffer(results[0][0], np.float32), mean, atol=1e-6)


def test_three_processes_by_memory_and_by_gloo(tmp_path: Path) -> None:
    """The same bits on each, and no waiting for one that has ended."""
    three = work.Team(3, tmp_path)
    try:
        for size in (1, 70_007):
            for share in (True, False):
                results = three.run(work.reduced, size, share)
                assert len({reduced for reduced, _ in results}) == 1
                mean = np.mean([np.frombuffer(own, np.float32) for _, own in results], 0, dtype=np.float64)
                np.testing.assert_allclose(np.frombuffer(results[0][0], np.float32), mean, atol=1e-6)
        assert three.run(work.uses_shared_memory) == [is_possible()] * 3
        fields = {"num_envs": 6, "num_steps": 16, "num_minibatches": 4, "epochs": 1, "normalize_observation": True}
        digests = three.run(work.train, "ppo", "CartPole-v1", 192, None, 0, fields)
        assert len({found["digest"] for found in digests}) == 1
        for pipe in three.pipes:
            pipe.send((work.left_alone, ()))
        for pipe in three.pipes[:2]:
            assert pipe.poll(30)
            error, told = pipe.recv()
            assert error is None
            assert [kind for kind, _ in told] == ["RanksError", "RanksError"]
            assert all("has ended" in sentence for _, sentence in told)
    finally:
        three.close()


# Errors


@pytest.mark.parametrize("share", [True, False], ids=["memory", "gloo"])
@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_on_one_process_is_told_to_the_others_and_nothing_gets_out_of_step(
    team: work.Team, tmp_path: Path, failing: int, share: bool
) -> None:
    """The one that waits must not take the answer to the next question for the answer to its own."""
    found = team.run(work.learn_and_fail, [failing], share, str(tmp_path / "meeting"))
    assert found[failing]["learn"] == ("ValueError", "a bug of the user's")
    kind, sentence = found[1 - failing]["learn"]
    assert kind == "RanksError"
    assert "has failed" in sentence
    assert found[1 - failing]["seconds"] < 30  # it did not wait out its patience
    for rank in range(2):
        kind, sentence = found[rank]["next"]
        assert (kind, "no longer in step" in sentence) == ("RanksError", True)
        assert found[rank]["mean"] == [0.5]  # joined anew


def test_an_error_that_all_processes_meet_leaves_them_in_step(team: work.Team, tmp_path: Path) -> None:
    for found in team.run(work.learn_and_fail, [0, 1], True, str(tmp_path / "meeting")):
        assert found["learn"] == ("ValueError", "a bug of the user's")
        assert found["next"] == ("", "")
        assert found["mean"] == [0.5]


def test_any_error_of_the_first_process_reaches_those_that_wait_for_its_result(team: work.Team) -> None:
    first, second = team.run(work.told_by_first)
    assert first["broken"] == ("ZeroDivisionError", "by zero")
    assert second["broken"] == ("RanksError", "The first process of this run has failed (ZeroDivisionError: by zero).")
    assert first["no json"][0] == "TypeError"
    assert second["no json"][0] == "RanksError"
    assert first["mean"] == second["mean"] == [0.5]


def test_without_room_for_shared_memory_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not an error on the first process alone, as a folder that it may not write to was."""
    monkeypatch.setattr(shared_memory, "is_possible", lambda: True)
    monkeypatch.setattr(shared_memory, "FOLDER", tmp_path / "nowhere")
    assert shared_memory.create(2, 64) is None


# Runs


def test_ppo_learns_as_well_on_two_processes_with_the_same_bits_on_both(team: work.Team) -> None:
    fields = {"seed": 1, "compile": "on"}
    first, second = team.run(work.train, "ppo", "CartPole-v1", 30_720, None, 0, fields)
    assert len(first["rows"]) == 30
    assert first == second  # parameters, every metric, every episode
    alone = work.train("ppo", "CartPole-v1", 30_720, None, 0, fields)
    # the same environments, noise and weights: the first rollout does not depend on the number of processes
    for name in ("return_mean", "episodes", "length_mean"):
        assert first["rows"][0][name] == alone["rows"][0][name]
    for name in ("explained_variance", "value_mean", "value_target_mean"):
        assert first["rows"][0][name] == pytest.approx(alone["rows"][0][name], rel=1e-4)
    assert alone["rows"][-1]["return_mean"] > 150
    assert first["rows"][-1]["return_mean"] > 150


RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo-kl": ("ppo", {"objective": "kl", "kl_target": 0.01, "normalize_advantage": "batch", "compile": "on"}),
    "ppo-stop": ("ppo", {"kl_stop": 0.002, "recompute_advantages": True, "normalize_reward": True}),
    "ppo-shared": ("ppo", {"arch": "shared", "whole_segments": True, "num_minibatches": 2, "measure_interference": True}),
    "ppg-dual": ("ppg", {"n_pi": 2, "normalize_observation": True, "compile": "on"}),
    "ppg-detach": ("ppg", {"arch": "detach", "n_pi": 2, "policy_gae_lambda": 0.8}),
    "ppg-reloaded": (
        "ppg",
        {"arch": "shared", "aux_interval": 1, "aux_buffer": 3, "aux_steps": 4, "aux_minibatches": 0,
         "aux_minibatch_size": 64},
    ),
    "ppg-held": ("ppg", {"n_pi": 2, "hold_value": True, "whole_segments": True, "num_minibatches": 2, "aux_minibatches": 4}),
    "a2c": ("a2c", {"num_steps": 5, "updates_per_iteration": 4, "normalize_advantage": "batch", "compile": "on"}),
    "vpg": ("vpg", {"value_steps": 5, "normalize_observation": True}),
    "ppo-lstm": ("ppo", {"memory": "lstm", "sequence_length": 8, "compile": "on"}),
    "ppg-gru": ("ppg", {"memory": "gru", "n_pi": 2, "num_minibatches": 2, "aux_minibatches": 4, "sequence_length": 16}),
    "trpo-lstm": ("trpo", {"memory": "lstm", "sequence_length": 8, "fisher_samples": 50, "num_minibatches": 4,
                           "value_epochs": 1}),
    "trpo": ("trpo", {"fisher_samples": 50, "num_minibatches": 4, "value_epochs": 1, "compile": "on"}),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_every_algorithm_keeps_its_processes_alike(team: work.Team, name: str) -> None:
    algorithm, fields = RUNS[name]
    env = "Pendulum-v1" if name in ("trpo", "ppg-dual") else "CartPole-v1"
    first, second = team.run(work.train, algorithm, env, 640, None, 0, {**SMALL, **fields})
    assert first["step"] == 640
    assert first["rows"]
    assert json.dumps(first) == json.dumps(second)  # which takes NaN for equal
    assert len({row["iteration"] for row in first["rows"]}) == len(first["rows"])


REMEMBERING = {"none": {}, **{kind: {"memory": kind, "sequence_length": 8} for kind in ("gru", "lstm")}}
CARRYING: dict[str, Any] = {
    **SMALL, "n_pi": 4, "checkpoint_every": 128, "normalize_reward": True, "normalize_observation": True,
    "compile": "off", "e_pi": 1, "e_v": 1, "num_minibatches": 4, "aux_minibatches": 4,
}  # fmt: skip


@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_a_run_stopped_on_two_processes_goes_on_exactly_on_two_and_on_one(
    team: work.Team, memory: str, tmp_path: Path
) -> None:
    """PPG inside a leg: the leg's actions, running returns and observations are those of all environments.

    So is what a policy with a memory remembers of their episodes.
    """
    fields = {**CARRYING, "checkpoint_every": 512, "eval_checkpoints": 1, **REMEMBERING[memory]}
    team.run(work.train, "ppg", "CartPole-v1", 1280, str(tmp_path / "two"), 6, fields)
    for name in ("one", "back"):
        shutil.copytree(tmp_path / "two", tmp_path / name)
    reference = team.run(work.train, "ppg", "CartPole-v1", 1280, str(tmp_path / "reference"), 0, fields)[0]
    assert (RunDirectory(tmp_path / "two").checkpoint() / "leg.safetensors").exists()
    resumed = team.run(work.resume, str(tmp_path / "two"))
    assert resumed[0]["digest"] == resumed[1]["digest"] == reference["digest"]
    assert resumed[0]["returns"] == reference["returns"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as of environments that did not play back
        alone = work.resume(str(tmp_path / "one"))
    assert alone["step"] == 1280
    assert alone["rows"][0]["iteration"] == 7
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        work.resume(str(tmp_path / "back"), None, 1)  # one process, then two again
    again = team.run(work.resume, str(tmp_path / "back"))
    assert again[0]["step"] == 1280
    assert again[0]["digest"] == again[1]["digest"]


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_carried_rollouts_are_written_whole_and_divided_again(team: work.Team, memory: str, tmp_path: Path) -> None:
    path, fields = tmp_path / "run", {**CARRYING, **REMEMBERING[memory]}
    team.run(work.train, "ppg", "CartPole-v1", 1280, str(path), 6, fields)  # two iterations into the second phase
    agent = pg.load(path)
    assert isinstance(agent, pg.PPG)
    from phasegrad.runs.carried import take_up_carried

    take_up_carried(agent)
    assert [steps for steps in agent.buffer.filled if steps] == [32, 32]
    stored = agent.experience.storage().rollouts[0]
    assert stored.observations.shape == (32, 4, 4)
    assert (stored.observations.abs().sum((0, 2)) > 0).all()  # of every environment
    resumed = team.run(work.resume, str(path))
    whole = team.run(work.train, "ppg", "CartPole-v1", 1280, str(tmp_path / "whole"), 0, fields)
    assert resumed[0]["digest"] == resumed[1]["digest"] == whole[0]["digest"]


def test_a_run_begun_by_one_process_goes_on_on_two(team: work.Team, tmp_path: Path) -> None:
    work.train("ppo", "CartPole-v1", 1280, str(tmp_path / "run"), 4, {**SMALL, "log_steps": True})
    first, second = team.run(work.resume, str(tmp_path / "run"))
    assert first["step"] == 1280
    assert first == second
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == list(range(1, 11))  # written once, by the first process
    assert json.loads((tmp_path / "run" / "result.json").read_text())["processes"] == 2
    with np.load(sorted((tmp_path / "run" / "steps").glob("*.npz"))[-1]) as steps:
        assert steps["reward"].shape == (32, 4)


def test_a_divergence_is_found_and_named(team: work.Team, tmp_path: Path) -> None:
    found = team.run(work.diverge, str(tmp_path / "run"))
    assert found[0] == found[1]
    kind, sentence = found[0]
    assert kind == "RanksError"
    assert "iteration 13" in sentence or "iteration 16" in sentence  # the first comparison after it: at a checkpoint
    assert re.search(r"model\.\S+ of process 1 differs", sentence), sentence


def test_a_stop_that_reaches_one_process_stops_all_with_a_checkpoint(team: work.Team, tmp_path: Path) -> None:
    found = team.run(work.signalled, str(tmp_path / "run"))
    assert [kind for kind, _ in found] == ["Terminated", "Terminated"]
    assert "with a checkpoint" in found[0][1]
    assert RunDirectory(tmp_path / "run").checkpoints()


@pytest.mark.parametrize(
    ("algorithm", "fields", "sentence"),
    [
        ("ppo", {"num_envs": 5}, "num_envs 5 cannot be divided evenly among 2 processes: use 4 or 6."),
        ("ppo", {"num_envs": 1, "num_steps": 64, "num_minibatches": 4}, "num_envs 1 .* use 2."),
        ("ppo", {"num_envs": 4, "num_steps": 4, "num_minibatches": 9}, "more than the 8 samples that each of 2"),
        (
            "ppg",
            {"num_envs": 4, "whole_segments": True, "num_minibatches": 3},
            "more than the 2 environments' segments",
        ),
        (
            "ppg",
            {"num_envs": 4, "whole_segments": True, "num_minibatches": 2, "n_pi": 3, "aux_minibatches": 7},
            "aux_mini.* than the 6 ",
        ),
        ("acer", {}, "acer runs in one process only: start it without torchrun."),
        ("ppo", {"device": "cuda"}, "device cuda is not available"),
    ],
)
def test_what_cannot_be_divided_is_refused(
    team: work.Team, algorithm: str, fields: dict[str, Any], sentence: str
) -> None:
    for kind, found in team.run(work.refused, algorithm, fields):
        assert kind == "ConfigError"
        assert re.search(sentence, found), found


@pytest.mark.parametrize(
    ("hook", "at", "step"),
    [("none", 0, 192), ("start", 0, 0), ("iteration", 96, 96), ("evaluation", 64, 64), ("checkpoint", 64, 64)],
)
def test_all_processes_stop_where_the_callback_of_one_does(
    team: work.Team, hook: str, at: int, step: int, tmp_path: Path
) -> None:
    first, second = team.run(work.hooked, str(tmp_path / "run"), 1, hook, at, str(tmp_path / "best"))
    assert first["calls"] == second["calls"]
    assert first["digest"] == second["digest"]
    assert first["history"] == second["history"]
    assert first["step"] == second["step"] == step
    assert (first["written"], second["written"]) == ([*range(32, step + 1, 32)], [])
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == ("finished" if at == 0 < step else "stopped")  # fmt: skip
    if hook == "none":
        rounds = [
            f"iteration {at - 32}|evaluation {at}|iteration {at}|checkpoint {at}".split("|") for at in (64, 128, 192)
        ]
        assert first["calls"] == ["start 0", *(call for calls in rounds for call in calls), "end 192"]
        assert pg.load(tmp_path / "best").progress.step in (64, 128, 192)
        resumed = team.run(work.resume, str(tmp_path / "run"), 256)
        assert resumed[0]["digest"] == resumed[1]["digest"]


def test_the_shortest_time_limit_of_all_processes_counts(team: work.Team) -> None:
    steps = team.run(work.limited, {0: 1e6, 1: 0.5})
    assert steps[0] == steps[1] > 0


# torchrun


def torchrun(*arguments: str, options: tuple[str, ...] = ()) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *options]
    return [*launcher, "-m", "phasegrad", *arguments]


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def test_errors_are_said_once_under_torchrun(tmp_path: Path) -> None:
    command = torchrun("train", "ppo", "--env", "CartPole-v1", "--num-envs", "3", "--run-dir", str(tmp_path / "run"))
    finished = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    assert finished.returncode != 0
    assert finished.stderr.count("phasegrad: num_envs 3 cannot be divided evenly among 2 processes: use 2 or 4.") == 1
    assert 'Traceback (most recent call last):\n  File "' + str(ROOT / "phasegrad") not in finished.stderr
    assert not (tmp_path / "run").exists()


def test_torchrun_restarts_a_killed_process_and_the_run_goes_on(team: work.Team, tmp_path: Path) -> None:
    """--overwrite is given, and must not wipe the run again; the result is that of a run never killed."""
    path = tmp_path / "run"
    fields = {"num_envs": 4, "num_steps": 64, "checkpoint_every": 1024, "compile": "on", "seed": 3, "epochs": 1}
    settings = [part for name, value in fields.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    command = torchrun(
        "train", "ppo", "--env", "CartPole-v1", "--total-steps", "20480", "--run-dir", str(path), "--overwrite", *settings,
        options=("--max-restarts", "1"),
    )  # fmt: skip
    write_run(path, rows_of(100))  # an older run, which goes at the first start
    with subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as launcher:
        try:
            wait_for(lambda: len(RunDirectory(path).checkpoints()) >= 2, launcher)
            (path / "bad-batch.safetensors").touch()  # which a fresh start would remove
            os.kill(rank_process(launcher.pid, 1), signal.SIGKILL)
            _, errors = launcher.communicate(timeout=120)
        finally:
            launcher.terminate()  # which ends its processes too
    assert launcher.returncode == 0, errors
    result = json.loads((path / "result.json").read_text())
    assert (result["status"], result["step"]) == ("finished", 20480)
    iterations = [json.loads(line)["iteration"] for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert iterations == list(range(1, 81))
    assert (
        path / "bad-batch.safetensors"
    ).exists()  # the same directory, continued: a fresh start would end with the same bits
    whole = team.run(work.train, "ppo", "CartPole-v1", 20480, str(tmp_path / "whole"), 0, fields)
    agent = pg.load(path)
    assert work.state_digest(agent) == whole[0]["digest"]


def rank_process(launcher: int, rank: int) -> int:
    """The process of a rank among the children of torchrun."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == launcher and f"RANK={rank}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    return int(entry.name)
            except OSError:
                continue
    raise AssertionError("no such process")


def wait_for(condition: Any, launcher: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert launcher.poll() is None, launcher.communicate()[1]
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.02)
