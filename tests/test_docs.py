"""Every command and snippet in the README runs, made short; every file that a page points to exists."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from machine import needs_procgen

from phasegrad.algorithms import ALGORITHMS
from phasegrad.cli.main import main

ROOT = Path(__file__).parents[1]
GENERATED = ("settings.md", "api.md")  # made when the site is built
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "results").glob("*.md"))]


def blocks(language: str, page: Path = ROOT / "README.md") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def shortened(text: str) -> str:
    """The same with fewer steps and episodes."""
    text = re.sub(
        r"--total-steps (\S+)", lambda found: f"--total-steps {12_288 if found[1] == '800_000' else 8_192}", text
    )
    text = re.sub(r"learn\(([\d_]+)", lambda found: f"learn({min(4_096, int(found[1]))}", text)
    text = re.sub(r"--trials \d+ --total-steps [\d_]+", "--trials 1 --total-steps 512", text)
    return re.sub(r"(episodes[= ])20", r"\g<1>2", text)


def makes_procgen(text: str) -> bool:
    return "procgen/" in text


def test_every_command_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands = [line for block in blocks("bash") for line in block.splitlines()]
    assert len(commands) >= 4
    for command in commands:
        run_command(command)


def run_command(command: str) -> None:
    """A line of a page, made short; torchrun's in processes of its own."""
    arguments = shlex.split(shortened(command), comments=True)
    if arguments[0] == "torchrun":
        finished = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", *arguments[1:], "--quiet"], timeout=300
        )
        assert finished.returncode == 0, command
        return
    assert arguments.pop(0) == "phasegrad", command
    quiet = arguments[0] in ("train", "tune", "resume", "clone")
    assert main([*arguments, "--quiet"] if quiet else arguments) == 0, command


def test_the_snippet_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (snippet,) = blocks("python")
    assert len([line for line in snippet.splitlines() if line]) == 5  # as its heading says
    exec(compile(shortened(snippet), "README snippet", "exec"), {"__name__": "readme"})


@pytest.mark.parametrize("procgen", [False, pytest.param(True, marks=needs_procgen)], ids=["others", "procgen"])
def test_the_commands_of_the_features_run(procgen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands = [command for command in commands_of("features.md") if makes_procgen(command) == procgen]
    assert len(commands) >= (1 if procgen else 14)
    for command in commands:
        run_command(command)


def test_the_commands_of_the_answers_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands = commands_of("answers.md")
    assert len(commands) >= 3
    for command in commands:
        if makes_procgen(command):  # takes long, and is run above
            assert command in commands_of("features.md")
        else:
            run_command(command)


def commands_of(name: str) -> list[str]:
    return [line for block in blocks("bash", ROOT / "docs" / name) for line in block.splitlines()]


def pages_with_snippets() -> list[Any]:
    found = {page: "".join(blocks("python", page)) for page in PAGES[1:]}
    return [
        pytest.param(page, marks=needs_procgen if makes_procgen(text) else (), id=page.name)
        for page, text in found.items()
        if text
    ]


@pytest.mark.parametrize("page", pages_with_snippets())
def test_the_snippets_of_a_page_run_one_after_another(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    known = dict(ALGORITHMS)
    try:
        for index, snippet in enumerate(blocks("python", page)):
            exec(compile(shortened(snippet), f"{page.name} snippet {index}", "exec"), names)
    finally:
        for registered in ALGORITHMS.keys() - known:
            del ALGORITHMS[registered]


# The runs that pages take for granted, which are made small before the commands of a page that names them.
TAKEN_FOR_GRANTED = {
    "runs/lander": "LunarLander-v3", "runs/cartpole": "CartPole-v1", "runs/seed1": "CartPole-v1", "runs/seed2": "CartPole-v1",
    "runs/seed3": "CartPole-v1", "studies/control": "CartPole-v1",
}  # fmt: skip
# Commands that need an account, hours or the Procgen wheel: other tests run their like.
NOT_RUN = {"callbacks.md", "procgen.md"}
APART = {"answers.md", "features.md"}  # in tests of their own, above
WITH_COMMANDS = [page.name for page in sorted((ROOT / "docs").glob("*.md")) if blocks("bash", page)]


@pytest.mark.parametrize("name", [name for name in WITH_COMMANDS if name not in NOT_RUN | APART])
def test_the_commands_of_a_page_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "examples")  # for environments that they register
    monkeypatch.syspath_prepend(tmp_path)
    page = ROOT / "docs" / name
    for snippet in blocks("python", page):
        if found := re.match(r"# (\w+\.py)\n", snippet):  # a file that the reader is told to write
            (tmp_path / found[1]).write_text(snippet)
    commands = commands_of(name)
    small = ["--num-envs", "2", "--num-steps", "16", "--num-minibatches", "2", "--total-steps", "512"]
    small += ["--checkpoint-every", "256", "--quiet"]  # two of them, to be shown side by side
    for run, env in TAKEN_FOR_GRANTED.items():
        if any(run in command for command in commands) and not any(f"--run-dir {run}" in line for line in commands):
            assert main(["train", "ppo", "--env", env, "--run-dir", run, *small]) == 0
    if any("agents/" in command for command in commands):  # those that ship
        (tmp_path / "agents").symlink_to(ROOT / "agents")
    assert commands
    for command in commands:
        run_command(command)


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_every_example_runs(example: Path, tmp_path: Path) -> None:
    source = re.sub(r"learn\([\d_]+", "learn(2_048", example.read_text())
    command = [sys.executable, "-c", source]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr
    assert "return_mean" in finished.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)  # brackets of formulas are no links
    links = re.findall(r"\]\(([^)#]+?)\)|(?:src|srcset)=\"([^\"]+)\"", text)
    links = [markdown or html for markdown, html in links]
    for link in links:
        if "://" not in link and link not in GENERATED:
            assert (page.parent / link).exists(), f"{page.name} points to {link}"


def test_the_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
