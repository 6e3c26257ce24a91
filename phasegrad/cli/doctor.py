"""What `phasegrad doctor` looks at: each part of the installation, what to do where it is missing, and the verdict."""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

GPUS = ("/proc/driver/nvidia/gpus/*", "/dev/nvidia[0-9]*")  # where Linux has an entry for each of NVIDIA's


@dataclass
class Check:
    """One finding; an optional part that is missing is no failure, and a fact about the machine is neither."""

    name: str
    ok: bool
    found: str
    fix: str
    optional: bool
    fact: bool = False

    def lines(self, width: int | None = None) -> str:
        """For the terminal: how it is, what was found, and below it the way to mend it; broken to `width` columns."""
        state = "info" if self.fact else "ok  " if self.ok else "MISS" if self.optional else "FAIL"
        told = [f"{state}  {self.name}: {self.found}", *([] if self.ok or not self.fix else [f"      -> {self.fix}"])]
        if width is None:
            return "\n".join(told)
        margin = {"break_on_hyphens": False, "break_long_words": False, "subsequent_indent": " " * 6}
        return "\n".join(part for line in told for part in textwrap.wrap(line, width, **margin))  # type: ignore[arg-type]


def examine() -> Iterator[Check]:
    """Every check, in the order of importance, as it is made."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield Check("python", sys.version_info >= (3, 11), version, "install Python 3.11 or newer", False)
    yield _package("torch", "pip install torch", False)
    yield _package("gymnasium", "pip install gymnasium", False)
    yield _try("envpool", _envpool, "pip install envpool (without it gymnasium serves what it can)", True)
    yield _models()
    yield _try("procgen", _procgen, "", True)  # its errors say what to install
    yield _try("box2d", lambda: _make("LunarLander-v3"), 'pip install "phasegrad[box2d]"', True)
    yield _try("mujoco", lambda: _make("HalfCheetah-v5"), 'pip install "phasegrad[mujoco]"', True)
    yield _package("minigrid", 'pip install "phasegrad[minigrid]"', True)
    yield _package("tensorboard", "pip install tensorboard", False)
    yield _try("ffmpeg", _ffmpeg, "pip install imageio-ffmpeg, which brings one, for `phasegrad video`", True)
    yield _try("onnxruntime", _onnxruntime, 'pip install "phasegrad[onnx]", for `phasegrad export`', True)
    yield _package("optuna", 'pip install "phasegrad[tune]", for `phasegrad tune`', True)
    yield _package("ray", 'pip install "phasegrad[cluster]", for `phasegrad study --cluster ray`', True)
    yield _package("wandb", 'pip install "phasegrad[track]", for `--track wandb`', True)
    yield _package("mlflow", 'pip install "phasegrad[track]", for `--track mlflow`', True)
    yield _try("c compiler", _compiler, "install gcc or clang: small networks are compiled where there is one", True)
    yield _try("compile cache", _cache, "programs are compiled again in every run", True)
    yield _cuda()


def verdict(checks: Sequence[Check]) -> str:
    """The whole in one sentence."""
    broken = [check.name for check in checks if not check.ok and not check.optional]
    if broken:
        return f"phasegrad is not ready: {', '.join(broken)} must be fixed; see the lines marked FAIL."
    missing = [check.name for check in checks if not check.ok]
    return f"phasegrad is ready; optional parts missing: {', '.join(missing)}." if missing else "phasegrad is ready."


def _package(name: str, fix: str, optional: bool) -> Check:
    return _try(name, lambda: str(getattr(importlib.import_module(name), "__version__", "installed")), fix, optional)


def _try(name: str, probe: Callable[[], str], fix: str, optional: bool) -> Check:
    try:
        return Check(name, True, probe(), fix, optional)
    except Exception as error:  # whatever is wrong with a part, the others are still examined
        return Check(name, False, (str(error).splitlines() or [type(error).__name__])[0], fix, optional)


def _envpool() -> str:
    from phasegrad.envs import assets

    assets.let_envpool_be_imported()
    return str(importlib.import_module("envpool").__version__)


def _onnxruntime() -> str:
    from phasegrad.export.onnx import require

    return str(require("onnxruntime").__version__)


def _models() -> Check:
    """What `make demo` leaves out of what envpool requires."""
    from phasegrad.envs import assets

    missing = assets.left_out()
    found = "not all installed" if missing else "installed"
    return Check("myosuite, playground", not missing, found, f"pip install {' '.join(missing)}", True)


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


def _cuda() -> Check:
    """No GPU is a fact; one that torch cannot use is a part that is missing."""
    fix = "install a torch built for CUDA, and the driver it needs; until then networks run on the CPU"
    try:
        import torch

        if torch.cuda.is_available():
            return Check("cuda", True, str(torch.cuda.get_device_name()), fix, True)
        torch_version = torch.__version__
    except Exception as error:  # a broken torch has a line of its own
        return Check("cuda", True, f"not known without torch ({type(error).__name__})", "", True, fact=True)
    if has_gpu():
        return Check("cuda", False, f"there is a GPU, which torch {torch_version} cannot use", fix, True)
    return Check("cuda", True, "no GPU here; networks run on the CPU", "", True, fact=True)


def has_gpu() -> bool:
    """Whether the system lists one, whatever torch can do with it."""
    return any(any(Path("/").glob(pattern.removeprefix("/"))) for pattern in GPUS)
