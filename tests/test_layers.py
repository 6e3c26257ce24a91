"""The shape of the package: imports go one way, pages stay pages, words have one meaning."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import phasegrad as pg
from phasegrad.compute.plain import PlainSteps

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "phasegrad"


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    """The contract of pyproject.toml over the package in `root`."""
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-c", code, "--no-cache"]
    return subprocess.run(command, cwd=root, env={"PYTHONPATH": str(root)}, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("module", "turned", "broken"),
    [
        ("", "", ""),
        ("losses.py", "from phasegrad.models import ActorCritic", "phasegrad.losses is not allowed to import phasegrad.models"),
        ("data/legs.py", "from phasegrad.compute.acting import Actor", "phasegrad.data is not allowed to import"),
        ("runs/session.py", "from phasegrad.algorithms.ppo import PPO", "phasegrad.runs is not allowed to import"),
        ("algorithms/ppo.py", "from phasegrad.report import write_report", "phasegrad.algorithms is not allowed to import"),
        ("algorithms/ppg.py", "from phasegrad.algorithms.ppo import PPO", "A page of an algorithm knows no other algorithm's BROKEN"),
        ("new_layer.py", "import phasegrad.errors", "new_layer"),
    ],
)  # fmt: skip
def test_imports_go_one_way(tmp_path: Path, module: str, turned: str, broken: str) -> None:
    """As they are, the contract holds; with one import turned round, hidden in a function, it does not."""
    shutil.copytree(PACKAGE, tmp_path / "phasegrad", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    if module:
        with open(tmp_path / "phasegrad" / module, "a") as file:
            file.write(f"\n\ndef turned_round() -> None:\n    {turned}\n")
    result = lint_imports(tmp_path)
    assert (result.returncode == 0) == (not module), result.stdout
    assert broken in result.stdout


def test_the_top_of_the_package_is_short() -> None:
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert modules == {
        "advantages", "agent", "bench", "errors", "losses", "outside", "phases", "schedules",
        "tree", "versions",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("page", "most"),
    [("ppg", 200), ("acer", 200), ("ppo", 120), ("a2c", 120), ("vpg", 120), ("trpo", 140), ("base", 250)],
)
def test_a_page_is_a_page(page: str, most: int) -> None:
    assert len((PACKAGE / "algorithms" / f"{page}.py").read_text().splitlines()) <= most


def test_the_walk_of_an_iteration_is_the_one_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file of the package that runs from the reset of the environments to the first gradient step, no other."""
    fields = {"preset": "none", "num_envs": 4, "num_steps": 8, "num_minibatches": 2, "n_pi": 2, "total_steps": 64}
    agent: Any = pg.PPG("CartPole-v1", compile="off", **fields)
    seen: set[str] = set()
    move = PlainSteps.move

    def last(*arguments: Any) -> Any:
        moved = move(*arguments)
        sys.setprofile(None)
        return moved

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            seen.add(str(path.relative_to(PACKAGE)))

    monkeypatch.setattr(PlainSteps, "move", last)
    sys.setprofile(note)
    try:
        agent.begin_iteration()
        next(agent.iterations())
    finally:
        sys.setprofile(None)
    agent.close()
    page = (ROOT / "docs" / "architecture.md").read_text()
    walk, _, beside = (
        page.partition("## One iteration of PPG")[2].partition("## Recipes")[0].partition("These run on the\nway")
    )
    read = re.findall(r"^\| \d+ \| `([a-z_/]+\.py)`", walk, re.MULTILINE)
    assert len(read) <= 12
    assert set(read) | set(re.findall(r"`([a-z_/]+\.py)`", beside)) == seen


def test_a_class_has_a_name_of_its_own() -> None:
    names = Counter(
        node.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []
