"""The notebooks in examples/: each is executed, and each holds the outputs that a reader sees."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
MOST_BYTES = 300_000  # of a notebook with its outputs
needs_kernel = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("nbclient", "ipykernel")),
    reason="executing notebooks needs nbclient and ipykernel (the extra dev)",
)
# What each must show beside its figure: a card, and the words of its last output.
SHOWS = {
    "first_agent": ("PPO on CartPole-v1, seed 1", "<video ", "it expects a return of"),
    "own_environment": ("Dict of houses: Box 3 x 2, float32", "<video ", "chosen"),
    "ppg_against_ppo": ("Run(PPG on CartPole-v1, seed 3, finished, 16,384 steps", "Run(PPO on", "nan"),
}


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook["cells"] for output in cell.get("outputs", [])]


def texts(notebook: Any) -> str:
    found = []
    for output in outputs(notebook):
        data = {"text": output.get("text", ""), **output.get("data", {})}
        found += ["".join(value) for name, value in data.items() if name.startswith("text")]
    return "\n".join(found)


def require_meaning(name: str, notebook: Any) -> None:
    """No error, one figure, what the notebook is about, and a progress panel that takes one output alone."""
    assert not [output for output in outputs(notebook) if output["output_type"] == "error"]
    assert sum("image/png" in output.get("data", {}) for output in outputs(notebook)) == 1
    for words in SHOWS[name]:
        assert words in texts(notebook), f"{name} does not show {words!r}"
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code" and "progress=True" in "".join(cell["source"]):
            shown = [output for output in cell["outputs"] if output["output_type"] == "display_data"]
            assert len(shown) == 1
            assert "finished" in "".join(shown[0]["data"]["text/plain"])


def test_there_are_three() -> None:
    assert {path.stem for path in NOTEBOOKS} == set(SHOWS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_holds_its_outputs_and_is_small(path: Path) -> None:
    notebook = json.loads(path.read_text())
    require_meaning(path.stem, notebook)
    assert path.stat().st_size < MOST_BYTES
    shown = re.sub(r"base64,[A-Za-z0-9+/=]+", "", texts(notebook))
    for private in ("/tmp/", "/home/", "/root/", str(EXAMPLES.parent)):
        assert private not in shown, f"{path.name} tells of {private}"


@needs_kernel
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(EXAMPLES.parent), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(path, 4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    (tmp_path / "work").mkdir()
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path / "work")}}).execute()
    require_meaning(path.stem, notebook)
