"""What drawing libraries are told before they are imported."""

from __future__ import annotations

import os
import sys

import pytest

import phasegrad as pg
from phasegrad.video import drawing


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="displays are found otherwise elsewhere")
@pytest.mark.parametrize("there", [True, False])
def test_mujoco_draws_with_egl_only_where_there_is_one(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
        monkeypatch.setenv(name, "")  # so that it is as it was afterwards
        monkeypatch.delenv(name)
    monkeypatch.setattr(drawing, "_has_egl", lambda: there)
    agent = pg.PPO("CartPole-v1", num_envs=2, num_steps=8, eval_episodes=0)
    drawing.prepare_drawing(agent.agent)
    assert os.environ.get("MUJOCO_GL") == ("egl" if there else None)
    agent.close()
