"""The policy as one C99 file, checked against `predict` before it gets its name, where there is a C compiler."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from phasegrad.compute import native
from phasegrad.errors import RunError
from phasegrad.export.c_layout import Layout
from phasegrad.export.c_parity import Checked, CompiledPolicy, check
from phasegrad.export.c_source import c_source
from phasegrad.export.onnx import provenance
from phasegrad.machine.paths import as_path
from phasegrad.runs.below import named_output, read_named
from phasegrad.runs.files import replace_synced

if TYPE_CHECKING:
    from phasegrad.runs.contract import Trainer

MARK = b"written by phasegrad"  # in the first lines of a file of ours


@dataclass(frozen=True)
class CExport:
    """A written file: how many numbers its function takes and gives, and how it was checked, if it could be."""

    path: Path
    observation_size: int
    mask_size: int
    state_size: int
    action_size: int
    stack_bytes: int
    checked: Checked | None

    @property
    def largest_difference(self) -> float | None:
        return None if self.checked is None else self.checked.difference

    def describe(self) -> str:
        """One sentence for the console."""
        sizes = {"observation": self.observation_size, "mask": self.mask_size, "state": self.state_size}
        taken = ", ".join(f"{name} [{size}]" for name, size in sizes.items() if size)
        what = f"{taken} -> action [{self.action_size}], {self.path.stat().st_size / 1000:,.0f} kB"
        if self.checked is None:
            return f"{what}; not checked, since there is no C compiler here (gcc, clang or cc)"
        real = ""
        if self.checked.real:
            real = f" and {self.checked.real} real observations, {self.checked.episodes} whole episodes"
        return (
            f"{what}; compiled, agrees with predict on {self.checked.random} random{real}, "
            f"largest difference {self.checked.difference:.1e}"
        )


def export_c(agent: Trainer, path: str | Path) -> CExport:
    """Write the agent's policy to `path` as C and check it against `predict`.

    The file has `int phasegrad_act(const float *observation, const unsigned char *mask, float *state, float *action)` and
    a `main` that reads observations as lines of numbers and prints actions. Actions are the most likely ones.
    """
    path = as_path(path)
    if path.is_dir():
        raise RunError(f"{path} is a directory: name a file, such as {path / 'policy.c'}.")
    path = named_output(path)
    try:
        if path.exists() and MARK not in read_named(path, 1000):
            raise RunError(f"{path} exists and is no C file of an exported policy: name another file, or move it away.")
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}.") from None
    layout = Layout(agent.agent)
    source, stack = c_source(layout, provenance(agent))
    checked = _checked(agent, layout, source)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_synced(path, source.encode("ascii"))
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}.") from None
    sizes = layout.observation_size, layout.mask_size, layout.state_size, layout.action_size
    return CExport(path, *sizes, stack, checked)


def _checked(agent: Trainer, layout: Layout, source: str) -> Checked | None:
    compiler = native.compiler()
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory(prefix="phasegrad-export-") as name:  # ours alone
        folder = Path(name)
        (folder / "policy.c").write_text(source, encoding="ascii")
        return check(agent.agent, CompiledPolicy(compiler, folder / "policy.c", folder, layout))
