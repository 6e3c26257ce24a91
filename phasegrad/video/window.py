"""An agent shown in a window as it plays, where there is a display and its environment draws to one. No film is made."""

from __future__ import annotations

import os
import sys
from typing import Any

import gymnasium as gym

from phasegrad import envs
from phasegrad.agent import Agent
from phasegrad.errors import EnvError, words_of
from phasegrad.runs.evaluation import Evaluation, elsewhere, run_evaluation

HUMAN = "human"


class NoWindowError(Exception):
    """Nothing can be shown here; says why."""


def has_display() -> bool:
    """Whether windows can be opened: on Linux where one of its two systems of windows says so."""
    if not sys.platform.startswith("linux"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def show(
    agent: Agent, *, episodes: int, seed: int | None, deterministic: bool = True, max_steps: int | None = None
) -> Evaluation:
    """Play episodes in a window, one after another, at the environment's own speed; `NoWindowError` where there is none."""
    if not has_display():
        raise NoWindowError("there is no display")
    env = _window(agent)
    played = elsewhere(agent, env, agent.config.env_options)
    try:
        return run_evaluation(
            played, episodes, deterministic=deterministic, seed=seed, levels="train", max_steps=max_steps
        )
    finally:
        env.close()


def _window(agent: Agent) -> gym.Env:
    """One environment of the agent's kind that draws to a window, which is open when this returns."""
    agent.require_source()  # what a file may not ask for
    source, options = agent.source, dict(agent.config.env_options)
    if not isinstance(source, str):
        raise NoWindowError("its environment was given in Python")
    spec = envs.resolve(source, options, backend="auto", evaluation=True, render=True)
    if spec.id not in gym.registry:
        raise NoWindowError(f"{source} draws to no window")
    try:
        env = gym.make(spec.id, disable_env_checker=True, render_mode=HUMAN, **options)
    except Exception as error:
        raise NoWindowError(f"{source} opens no window ({_told(error)})") from None
    try:
        if HUMAN not in (env.metadata.get("render_modes") or ()):
            raise NoWindowError(f"{source} draws to no window")
        env.reset(seed=0)
        env.render()
    except NoWindowError:
        env.close()
        raise
    except Exception as error:
        _close(env)
        raise NoWindowError(f"{source} opens no window ({_told(error)})") from None
    return env


def _close(env: Any) -> None:
    """What could not be opened may not be closed either."""
    try:
        env.close()
    except Exception:
        return


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {words_of(error)}"[:160] if not isinstance(error, EnvError) else words_of(error)
