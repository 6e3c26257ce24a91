"""The command line: what each verb does and prints, and the one sentence that every mistake gets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import phasegrad as pg
from phasegrad.cli.doctor import Check, _cuda, verdict
from phasegrad.cli.main import main

SMALL = ["--num-envs", "2", "--num-steps", "16", "--num-minibatches", "2", "--epochs", "2"]


def train(run_dir: Path, *more: str, algorithm: str = "ppo", env: str = "CartPole-v1") -> int:
    size = SMALL if algorithm == "ppo" else SMALL[:-2]
    arguments = ["train", algorithm, "--env", env, "--total-steps", "128", "--run-dir", str(run_dir), "--quiet"]
    return main([*arguments, *size, *more])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "cartpole"
    assert train(path, "--seed", "3", "--eval-episodes", "2", "--checkpoint-every", "32") == 0
    return path


def test_a_run_directory_holds_what_is_promised(run: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    assert config["algorithm"] == "ppo"
    assert config["seed"] == 3
    assert config["total_steps"] == 128
    assert "torch" in config["versions"]
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [32, 64, 96, 128]
    wanted = {"return_mean", "episodes", "policy_loss", "value_loss", "kl", "entropy", "clip_fraction"}
    wanted |= {"explained_variance", "learning_rate", "sps", "time_environment", "time_inference", "time_update"}
    assert wanted <= set(rows[-1])
    result = json.loads((run / "result.json").read_text())
    assert {"status", "step", "return_mean", "sps", "seconds", "peak_rss_mb", "eval"} <= set(result)
    assert result["status"] == "finished"
    assert result["step"] == 128
    assert result["eval"]["episodes"] == 2
    assert list((run / "tensorboard").iterdir())
    assert sorted(p.name for p in (run / "checkpoints").iterdir())[-1] == "step-000000000128"


def test_eval_prints_one_json_object(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run), "--episodes", "3", "--deterministic", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {"return_mean", "return_std", "return_min", "length_mean", "episodes"} <= set(result)
    assert result["episodes"] == 3
    assert result["return_mean"] == result["length_mean"]  # CartPole pays 1 a step


def test_eval_is_repeatable_and_its_seed_matters(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for seed in ("5", "5", "6"):
        main(["eval", str(run), "--episodes", "4", "--json", "--seed", seed])
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != printed[2]


def test_eval_prints_a_table_and_takes_a_checkpoint(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run), "--episodes", "2", "--checkpoint", "96"]) == 0
    assert "96 steps" in capsys.readouterr().out


def test_resume_goes_on_to_a_larger_total(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "run")
    assert main(["resume", str(tmp_path / "run")]) == 0
    assert "already" in capsys.readouterr().out
    assert main(["resume", str(tmp_path / "run"), "--total-steps", "192", "--quiet"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [32, 64, 96, 128, 160, 192]


def test_a_killed_run_resumes_to_the_bits_of_one_that_was_not(tmp_path: Path) -> None:
    """SIGKILL in the middle, in a process of its own, then `resume`; every tensor and row must agree."""
    common = [
        "--env",
        "CartPole-v1",
        "--total-steps",
        "4000",
        "--seed",
        "7",
        "--checkpoint-every",
        "500",
        "--quiet",
        *SMALL,
    ]
    assert main(["train", "ppo", *common, "--run-dir", str(tmp_path / "whole")]) == 0
    killed = tmp_path / "killed"
    process = subprocess.Popen([sys.executable, "-m", "phasegrad", "train", "ppo", *common, "--run-dir", str(killed)])
    while process.poll() is None and len(list((killed / "checkpoints").glob("step-*"))) < 2:
        try:
            process.wait(0.01)
        except subprocess.TimeoutExpired:
            continue
    process.kill()
    process.wait()
    assert main(["resume", str(killed), "--quiet"]) == 0
    final = "checkpoints/step-000000004000/state.safetensors"
    assert (tmp_path / "whole" / final).read_bytes() == (killed / final).read_bytes()

    def rows(path: Path) -> list[dict[str, object]]:
        found = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        return [{k: v for k, v in row.items() if not k.startswith(("time_", "sps", "seconds"))} for row in found]

    assert rows(tmp_path / "whole") == rows(killed)


def test_plot_draws_a_picture(run: Path, tmp_path: Path) -> None:
    assert main(["plot", str(run), "--out", str(tmp_path / "curve.png")]) == 0
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_env_options_reach_the_environment(tmp_path: Path) -> None:
    assert train(tmp_path / "run", "--env.max-episode-steps", "5") == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["length_mean"] == 5.0


def test_a_preset_file_is_taken(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(json.dumps({"gamma": 0.7}))
    assert train(tmp_path / "run", "--preset", str(tmp_path / "mine.json")) == 0
    assert json.loads((tmp_path / "run" / "config.json").read_text())["gamma"] == 0.7


def test_plain_display_has_no_control_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", "ppo", "--env", "CartPole-v1", "--total-steps", "1_000", "--run-dir", str(tmp_path / "run")]
    assert main([*arguments, "--num-steps", "25", "--num-envs", "4"]) == 0
    printed = capsys.readouterr().out
    assert "1,000 / 1,000 steps" in printed
    assert "stored rollouts" in printed
    assert "\x1b" not in printed


def test_a_run_says_where_it_is_also_by_default(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["train", "ppo", "--env", "CartPole-v1", "--total-steps", "128", *SMALL]
    assert main(arguments) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[2] == "run directory runs/CartPole-v1-ppo-s1"
    (last,) = [line for line in printed if "finished at 128 steps" in line]
    assert last.endswith("; the run is in runs/CartPole-v1-ppo-s1")
    assert (tmp_path / "runs" / "CartPole-v1-ppo-s1" / "result.json").exists()
    pg.PPO("CartPole-v1", num_envs=2, num_steps=16, num_minibatches=2).learn(64, progress=True)
    assert "directory" not in (said := capsys.readouterr().out)
    assert "the run is in" not in said


def test_listings(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, word in (
        (["envs"], "procgen/coinrun"),
        (["envs", "classic"], "Acrobot-v1"),
        (["presets"], "procgen-paper"),
        (["presets", "mujoco-paper"], "2048"),
        (["--version"], "phasegrad 0."),
        ([], "resume"),
    ):
        assert main(arguments) == 0
        assert word in capsys.readouterr().out


def test_doctor_looks_at_each_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert checks["torch"]["ok"]
    assert {"envpool", "procgen", "mujoco", "tensorboard", "c compiler"} <= set(checks)


def checked(name: str, ok: bool, optional: bool) -> Check:
    return Check(name, ok, "as found", "pip install it", optional)


@pytest.mark.parametrize(
    ("checks", "last", "code"),
    [
        ([checked("torch", True, False), checked("ray", True, True)], "phasegrad is ready.", 0),
        (
            [checked("torch", True, False), checked("ray", False, True), checked("optuna", False, True)],
            "phasegrad is ready; optional parts missing: ray, optuna.",
            0,
        ),
        (
            [checked("torch", False, False), checked("ray", False, True)],
            "phasegrad is not ready: torch must be fixed; see the lines marked FAIL.",
            1,
        ),
    ],
)
def test_doctor_ends_with_a_verdict(
    checks: list[Check], last: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("phasegrad.cli.doctor.examine", lambda: checks)
    assert main(["doctor"]) == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == last
    marks = [line[:4] for line in lines if ": as found" in line]
    assert marks == ["ok  " if check.ok else "MISS" if check.optional else "FAIL" for check in checks]
    assert lines.count("      -> pip install it") == sum(not check.ok for check in checks)
    assert main(["doctor", "--json"]) == code
    assert [check["ok"] for check in json.loads(capsys.readouterr().out)] == [check.ok for check in checks]


def test_a_machine_without_a_gpu_has_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("phasegrad.cli.doctor.GPUS", (f"{tmp_path}/nvidia*",))
    none = _cuda()
    assert none.lines() == "info  cuda: no GPU here; networks run on the CPU"
    assert none.ok
    assert verdict([none]) == "phasegrad is ready."
    (tmp_path / "nvidia0").touch()
    unused = _cuda()
    assert unused.lines().startswith("MISS  cuda: there is a GPU, which torch")
    assert verdict([unused]) == "phasegrad is ready; optional parts missing: cuda."


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "ppo", "--env", "CartPol-v1"], "Unknown environment 'CartPol-v1'. Did you mean CartPole-v1"),
        (["train", "ppo"], "--env is missing"),
        (["train", "pp", "--env", "CartPole-v1"], "Unknown algorithm 'pp': did you mean ppo or ppg?"),
        (
            ["train", "ppo", "--env", "CartPole-v1", "--num-env", "3"],
            "Unknown option '--num-env': did you mean --num-envs?",
        ),
        (["train", "ppo", "--env", "CartPole-v1", "--gamma", "2"], "gamma must be from 0 to 1, not 2"),
        (["train", "ppo", "--env", "CartPole-v1", "--gamma", "nan"], "gamma must be a finite number"),
        (["train", "ppo", "--env", "CartPole-v1", "--num-envs", "two"], "num_envs must be a whole number"),
        (["train", "ppo", "--env", "CartPole-v1", "--objective", "clp"], "objective must be one of pg, cpi, clip, kl"),
        (
            ["train", "ppo", "--env", "CartPole-v1", "--preset", "carpole"],
            "Unknown preset 'carpole': did you mean cartpole?",
        ),
        (
            ["train", "ppo", "--env", "CartPole-v1", "--num-minibatches", "9999"],
            "num_minibatches 9999 is more than the 1024 samples",
        ),
        (["train", "ppo", "--env", "CartPole-v1", "--device", "cuda:7"], "device cuda:7 is not available"),
        (["train", "ppo", "--env", "CartPole-v1", "--encoder", "impala"], "encoder impala needs an image observation"),
        (["train", "ppo", "--env", "CartPole-v1", "--seed", "-1"], "seed must be from 0"),
        (["train", "ppo", "--env", "procgen/coinrn"], "Did you mean"),
        (["train", "ppo", "--env", "no_such_module_xyz:Thing-v0"], "no_such_module_xyz"),
        (["train", "ppg", "--env", "CartPole-v1", "--arch", "dula"], "arch must be one of dual, detach, shared"),
        (["eval", "nowhere/at/all"], "does not exist"),
        (["resume", "nowhere/at/all"], "is not a run directory"),
        (["eval", "nowhere", "--episodes", "0"], "episodes must be at least 1"),
        (["envs", "procgn"], "Unknown family 'procgn': did you mean procgen?"),
        (["presets", "atri"], "Unknown preset 'atri': did you mean atari?"),
        (["zigzag"], "Unknown command 'zigzag': `phasegrad --help` lists the commands."),
    ],
)
def test_mistakes_get_one_sentence_and_exit_code_2(
    arguments: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert printed.err.startswith("phasegrad: ")
    assert printed.err.count("\n") == 1
    assert "Traceback" not in printed.err
    assert not list(tmp_path.rglob("config.json"))  # nothing was begun


def test_an_existing_run_is_not_overwritten_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    assert train(tmp_path / "run") == 2
    assert "already holds files" in capsys.readouterr().err
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    assert train(tmp_path / "run", "--resume") == 0
    assert train(tmp_path / "run", "--overwrite", "--seed", "9") == 0
    assert json.loads((tmp_path / "run" / "config.json").read_text())["seed"] == 9
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("precious")
    assert train(tmp_path / "other", "--overwrite") == 2
    assert (tmp_path / "other" / "thesis.txt").read_text() == "precious"


def test_a_run_goes_on_also_where_its_preset_file_is_gone(tmp_path: Path) -> None:
    preset = tmp_path / "mine.json"
    preset.write_text(json.dumps({"gamma": 0.7}))
    assert train(tmp_path / "run", "--preset", str(preset)) == 0
    preset.unlink()
    assert train(tmp_path / "run", "--preset", str(preset), "--resume") == 0


def test_an_environment_that_breaks_leaves_what_was_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = tmp_path / "breaking_env_for_test.py"
    module.write_text(
        "import gymnasium as gym, numpy as np\n"
        "class Breaking(gym.Env):\n"
        "    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)\n"
        "    action_space = gym.spaces.Discrete(2)\n"
        "    steps = total = 0\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        return np.zeros(2, np.float32), {}\n"
        "    def step(self, action):\n"
        "        self.steps += 1\n"
        "        Breaking.total += 1  # over all legs, each of which has environments of its own\n"
        "        if Breaking.total > 80:\n"
        "            raise RuntimeError('the motor burnt out')\n"
        "        return np.zeros(2, np.float32), 0.0, False, self.steps % 10 == 0, {}\n"
        "gym.register('Breaking-v0', entry_point=Breaking)\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        code = train(tmp_path / "run", "--checkpoint-every", "32", env="breaking_env_for_test:Breaking-v0")
    finally:
        sys.path.remove(str(tmp_path))
    assert code == 2
    message = capsys.readouterr().err
    assert "the motor burnt out" in message
    assert "Environment 0" in message or "Environment 1" in message
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) >= 1
    assert list((tmp_path / "run" / "checkpoints").iterdir())


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    from phasegrad import EnvError

    with pytest.raises(EnvError):
        main(["train", "ppo", "--env", "CartPol-v1", "--debug"])


def test_every_verb_helps_with_two_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("train", "resume", "eval", "plot", "envs", "presets", "doctor"):
        with pytest.raises(SystemExit) as leaving:
            main([verb, "--help"])
        assert leaving.value.code == 0
        printed = capsys.readouterr().out
        assert printed.count(f"phasegrad {verb}") >= 3  # usage and two examples
    with pytest.raises(SystemExit):
        main(["train", "ppg", "--help"])
    printed = capsys.readouterr().out
    for option in ("--n-pi", "--beta-clone", "--env.NAME", "[beta_clone]"):
        assert option in printed


def test_a_cut_checkpoint_gets_one_sentence_and_the_one_before_serves(tmp_path: Path) -> None:
    """In a process of its own: pytest takes warnings for itself."""
    train(tmp_path / "run", "--checkpoint-every", "32")
    latest = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1]
    (latest / "state.safetensors").write_bytes(b"cut")
    command = [sys.executable, "-m", "phasegrad", "eval", str(tmp_path / "run"), "--episodes", "2", "--json"]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0
    assert json.loads(finished.stdout)["episodes"] == 2
    assert finished.stderr.startswith("phasegrad: ")
    assert "is damaged: it is not a whole safetensors file. The checkpoint before it is used." in finished.stderr
    assert finished.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("algorithm", "env", "more", "sentence"),
    [
        ("ppg", "CartPole-v1", ["--seed", "3"], "holds a run with algorithm 'ppo', not 'ppg'"),
        ("ppo", "Acrobot-v1", ["--seed", "3"], "holds a run with env 'CartPole-v1', not 'Acrobot-v1'"),
        ("ppo", "CartPole-v1", ["--seed", "4"], "holds a run with seed 3, not 4"),
    ],
)
def test_another_runs_directory_is_not_continued(
    run: Path, capsys: pytest.CaptureFixture[str], algorithm: str, env: str, more: list[str], sentence: str
) -> None:
    assert train(run, "--resume", *more, algorithm=algorithm, env=env) == 2
    assert sentence in capsys.readouterr().err


def test_the_command_that_began_a_run_continues_it(run: Path) -> None:
    began = ["--resume", "--seed", "3", "--eval-episodes", "2"]
    assert train(run, *began) == 0
    assert train(run, *began, "--compile", "auto", "--torch-threads", "1") == 0  # decided by the run; the machine's
