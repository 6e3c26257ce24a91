"""The report's last section: the policy itself, run in the reader's browser by ONNX Runtime Web, without a network.

The runtime is not part of this package: it is read from the npm package onnxruntime-web that the user names, and goes into
the page compressed, so that the page stays one file that opens from a disk. Knows nothing of agents: it is given data.
"""

from __future__ import annotations

import base64
import gzip
import re
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phasegrad.errors import RunError, words_of
from phasegrad.machine.paths import as_path
from phasegrad.machine.regular_files import open_regular, read_bounded

PACKAGE = "node_modules/onnxruntime-web"
GLUE, BINARY = "dist/ort.wasm.bundle.min.mjs", "dist/ort-wasm-simd-threaded.wasm"
MOST_BYTES = 64_000_000  # of a file of the runtime
NEEDED = ("InferenceSession", "Tensor", "env")
FIRST = "phasegrad report RUN --try needs the npm package onnxruntime-web: `npm install onnxruntime-web` here, or --runtime PATH names its folder or .tgz"


@dataclass(frozen=True)
class Runtime:
    """ONNX Runtime Web as a page carries it: a module script, and the WebAssembly compressed as base64."""

    script: str
    binary: str


def read_runtime(given: str | Path | None) -> Runtime:
    """The runtime from the npm package's folder, or from the .tgz that `npm pack` makes."""
    path = as_path(PACKAGE if given is None else given)
    try:
        if path.is_dir():
            glue, binary = (_read(path / name) for name in (GLUE, BINARY))
        else:
            glue, binary = _from_archive(path)
    except FileNotFoundError:
        raise RunError(f"{path} is not there or has no {GLUE}: {FIRST}.") from None
    except (OSError, tarfile.TarError, EOFError, zlib.error) as error:
        said = (
            "it is no sound archive" if isinstance(error, tarfile.TarError) else words_of(error)
        )  # tar tries four kinds
        raise RunError(f"{path} cannot be read as the npm package onnxruntime-web: {said}.") from None
    compressed = gzip.compress(binary, 9, mtime=0)
    return Runtime(_as_script(glue.decode("utf-8", "replace"), path), base64.b64encode(compressed).decode())


def _read(path: Path) -> bytes:
    return read_bounded(open_regular(path), MOST_BYTES)


def _from_archive(path: Path) -> tuple[bytes, bytes]:
    with open(open_regular(path), "rb") as file, tarfile.open(fileobj=file) as archive:
        found = []
        for name in (GLUE, BINARY):
            try:
                member = archive.getmember(f"package/{name}")
            except KeyError:
                raise FileNotFoundError(name) from None
            content = archive.extractfile(member) if member.isfile() and member.size <= MOST_BYTES else None
            if content is None:
                raise OSError(f"{name} in it is no file of at most {MOST_BYTES:,} bytes")
            found.append(content.read())
    return found[0], found[1]


def _as_script(module: str, path: Path) -> str:
    """The module as a script of the page: what it exports goes to one global name, since nothing can import it there."""
    end = re.search(r"export\s*\{([^{}]*)\}\s*;?\s*(//# sourceMappingURL=\S*\s*)?$", module)
    own = {theirs: mine for mine, theirs in re.findall(r"([\w$]+) as ([\w$]+)", end[1])} if end else {}
    if end is None or not own.keys() >= set(NEEDED) or "</script" in module.lower() or "<!--" in module:
        raise RunError(
            f"{path} is not a version of onnxruntime-web that phasegrad knows (1.30.0 was tried): install that one."
        )
    given = ",".join(f"{name}:{own[name]}" for name in NEEDED)
    return f"{module[: end.start()]}globalThis.phasegradRuntime={{{given}}};\n"


def block(data: Mapping[str, Any]) -> str:
    """The section's markup; try.js fills it."""
    return (
        f'<p class="quiet">The policy after {data["step"]:,} steps, run on this page by ONNX Runtime Web: move a number of the '
        "observation and see what the agent does.</p>"
        '<p class="quiet" id="try-status" role="status">It starts when it comes into view.</p><div id="try-policy"></div>'
        "<noscript><p>Trying the policy needs JavaScript.</p></noscript>"
    )
