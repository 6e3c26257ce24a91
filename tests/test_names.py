"""What Python, notebooks and editors show of the package: its names, the constructors' settings, an agent's public names."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import pydoc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import phasegrad as pg
from phasegrad.algorithms import ALGORITHMS
from phasegrad.algorithms.known import ABOUT, settings_of
from phasegrad.algorithms.most_changed import MOST_CHANGED
from phasegrad.algorithms.presenting import PARTS, PUBLIC
from phasegrad.algorithms.signatures import BESIDE, documentation, keywords_of
from phasegrad.config import documented_fields

ROOT = Path(__file__).parents[1]
STUB = ROOT / "phasegrad" / "algorithms" / "builtin.pyi"
BUILTIN = list(ABOUT)
SMALL: dict[str, Any] = {"num_envs": 2, "num_steps": 16, "compile": "off"}


def fresh(code: str) -> str:
    """What a new interpreter prints."""
    command = [sys.executable, "-c", code]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.strip()


def test_dir_lists_the_package_and_imports_nothing() -> None:
    found = fresh("import sys, phasegrad as pg; print(*dir(pg)); print('torch' in sys.modules, 'numpy' in sys.modules)")
    names, imported = found.splitlines()
    assert imported == "False False"
    shown = {name for name in names.split() if not name.startswith("_")}
    assert shown == set(pg.__all__) - {"__version__"}
    assert {"PPO", "PPG", "load", "read_run", "plot", "record_video"} <= shown


def test_every_name_is_there_and_a_star_takes_them_all() -> None:
    for name in pg.__all__:
        assert getattr(pg, name) is not None
    names: dict[str, Any] = {}
    exec("from phasegrad import *", names)
    assert set(pg.__all__) <= set(names)
    with pytest.raises(AttributeError, match="has no attribute 'PPQ'"):
        _ = pg.PPQ


def test_type_checkers_see_every_name() -> None:
    tree = ast.parse((ROOT / "phasegrad" / "__init__.py").read_text())
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(pg.__all__) <= imported


@pytest.mark.parametrize("name", BUILTIN)
def test_a_constructor_shows_its_settings(name: str) -> None:
    parameters = dict(inspect.signature(ALGORITHMS[name]).parameters)
    fields = documented_fields(settings_of(name))
    assert set(parameters) == {*fields, *BESIDE}
    assert next(iter(parameters)) == "env"
    assert {each.kind for each in list(parameters.values())[1:]} == {inspect.Parameter.KEYWORD_ONLY}
    for field, setting in fields.items():
        if field not in ("env", "env_options"):
            assert parameters[field].default == setting.default
    # what is given beside settings is what the constructor itself takes
    taken = inspect.signature(pg.Algorithm.__init__).parameters
    beside = {each for each, one in taken.items() if one.kind is inspect.Parameter.KEYWORD_ONLY}
    assert beside == set(BESIDE)
    for each in BESIDE:
        assert parameters[each].default == taken[each].default


@pytest.mark.parametrize("name", BUILTIN)
def test_help_lists_the_settings_that_people_change(name: str) -> None:
    text = pydoc.plain(pydoc.render_doc(ALGORITHMS[name]))
    fields = documented_fields(settings_of(name))
    for field in set(MOST_CHANGED[name]) - {"env", "env_options"}:
        assert f"{field} = {fields[field].default!r}: " in text
    assert all(field in text for field in fields)  # in the signature


@pytest.mark.parametrize("name", BUILTIN)
def test_what_editors_read_is_what_there_is(name: str) -> None:
    """The stub is written by tools/write_signatures.py; run that where this fails."""
    classes = {node.name: node for node in ast.parse(STUB.read_text()).body if isinstance(node, ast.ClassDef)}
    found = classes[name.upper()]
    config_class, about = settings_of(name), (ALGORITHMS[name].__doc__ or "").splitlines()[0]
    assert (ast.get_docstring(found) or "").split() == documentation(name, about, config_class).split()
    maker = next(node for node in found.body if isinstance(node, ast.FunctionDef))
    assert [argument.arg for argument in maker.args.args] == ["self", "env"]
    written = {
        argument.arg: (ast.unparse(argument.annotation), ast.literal_eval(default))
        for argument, default in zip(maker.args.kwonlyargs, maker.args.kw_defaults, strict=True)
        if argument.annotation is not None and default is not None
    }
    assert written == keywords_of(config_class)
    assert list(written) == list(keywords_of(config_class))


def test_an_algorithm_of_ones_own_shows_its_own() -> None:
    class Slower(pg.PPO):
        """PPO that takes its time."""

        name = "slower"

    class Other(pg.PPO):
        def __init__(self, patience: int = 3) -> None:
            super().__init__("CartPole-v1", **SMALL)
            self.patience = patience

    assert inspect.signature(Slower) == inspect.signature(pg.PPO)
    assert (Slower.__doc__ or "").startswith("PPO that takes its time.\n")
    assert "learning_rate = 0.0003" in (Slower.__doc__ or "")
    assert list(inspect.signature(Other).parameters) == ["patience"]
    assert "patience" in dir(Other())


def test_a_setting_of_a_wrong_name_is_told_in_a_sentence() -> None:
    with pytest.raises(pg.ConfigError, match=r"^Unknown setting 'lerning_rate' for ppo\. Did you mean learning_rate"):
        pg.PPO("CartPole-v1", lerning_rate=1e-3)


@pytest.mark.skipif(importlib.util.find_spec("jedi") is None, reason="jedi is not installed (it comes with ipykernel)")
def test_an_editor_completes_settings_from_the_source_alone() -> None:
    code = (
        "import jedi\n"
        "script = jedi.Script('import phasegrad as pg\\npg.PPG(\"CartPole-v1\", aux_le')\n"
        "print(*[each.name for each in script.complete()])\n"
        "script = jedi.Script('import phasegrad as pg\\npg.PPG(\"CartPole-v1\", ')\n"
        "print(*[parameter.name for parameter in script.get_signatures()[0].params])\n"
    )
    completed, parameters = fresh(code).splitlines()
    assert "aux_learning_rate=" in completed.split()
    assert {"n_pi", "learning_rate", "run_dir"} <= set(parameters.split())


@pytest.mark.parametrize("name", BUILTIN)
def test_internals_do_not_stand_among_an_agents_names(name: str) -> None:
    agent: Any = ALGORITHMS[name]("CartPole-v1", **SMALL)
    shown = {each for each in dir(agent) if not each.startswith("_")}
    assert shown == PUBLIC
    assert all(hasattr(agent, each) for each in PUBLIC - {"history"})
    assert "__class__" in dir(agent)
    agent.mark = 1  # what a user has put there
    assert "mark" in dir(agent)
    page = (ROOT / "docs" / "notebooks.md").read_text()
    assert not [each for each in PUBLIC if f"`{each}" not in page and f"agent.{each}" not in page]


def test_no_part_is_named_that_there_is_not() -> None:
    found = {each for name in BUILTIN for each in vars(ALGORITHMS[name]("CartPole-v1", **SMALL))}
    assert found >= PARTS
