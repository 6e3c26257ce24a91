"""Saved agents on the Hugging Face Hub: hf://USER/NAME, by the optional package huggingface_hub.

A downloaded agent is a stranger's: only the files of a save are fetched, in sizes that were looked at first, and they are
read by the rules for any file. Only those are uploaded, too. Tested against a stand-in of the service, not the service.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from phasegrad.errors import DamagedError, PhasegradError, RunError, visible
from phasegrad.machine.regular_files import open_regular, read_bounded
from phasegrad.runs.files import MOST_JSON_BYTES
from phasegrad.runs.replacing import CARD, STATE, listed
from phasegrad.versions import __version__

PREFIX = "hf://"
NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
ADDRESS = re.compile(rf"hf://(?P<repo>{NAME}/{NAME})(?:@(?P<revision>[A-Za-z0-9][A-Za-z0-9._/-]{{0,200}}))?")
REPOSITORY = re.compile(rf"{NAME}/{NAME}")
MOST_BYTES = 1 << 32  # of one file of an agent
SECONDS = 20  # until the service has answered
INSTALL = 'pip install "phasegrad[hub]"'
T = TypeVar("T")


@dataclass(frozen=True)
class Address:
    repo: str
    revision: str | None

    def __str__(self) -> str:
        return f"{PREFIX}{self.repo}{f'@{self.revision}' if self.revision else ''}"


@dataclass(frozen=True)
class Uploaded:
    url: str
    private: bool
    created: bool


def is_address(path: Any) -> bool:
    return isinstance(path, str) and path.startswith(PREFIX)


def parse_address(text: str) -> Address:
    found = ADDRESS.fullmatch(text)
    if found is None or ".." in text:
        raise RunError(f"{text[:120]!r} is no address on the Hub: write hf://USER/NAME or hf://USER/NAME@REVISION.")
    return Address(found["repo"], found["revision"])


def parse_repository(text: str) -> str:
    text = text.removeprefix(PREFIX)
    if not REPOSITORY.fullmatch(text) or ".." in text or "--" in text:
        raise RunError(f"{text[:120]!r} is no repository on the Hub: write USER/NAME, such as ada/ppo-cartpole.")
    return text


def require_hub(what: str) -> Any:
    """The package, or the sentence that says how to get it."""
    try:
        import huggingface_hub
    except ImportError:
        raise RunError(f"{what} needs the package huggingface_hub: {INSTALL}.") from None
    return huggingface_hub


def fetch(address: Address, folder: Path) -> None:
    """The files of the saved agent at `address`, copied into the empty `folder`; without a network those of the cache."""
    hub = require_hub(str(address))
    try:
        info = asked(address, lambda: _api(hub).model_info(
            address.repo, revision=address.revision, files_metadata=True, timeout=SECONDS
        ))  # fmt: skip
        sizes = {each.rfilename: each.size or 0 for each in info.siblings or []}
        if STATE not in sizes:
            raise RunError(f"{address} is not a saved agent: it has no {STATE}.")
        revision: str | None = info.sha
    except UnreachableError as error:
        sizes, revision = None, address.revision
        if not _is_cached(hub, address, STATE):
            raise RunError(str(error)) from None

    def copy(name: str, most: int, pinned: str | None) -> None:
        if sizes is not None and sizes.get(name, 0) > most:
            raise RunError(f"{address} is refused: its {name} has {sizes[name]:,} bytes.")
        offline = sizes is None
        found = asked(
            address, lambda: hub.hf_hub_download(
                address.repo, name, revision=pinned, local_files_only=offline, endpoint=_endpoint(),
                library_name="phasegrad", library_version=__version__,
            )
        )  # fmt: skip
        real = Path(os.path.realpath(found))  # the cache holds links
        if real.stat().st_size > most:
            raise RunError(f"{address} is refused: its {name} has {real.stat().st_size:,} bytes.")
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(real, folder / name)

    copy(STATE, MOST_JSON_BYTES, address.revision)
    for name in listed(_state(address, folder / STATE)):
        if name not in CARD and (sizes is None or name in sizes):
            copy(name, MOST_BYTES, revision)


def push(files: Mapping[str, Path], repo: str, *, public: bool, message: str) -> Uploaded:
    """Upload these files, by their names in the repository, which is made where there is none."""
    hub = require_hub("phasegrad push")
    address = Address(repo, None)
    if hub.get_token() is None:
        raise RunError(
            "phasegrad push needs a token of the Hugging Face Hub that may write: run `hf auth login`, or set HF_TOKEN."
        )
    api = _api(hub)
    info = asked(address, lambda: _existing(api, repo))
    if info is not None:
        _require_agents_place(address, info)
    created = info is None
    private = not public if info is None else bool(info.private)
    if created:
        asked(address, lambda: api.create_repo(repo, private=private, exist_ok=True))
    operations = [hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=str(path)) for name, path in files.items()]
    asked(address, lambda: api.create_commit(repo, operations, commit_message=message))
    return Uploaded(f"{(_endpoint() or 'https://huggingface.co').rstrip('/')}/{repo}", private, created)


class UnreachableError(Exception):
    """The service does not answer."""


def asked(address: Address, question: Callable[[], T]) -> T:
    """What the service answers; what it refuses is one sentence."""
    from huggingface_hub import errors

    try:
        return question()
    except PhasegradError:
        raise
    except errors.GatedRepoError:
        raise RunError(f"{address} is gated: ask for access on its page, then run `hf auth login`.") from None
    except errors.RepositoryNotFoundError:
        raise RunError(
            f"{address} was not found: it does not exist, or it is private and `hf auth login` (or HF_TOKEN) must say "
            "who you are."
        ) from None
    except errors.RevisionNotFoundError:
        raise RunError(f"{address} was not found: the repository has no revision {address.revision!r}.") from None
    except errors.LocalEntryNotFoundError:
        raise RunError(f"{address} could not be fetched whole: try again with a network.") from None
    except errors.EntryNotFoundError as error:
        raise RunError(f"{address} lacks a file: {_words(error)}.") from None
    except errors.HFValidationError as error:
        raise RunError(f"{address} is no address on the Hub: {_words(error)}.") from None
    except errors.HfHubHTTPError as error:
        code = getattr(error.response, "status_code", None)
        if code in (401, 403):
            raise RunError(
                f"{address}: the Hub refuses this token (HTTP {code}): one that may write is made at "
                "https://huggingface.co/settings/tokens, then `hf auth login`, or HF_TOKEN."
            ) from None
        raise RunError(f"{address}: the Hub answered HTTP {code} ({_words(error)}): try again later.") from None
    except Exception as error:
        if isinstance(error, OSError | ValueError) or type(error).__module__.partition(".")[0].startswith("http"):
            where = _endpoint() or "https://huggingface.co"
            raise UnreachableError(
                f"{address}: {where} does not answer ({_words(error)}): check the network, then try again."
            ) from None
        raise


def _existing(api: Any, repo: str) -> Any:
    """What the Hub knows of a repository; None where there is none."""
    from huggingface_hub import errors

    try:
        return api.model_info(repo, timeout=SECONDS)
    except errors.RepositoryNotFoundError:
        return None


def _require_agents_place(address: Address, info: Any) -> None:
    """Refuse to write into a repository of something else."""
    names = {each.rfilename for each in info.siblings or []}
    if names - {".gitattributes", "README.md"} and STATE not in names:
        raise RunError(f"{address} holds something else than a saved agent: name another repository.")


def _is_cached(hub: Any, address: Address, name: str) -> bool:
    found = hub.try_to_load_from_cache(address.repo, name, revision=address.revision)
    return isinstance(found, str)


def _state(address: Address, file: Path) -> dict[str, Any]:
    try:
        state = json.loads(read_bounded(open_regular(file), MOST_JSON_BYTES))
    except (ValueError, RecursionError):
        raise DamagedError(f"{address} is damaged: its {STATE} is not valid JSON.") from None
    return state if isinstance(state, dict) else {}


def _api(hub: Any) -> Any:
    return hub.HfApi(endpoint=_endpoint(), library_name="phasegrad", library_version=__version__)


def _endpoint() -> str | None:
    """Another service than huggingface.co, by the variable that its own programs know; as it is now."""
    return os.environ.get("HF_ENDPOINT") or None


def _words(error: BaseException) -> str:
    lines = [line.strip() for line in visible(str(error)).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:160].rstrip(".:")
