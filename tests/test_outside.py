"""An algorithm that was registered from outside: every verb and every page takes it as one of the library's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from phasegrad.algorithms import ALGORITHMS
from phasegrad.algorithms.ppo import PPO, PPOConfig
from phasegrad.cli.main import main
from phasegrad.cli.verbs import BUILTIN, algorithm_names
from phasegrad.errors import ConfigError
from phasegrad.outside import VARIABLE, register_entries, registered_outside, require_importable
from phasegrad.presets import resolve_config
from phasegrad.tune.search_spaces import COMMON, SPACES, search_space

MODULE = '''
from dataclasses import dataclass
from phasegrad.algorithms import register
from phasegrad.algorithms.ppo import PPO, PPOConfig
from phasegrad.config import setting

@dataclass(kw_only=True)
class MineConfig(PPOConfig):
    mine: int = setting(3, "a setting of its own", low=1)

class Mine(PPO):
    """PPO under another name, with a section of time and a metric of its own."""

    name = "mine"
    config_class = MineConfig

    def iterations(self):
        for metrics in super().iterations():
            with self.clock.section("thinking"):
                pass
            yield metrics | {"mine": 1.0}

register(Mine)
'''
STUDY = """
algorithm = "mine"
environments = ["CartPole-v1"]
seeds = [1]
steps = 256
fields = { num_envs = 2, num_steps = 64, hidden_sizes = [8], mine = 2 }
"""


class Derived(PPO):
    name = "derived"


def test_the_names_that_help_lists_without_an_import_are_those_of_the_library() -> None:
    built_in = [name for name, algorithm in ALGORITHMS.items() if algorithm.__module__.startswith("phasegrad.")]
    assert list(BUILTIN) == built_in


def test_names_and_entries_come_from_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "derived", Derived)
    assert algorithm_names() == (*BUILTIN, "derived")
    entry = f"derived={__name__}:Derived"
    assert registered_outside() == [entry]
    monkeypatch.delitem(ALGORITHMS, "derived")
    register_entries([entry])
    assert ALGORITHMS.pop("derived") is Derived
    with pytest.raises(ConfigError, match="no_such_module:Kind cannot be imported"):
        register_entries(["other=no_such_module:Kind"])


def test_an_algorithm_of_the_main_script_is_refused_where_others_must_import_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require_importable("derived", Derived)
    monkeypatch.setattr(Derived, "__module__", "__main__")
    monkeypatch.setitem(ALGORITHMS, "derived", Derived)
    assert registered_outside() == []
    with pytest.raises(ConfigError, match="derived is defined in the main script"):
        require_importable("derived", Derived)


def test_it_takes_the_presets_of_what_it_was_derived_from() -> None:
    class MineConfig(PPOConfig):
        pass

    mine, ppo = (resolve_config(kind, {"env": "CartPole-v1"}) for kind in (MineConfig, PPOConfig))
    assert mine.to_json() == ppo.to_json()


def test_it_is_searched_over_what_it_has_of_the_common_settings() -> None:
    assert search_space("derived", Derived) == COMMON
    assert search_space("derived", ALGORITHMS["a2c"]).keys() < COMMON.keys()
    assert search_space("ppg", ALGORITHMS["ppg"]) is SPACES["ppg"]


@pytest.fixture
def outside(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that knows the algorithm, which no other does."""
    (tmp_path / "my_algorithm.py").write_text(MODULE)
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[1])])
    return {**os.environ, "PYTHONPATH": path, VARIABLE: "mine=my_algorithm:Mine"}


def test_a_study_trains_it_and_the_pages_show_it(
    tmp_path: Path, outside: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.toml").write_text(STUDY)
    # The study's own process imports the module; its runs are told of it.
    script = "import sys, my_algorithm; from phasegrad.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = ["study", "mine.toml", "--dir", "folder", "--jobs", "1"]
    told = {name: value for name, value in outside.items() if name != VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", script, *command], cwd=tmp_path, env=told, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "folder" / "report.html").read_text()
    assert "MINE on CartPole-v1" in page
    assert "thinking" in page
    run = tmp_path / "folder" / "runs" / "CartPole-v1" / "mine" / "s1"
    capsys.readouterr()
    assert main(["watch", str(run), "--once"]) == 0
    shown = capsys.readouterr().out
    assert "MINE on CartPole-v1, seed 1" in shown
    assert "thinking 0%" in shown


def test_the_command_line_takes_it(outside: dict[str, str]) -> None:
    command = [sys.executable, "-m", "phasegrad", "train", "mine", "--help"]
    shown = subprocess.run(command, env=outside, capture_output=True, text=True, timeout=120)
    assert "a setting of its own (default: 3)" in shown.stdout, shown.stderr
