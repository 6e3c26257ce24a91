"""Help that serves: what is changed most first, all settings in groups, the defaults of the environment at hand, at once."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import phasegrad as pg
from phasegrad.algorithms import ALGORITHMS
from phasegrad.algorithms.known import ABOUT, settings_of
from phasegrad.algorithms.settings import OBJECTIVES
from phasegrad.cli.completion import collect
from phasegrad.cli.fields import Defaults
from phasegrad.cli.formatting import KEPT
from phasegrad.cli.groups import GROUPED, GROUPS, MOST_CHANGED, TRAIN_EXAMPLES, in_groups
from phasegrad.cli.main import main
from phasegrad.cli.parsing import parse
from phasegrad.cli.verbs import EXAMPLES
from phasegrad.config import documented_fields, setting
from phasegrad.losses import OBJECTIVES as LOSSES_OBJECTIVES
from phasegrad.presets import resolve_config
from phasegrad.runs.directory import RunDirectory

BUILTIN = tuple(ABOUT)


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def helped(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as leaving:
        main(list(arguments))
    assert leaving.value.code == 0
    return capsys.readouterr().out


def option_of(name: str) -> str:
    return "--env.NAME" if name == "env_options" else f"--{name.replace('_', '-')}"


def shown_options(text: str) -> list[str]:
    """The options that have an entry, each as often as it has one."""
    return re.findall(r"^  (--[\w.-]+)", text, re.MULTILINE)


@pytest.mark.parametrize("algorithm", BUILTIN)
def test_every_setting_is_in_exactly_one_group(algorithm: str) -> None:
    names = list(documented_fields(settings_of(algorithm)))
    ungrouped = [name for name in names if name not in GROUPED]
    assert not ungrouped, f"{ungrouped} of {algorithm} belong to a group of phasegrad/cli/groups.py"
    twice = [name for name in names if sum(name in members for members in GROUPS.values()) > 1]
    assert not twice, f"{twice} are in two groups of phasegrad/cli/groups.py"
    assert sorted(name for members in in_groups(algorithm, names).values() for name in members) == sorted(names)


@pytest.mark.parametrize("algorithm", BUILTIN)
def test_help_shows_what_is_changed_most_and_where_the_rest_is(
    algorithm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = helped(capsys, "train", algorithm, "--help")
    first, second = text.splitlines()[:2]
    assert first.startswith(f"usage: phasegrad train {algorithm} --env ID")
    assert second == ""  # a usage of one line
    names = list(documented_fields(settings_of(algorithm)))
    settings = [option for option in shown_options(text) if option in map(option_of, names)]
    assert settings == [option_of(name) for name in MOST_CHANGED[algorithm]]
    assert 14 <= len(settings) <= 20
    left = len(names) - len(settings)
    groups = ", ".join(in_groups(algorithm, names))
    assert f"--help-all shows the other {left} settings too, in groups: {groups}." in " ".join(text.split())
    assert f"phasegrad train {algorithm} --env" in text.partition("examples:")[2]
    assert not [other for other in BUILTIN if other != algorithm and f"phasegrad train {other} " in text]


@pytest.mark.parametrize("algorithm", BUILTIN)
def test_help_all_shows_every_setting_once_under_its_group(algorithm: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = helped(capsys, "train", algorithm, "--help-all")
    names = list(documented_fields(settings_of(algorithm)))
    shown = shown_options(text)
    assert [shown.count(option_of(name)) for name in names] == [1] * len(names)
    for group, members in in_groups(algorithm, names).items():
        section = text.partition(f"\n{group}:\n")[2].partition("\n\n")[0]
        assert shown_options(section) == [option_of(name) for name in members]


def test_types_choices_and_both_forms_of_a_switch_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    text = helped(capsys, "train", "ppo", "--help-all")
    for wanted in (
        "--learning-rate FLOAT|SCHEDULE\n",
        "--num-envs INT ",
        "--objective {pg,cpi,clip,kl}\n",
        "--hidden-sizes INT,INT ",
        "--impala-channels INT,INT,INT\n",
        "--policy-gae-lambda FLOAT\n",
        "--env ID ",
        "--preset NAME ",
        "--normalize-reward, --no-normalize-reward\n",
    ):
        assert f"\n  {wanted}" in text
    assert "VALUE" not in text.replace("--env.NAME VALUE", "")


def default_of(text: str, name: str) -> str:
    """What help says a setting is by default: 'default: 0.99' or 'preset: 0.98'."""
    entry = re.split(rf"\n  {re.escape(option_of(name))}[ ,]", text)[1]
    found = re.search(r"\(((?:default|preset): [^)]*)\)", entry)
    assert found
    return found[1]


def test_defaults_are_those_of_the_environments_preset(capsys: pytest.CaptureFixture[str]) -> None:
    plain = helped(capsys, "train", "ppo", "--help")
    assert default_of(plain, "learning_rate") == "default: 0.0003"
    assert default_of(plain, "normalize_reward") == "default: off"
    assert default_of(plain, "total_steps") == "default: 1_000_000"
    assert "With --env ID or --preset NAME this page shows the preset's." in " ".join(plain.split())
    cartpole = helped(capsys, "train", "ppo", "--env", "CartPole-v1", "--help")
    assert default_of(cartpole, "learning_rate") == "preset: 0.001"
    assert default_of(cartpole, "clip_range") == "default: 0.2"
    assert "the preset cartpole, which fits CartPole-v1" in " ".join(cartpole.split())
    cheetah = helped(capsys, "train", "ppo", "--env=HalfCheetah-v5", "--help")
    assert default_of(cheetah, "normalize_reward") == "preset: on"
    assert "the preset mujoco, which fits HalfCheetah-v5" in " ".join(cheetah.split())
    named = helped(capsys, "train", "ppg", "--preset", "procgen-paper", "--help-all")
    assert default_of(named, "total_steps") == "preset: 100_000_000"
    assert default_of(named, "env_options") == "preset: distribution hard"
    assert default_of(named, "e_aux") == "preset: 6"


def test_none_is_auto_where_the_setting_says_so() -> None:
    for auto, told in ((True, "auto"), (False, "none")):
        field = dataclasses.field(default=None, metadata={"help": "how many", "auto": auto})
        assert Defaults({"many": None}).describe("many", field).replace(KEPT, " ") == f" (default: {told})"


def test_a_preset_file_or_none_serve_help_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.json").write_text(json.dumps({"gamma": 0.7}))
    text = helped(capsys, "train", "a2c", "--preset", str(tmp_path / "mine.json"), "--help")
    assert default_of(text, "gamma") == "preset: 0.7"
    none = helped(capsys, "train", "ppo", "--env", "CartPole-v1", "--preset", "none", "--help")
    assert default_of(none, "learning_rate") == "default: 0.0003"
    assert "(--preset none)" in none
    assert main(["train", "ppo", "--preset", "carpole", "--help"]) == 2
    assert "Unknown preset 'carpole': did you mean cartpole?" in capsys.readouterr().err


@pytest.mark.parametrize("algorithm", BUILTIN)
def test_the_examples_of_an_algorithm_are_its_own_and_valid(algorithm: str) -> None:
    assert len(TRAIN_EXAMPLES[algorithm]) >= 2
    for example in TRAIN_EXAMPLES[algorithm]:
        options = parse(shlex.split(example)[1:])
        assert options.algorithm == algorithm
        fields = documented_fields(settings_of(algorithm))
        given = {name: value for name, value in vars(options).items() if name in fields}
        config = resolve_config(settings_of(algorithm), given | {"env_options": options.env_options})
        assert config.total_steps % config.num_envs == 0, example


def test_train_alone_lists_the_algorithms(capsys: pytest.CaptureFixture[str]) -> None:
    text = helped(capsys, "train", "--help")
    for name in BUILTIN:
        assert f"  {name:10}{ABOUT[name]}" in text
    assert main(["train"]) == 2
    assert "ALGORITHM is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [[], *([verb] for verb in EXAMPLES), *(["train", name, "--help-all"] for name in BUILTIN)]
)
def test_every_page_of_help_fits_80_columns_and_begins_with_one_line_of_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = helped(capsys, *arguments, "--help").splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert lines[0].startswith("usage: phasegrad")
    assert lines[1] == ""


@dataclass(kw_only=True)
class TwistedConfig(settings_of("ppo")):  # type: ignore[misc]
    """Settings of an algorithm from outside."""

    twist: float = setting(0.5, "how far it is twisted", low=0)


class Twisted(pg.PPO):
    """PPO with a twist."""

    name = "twisted"
    config_class = TwistedConfig


@pytest.fixture
def twisted() -> Iterator[None]:
    pg.register(Twisted)
    yield
    del ALGORITHMS["twisted"]


@pytest.mark.usefixtures("twisted")
def test_an_algorithm_from_outside_has_a_group_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    text = helped(capsys, "train", "twisted", "--help-all")
    section = text.partition("\ntwisted:\n")[2].partition("\n\n")[0]
    assert section.split() == ["--twist", "FLOAT", "how", "far", "it", "is", "twisted", "(default:", "0.5)"]
    assert "--twist FLOAT" in helped(capsys, "train", "twisted", "--help")
    assert "  twisted   PPO with a twist" in helped(capsys, "train", "--help")


def test_settings_are_known_before_the_algorithms_are_imported() -> None:
    """The classes that help reads are those that train."""
    assert set(BUILTIN) <= set(ALGORITHMS)
    for name in BUILTIN:
        module = sys.modules[f"phasegrad.algorithms.{name}_settings"]
        assert vars(module)[f"{name.upper()}Config"] is ALGORITHMS[name].config_class is settings_of(name)
    assert OBJECTIVES == LOSSES_OBJECTIVES


CHEAP = [
    (["train", "ppo", "--enf", "X"], "Unknown option '--enf': did you mean --env?"),
    (["train", "ppo"], "--env is missing"),
    (["train", "pgo", "--env", "CartPole-v1"], "Unknown algorithm 'pgo': did you mean ppo, ppg or vpg?"),
    (["train", "ppo", "--env", "CartPole-v1", "--gamma", "x"], "gamma must be a finite number, not 'x'"),
    (["train", "ppo", "--env", "CartPole-v1", "--gamma"], "--gamma needs a value"),
    (
        ["train", "ppo", "--env", "CartPole-v1", "--objective", "clp"],
        "objective must be one of pg, cpi, clip, kl, not 'clp'",
    ),
    (
        ["train", "ppo", "--env", "CartPole-v1", "--preset", "carpole"],
        "Unknown preset 'carpole': did you mean cartpole?",
    ),
    (["train", "ppo", "--env", "CartPole-v1", "--num-minibatches", "9999"], "num_minibatches 9999 is more than"),
    (["train", "ppo", "--env", "CartPole-v1", "--run-dir", "taken"], "Run directory taken already holds files"),
    (["train", "ppo", "--env", "CartPol-v1"], "Unknown environment 'CartPol-v1'. Did you mean CartPole-v1"),
    (["trian"], "Unknown command 'trian': did you mean train?"),
    (["zigzag"], "Unknown command 'zigzag': `phasegrad --help` lists the commands."),
    (["tune", "pgp", "--env", "CartPole-v1"], "a search space for ppo and ppg, not 'pgp'"),
    (["tune", "trpo", "--env", "CartPole-v1"], "a search space for ppo and ppg, not 'trpo'."),
    (["tune", "ppo"], "--env is missing"),
    (["tune", "ppo", "--env", "CartPole-v1", "--total-steps", "x"], "total_steps must be a whole number"),
    (["study", "--step", "3"], "Unknown option '--step': did you mean --set or --total-steps?"),
    (["study", "contrl"], "Unknown study 'contrl'. Did you mean control?"),
    (["study", "control", "--total-steps", "x"], "--total-steps must be a whole number"),
    (["eval", "nowhere"], "nowhere does not exist: DIR is a run directory or a saved agent."),
    (["eval", "nowhere", "--episodes", "0"], "episodes must be at least 1"),
    (["resume", "nowhere"], "nowhere is not a run directory"),
    (["plot", "nowhere"], "nowhere is not a run directory"),
    (["report", "nowhere"], "nowhere is not a directory"),
    (["bench", "cartpole-5"], "Unknown task 'cartpole-5': did you mean cartpole-4 or cartpole-8?"),
    (["presets", "atri"], "Unknown preset 'atri': did you mean atari?"),
    (["train", "ppo", "--help"], ""),
    (["train", "ppg", "--env", "CartPole-v1", "--help-all"], ""),
]


def test_cheap_mistakes_and_help_are_answered_without_torch(tmp_path: Path) -> None:
    """All in one process that has imported nothing else."""
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "config.json").write_text("{}")
    program = (
        "import sys\n"
        "from phasegrad.cli.main import main\n"
        f"for arguments, sentence in {CHEAP!r}:\n"
        "    sys.stderr.write(' '.join(arguments) + '\\n')\n"
        "    try:\n"
        "        assert main(arguments) == 2 and sentence\n"
        "    except SystemExit as leaving:\n"
        "        assert not leaving.code and not sentence\n"
        "    assert 'torch' not in sys.modules, arguments\n"
    )
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said = done.stderr.splitlines()
    for arguments, sentence in CHEAP:
        assert said.pop(0) == " ".join(arguments)
        if sentence:
            answer = said.pop(0)
            assert answer.startswith("phasegrad: ")
            assert sentence in answer


def test_a_directory_that_is_taken_is_told_in_the_same_words_early_and_late(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(pg.RunError) as late:
        RunDirectory(tmp_path).require_free(overwrite=False)
    assert main(["train", "ppo", "--env", "CartPole-v1", "--run-dir", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"phasegrad: {late.value}\n"


def test_the_algorithm_may_stand_after_options(capsys: pytest.CaptureFixture[str]) -> None:
    options = parse(["train", "--env", "CartPole-v1", "ppg", "--n-pi", "4"])
    assert (options.algorithm, options.env, options.n_pi) == ("ppg", "CartPole-v1", "4")
    assert parse(["train", "--run-dir", "ppo", "ppg", "--n-pi", "4"]).algorithm == "ppg"
    assert main(["train", "ppo", "ppg", "--env", "CartPole-v1"]) == 2
    assert "'ppg' is unexpected" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "before"),
    [
        ("tune ppg --env E --total-steps 5e4", "tune --env E --algorithm ppg --steps 5e4"),
        ("tune --env E --total-steps 5e4", "tune ppo --env E --steps 5e4"),
        ("study control --total-steps 3e5", "study control --steps 3e5"),
    ],
)
def test_the_same_words_everywhere_and_the_former_ones_still_serve(words: str, before: str) -> None:
    now, then = (vars(parse(command.split())) for command in (words, before))
    assert {"algorithm": now.get("algorithm"), "steps": now["steps"]} == {
        "algorithm": then.get("algorithm"),
        "steps": then["steps"],
    }


def test_the_former_words_are_not_documented(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("tune", "study"):
        text = helped(capsys, verb, "--help")
        assert "--total-steps N" in text
        assert " --steps" not in text
        assert "--algorithm" not in text
    assert main(["tune", "ppg", "--algorithm", "ppo", "--env", "CartPole-v1"]) == 2
    assert "tune takes one algorithm, not both ppg and ppo" in capsys.readouterr().err


def test_completion_knows_the_words_that_help_shows() -> None:
    words = collect()
    assert words["tune"].names == ("ppo", "ppg")
    assert {"--total-steps", "--trials"} <= set(words["tune"].options)
    assert not {"--steps", "--algorithm"} & set(words["tune"].options)
    assert "--total-steps" in words["study"].options
    assert "--steps" not in words["study"].options
    assert words["train ppg"].options["--help-all"] is None
    assert "--no-normalize-reward" in words["train ppg"].options
    assert words["train ppg"].helps["--gae-lambda"] == "lambda of generalised advantage estimation"
    assert "cartpole-4" in words["bench"].names
