"""Environments that draw, for an agent to be filmed in, and at which speed."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from typing import Any

import gymnasium as gym

from phasegrad import envs
from phasegrad.agent import Agent
from phasegrad.errors import ConfigError, EnvError
from phasegrad.runs.evaluation import evaluation_env, release

GL_ADVICE = (
    "MuJoCo draws with OpenGL: without a display it needs EGL (on Debian the package libegl1) with MUJOCO_GL=egl, or "
    "OSMesa (libosmesa6) with MUJOCO_GL=osmesa"
)


def drawing_env(agent: Agent, episodes: int, *, seed: int | None, levels: str) -> envs.VectorEnv:
    """Evaluation environments that draw. Where envpool cannot draw an id that gymnasium has too, gymnasium's."""
    family = prepare_drawing(agent)
    how: dict[str, Any] = {"seed": seed, "levels": levels, "render": True}
    mujoco: dict[str, Any] = {
        "backend": "gymnasium",
        "extra_options": {"camera_name": "track"},
    }  # or the agent runs out of the picture
    try:
        env = evaluation_env(agent, episodes, **how, **(mujoco if family == "mujoco" else {}))
        try:
            env.reset()
            env.render([0])
        except EnvError:
            release(agent, env)
            if env.backend != "envpool" or agent.config.env not in gym.registry:
                raise
            env = evaluation_env(agent, episodes, **how, backend="gymnasium")
    except EnvError as error:
        if family == "mujoco":
            raise EnvError(f"{str(error).rstrip('.')}; {GL_ADVICE}.") from error
        raise
    if layout(env.observation_space) != layout(agent.observation_space) or env.action_space != agent.action_space:
        release(agent, env)
        raise EnvError(f"The {agent.config.env} that can be drawn has other spaces than the one trained on.")
    return env


def layout(space: gym.Space) -> dict[str, tuple[object, object]]:
    """Shapes and types of an observation by name; bounds, which backends state differently, do not matter."""
    spaces = space.spaces if isinstance(space, gym.spaces.Dict) else {"": space}
    return {name: (part.shape, part.dtype) for name, part in spaces.items()}


def prepare_drawing(agent: Agent) -> str:
    """Let drawing libraries work without a display, before they are imported; the environment's family."""
    family = "other"
    if isinstance(agent.source, str) and not agent.source.startswith("custom:"):
        agent.require_source()  # resolving an id may import its module
        family = envs.resolve(agent.source, agent.config.env_options, render=True).family
    headless = sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    if headless:
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        if _has_egl():  # otherwise mujoco could not even be imported, by environments that are never drawn
            os.environ.setdefault("MUJOCO_GL", "egl")  # glfw, MuJoCo's default, needs a display
    return family


@functools.cache
def _has_egl() -> bool:
    try:
        ctypes.CDLL("libEGL.so.1")
    except OSError:
        return False
    return True


def checked_speed(env: envs.VectorEnv, fps: float | None) -> float:
    speed = env.frames_per_second if fps is None else float(fps)
    if not 0 < speed <= 1000:
        raise ConfigError(f"fps must be above 0 and at most 1000, not {fps}.")
    return speed
