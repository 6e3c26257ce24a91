"""Only files are opened as files, and below a folder of the library's own no link is followed."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from phasegrad.machine import regular_files
from phasegrad.machine.regular_files import (
    NotRegularError,
    TooLargeError,
    open_below,
    open_folder,
    open_regular,
    read_bounded,
)


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "file").write_bytes(b"content")
    assert read_bounded(open_below(tmp_path, "inner", "file"), 7) == b"content"
    (tmp_path / "root").symlink_to(tmp_path)  # the root is the user's, and may be a link
    assert read_bounded(open_below(tmp_path / "root", "inner", "file"), 7) == b"content"
    (tmp_path / "link").symlink_to(tmp_path / "inner" / "file")
    assert read_bounded(open_regular(tmp_path / "link"), 7) == b"content"
    with pytest.raises(TooLargeError, match="larger than 6 bytes"):
        read_bounded(open_below(tmp_path, "inner", "file"), 6)
    with pytest.raises(FileNotFoundError):
        open_below(tmp_path, "none")


@pytest.mark.parametrize("by_descriptor", [True, False])
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, os.O_RDWR | os.O_APPEND])
@pytest.mark.parametrize("what", ["link", "loose link", "folder", "pipe", "socket", "device", "folder link"])
def test_what_is_no_file_is_named_and_left_alone(
    what: str, flags: int, by_descriptor: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regular_files, "_BY_DESCRIPTOR", by_descriptor)
    target = tmp_path / "target"
    target.write_bytes(b"the user's")
    root = tmp_path / "root"
    root.mkdir()
    path, parts = root / "name", ["name"]
    if what == "link":
        path.symlink_to(target)
    elif what == "loose link":
        path.symlink_to(tmp_path / "nowhere")
    elif what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    elif what == "device":
        if os.geteuid() != 0:
            pytest.skip("only root makes devices")
        os.mknod(path, 0o020666, os.makedev(1, 5))
    else:
        path.symlink_to(tmp_path)
        parts = ["name", "target"]
    before = sorted(root.iterdir())
    with pytest.raises(NotRegularError, match=f"it is a {what.split()[-1].replace('pipe', 'named pipe')}, not a f"):
        open_below(root, *parts, flags=flags)
    assert target.read_bytes() == b"the user's"
    assert sorted(root.iterdir()) == before
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "."])
def test_a_file_the_user_names_is_a_file_too(path: str) -> None:
    with pytest.raises(NotRegularError):
        open_regular(path)


def test_a_folder_exchanged_for_a_link_is_not_entered(tmp_path: Path) -> None:
    # One side opens a file again and again while the other swaps its folder for a link to one of the same look.
    for place, content in (("own/inner", b"own"), ("other", b"other")):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "file").write_bytes(content)
    os.symlink(tmp_path / "other", tmp_path / "own" / "link")
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            os.rename(tmp_path / "own/inner", tmp_path / "own/aside")
            os.rename(tmp_path / "own/link", tmp_path / "own/inner")
            os.rename(tmp_path / "own/inner", tmp_path / "own/link")
            os.rename(tmp_path / "own/aside", tmp_path / "own/inner")

    swapping = threading.Thread(target=swap)
    swapping.start()
    contents = set()
    try:
        for _ in range(3000):
            try:
                contents.add(read_bounded(open_below(tmp_path / "own", "inner", "file"), 10))
            except OSError:
                continue
    finally:
        over.set()
        swapping.join()
    assert contents == {b"own"}


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "link").symlink_to(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for parts in (("inner", "link"), ("inner", "link", "x"), ("none", "x"), ("inner", "none")):
        with pytest.raises(OSError):  # noqa: PT011 - any of them
            open_below(tmp_path, *parts)
    os.close(open_folder(tmp_path, "inner"))
    assert len(os.listdir("/proc/self/fd")) == before
