"""What the system refused, as a sentence: which file, why, and what to do. Knows nothing of runs."""

from __future__ import annotations

import errno
import os

_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "permit it or name another place"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "close other files or raise the limit of open ones (ulimit -n)"),
    errno.ENAMETOOLONG: "name a shorter path",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f)",
}


def reason(error: OSError) -> str:
    """Why, in the system's words."""
    return error.strerror or str(error) or type(error).__name__


def remedy(error: OSError) -> str:
    """What helps, in a few words."""
    return _REMEDIES.get(error.errno or 0, "make room or permit it")


def sentence(error: OSError) -> str:
    """One line about a call that failed, for whoever has no better one."""
    names = [_shown(name) for name in (error.filename, error.filename2) if name not in (None, "")]
    what = f"{' and '.join(names)} cannot be used" if names else "A file cannot be used"
    return f"{what}: {reason(error)}; {remedy(error)}, then try again."


def _shown(name: object) -> str:
    text = os.fsdecode(name) if isinstance(name, (bytes, str, os.PathLike)) else f"the file descriptor {name}"
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:1000]
