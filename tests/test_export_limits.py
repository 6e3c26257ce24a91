"""Exports where nothing can be written: one sentence, and nothing of a library's own on the terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import phasegrad as pg

pytest.importorskip("onnxruntime")
pytest.importorskip("resource")

EXPORT = """
import resource, sys, tempfile
%s
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
from phasegrad.cli.main import main
sys.argv = ["phasegrad", "export", sys.argv[1], "--onnx", sys.argv[1] + "/policy.onnx"]
sys.exit(main())
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "run"
    settings = {"num_envs": 2, "num_steps": 8, "hidden_sizes": (8,), "eval_episodes": 0, "compile": "off"}
    pg.PPO("CartPole-v1", run_dir=folder, **settings).learn(32)
    return folder


def exported(run: Path, before: str = "") -> tuple[int, str]:
    """The exit code and all the words of an export by a process that may write no byte to any file, after `before`."""
    command = [sys.executable, "-B", "-c", EXPORT % before, str(run)]
    home = {name: str(run.parent) for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")}
    done = subprocess.run(command, env=os.environ | home, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


def test_a_full_disk_is_named_and_no_library_speaks(run: Path) -> None:
    code, said = exported(run, "tempfile.gettempdir(); import torch._dynamo")
    assert code == 2
    assert "\x1b" not in said
    assert said == f"phasegrad: {run / 'policy.onnx'} cannot be written: File too large.\n"


def test_without_a_temporary_folder_the_sentence_names_it(run: Path) -> None:
    code, said = exported(run)
    assert code == 2
    assert said.startswith("phasegrad: Exporting needs a temporary folder, and none can be written")
    assert said.count("\n") == 1
