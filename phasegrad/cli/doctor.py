"""What `phasegrad doctor` looks at: each part of the installation, and what to do where it is missing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Check:
    """One finding; an optional part that is missing is no failure."""

    name: str
    ok: bool
    found: str
    fix: str
    optional: bool


def examine() -> list[Check]:
    """Every check, in the order of importance."""
    version = ".".join(map(str, sys.version_info[:3]))
    checks = [Check("python", sys.version_info >= (3, 11), version, "install Python 3.11 or newer", False)]
    checks += [
        _package("torch", "pip install torch", False),
        _package("gymnasium", "pip install gymnasium", False),
        _package("envpool", "pip install envpool (without it gymnasium serves what it can)", True),
        _try("procgen", _procgen, "", True),  # its errors say what to install
        _try("box2d", lambda: _make("LunarLander-v3"), 'pip install "phasegrad[box2d]"', True),
        _try("mujoco", lambda: _make("HalfCheetah-v5"), 'pip install "phasegrad[mujoco]"', True),
        _package("minigrid", 'pip install "phasegrad[minigrid]"', True),
        _package("tensorboard", "pip install tensorboard", False),
        _try("ffmpeg", _ffmpeg, "pip install imageio-ffmpeg, which brings one, for `phasegrad video`", True),
        _package("onnxruntime", 'pip install "phasegrad[onnx]", for `phasegrad export`', True),
        _package("optuna", 'pip install "phasegrad[tune]", for `phasegrad tune`', True),
        _package("ray", 'pip install "phasegrad[cluster]", for `phasegrad study --cluster ray`', True),
        _try("c compiler", _compiler, "install gcc or clang: small networks are compiled where there is one", True),
        _try("compile cache", _cache, "programs are compiled again in every run", True),
        _try("cuda", _cuda, "no CUDA device: networks run on the CPU", True),
    ]
    return checks


def _package(name: str, fix: str, optional: bool) -> Check:
    return _try(name, lambda: str(getattr(importlib.import_module(name), "__version__", "installed")), fix, optional)


def _try(name: str, probe: Callable[[], str], fix: str, optional: bool) -> Check:
    try:
        return Check(name, True, probe(), fix, optional)
    except Exception as error:  # whatever is wrong with a part, the others are still examined
        return Check(name, False, (str(error).splitlines() or [type(error).__name__])[0], fix, optional)


def _make(env_id: str) -> str:
    from phasegrad import envs

    env = envs.make(env_id, num_envs=1, seeds=[0])
    try:
        env.reset()
        return f"{env_id} on {env.backend}"
    finally:
        env.close()


def _procgen() -> str:
    return _make("procgen/coinrun")


def _ffmpeg() -> str:
    import imageio_ffmpeg

    return f"{imageio_ffmpeg.get_ffmpeg_version()} of imageio-ffmpeg"


def _compiler() -> str:
    from phasegrad.compute.native import compiler

    found = compiler()
    if found is None:
        raise RuntimeError("none that works")
    return found


def _cache() -> str:
    from phasegrad.compute.native.cache import contents

    return contents().describe()


def clear_cache() -> str:
    """Remove all compiled programs; a sentence about them."""
    from phasegrad.compute.native.cache import clear
    from phasegrad.errors import RunError

    try:
        gone = clear()
    except OSError as error:
        raise RunError(f"The compile cache is not touched: {error}.") from error
    return f"removed {gone.files} compiled programs, {gone.bytes / 2**20:.1f} MB, from {gone.folder}"


def _cuda() -> str:
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("not available")
    return str(torch.cuda.get_device_name())
