"""The folder of compiled code harmed in every way: what is not whole or not ours is never loaded, and the run computes the same."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

from fault_cases import processes
from fault_cases.case import Case, Skipped, require
from fault_cases.links import exchange_for_ever
from fault_cases.mounts import mounted
from fault_cases.scene import Scene, newest
from fault_cases.templates import SMALL, train

AREA = "compiled code"
SETTINGS = f"{SMALL} --epochs 1 --num-minibatches 2 --compile on --checkpoint-every 128"
STRANGER = 12345
EVIL = '__attribute__((constructor)) static void run(void) {{ FILE *f = fopen("{}", "w"); if (f) fclose(f); }}\n'


def cases(seed: int) -> list[Case]:
    found = [Case(AREA, f"every library {name}", partial(harmed, harm=harm)) for name, harm in LIBRARIES.items()]
    found += [Case(AREA, f"the folder {name}", partial(placed, harm=harm)) for name, harm in FOLDERS.items()]
    found += [Case(AREA, f"PHASEGRAD_CACHE {name}", partial(variable, value=value)) for name, value in VALUES.items()]
    found += [
        Case(AREA, "on a file system without execution", partial(on_mount, options="noexec,size=64m")),
        Case(AREA, "on a full file system", partial(on_mount, options="size=16k")),
        Case(AREA, "a library exchanged while it is loaded", exchanged),
        Case(AREA, "two runs fill one folder", two_runs),
        Case(AREA, "no home", partial(variable, value=None, home=None)),
    ]
    return found


def libraries(cache: Path) -> list[Path]:
    found = [path for path in cache.rglob("*") if path.is_file() and path.stat().st_size > 4096]
    require(found, "the cache holds no library: nothing was tried")
    return found


def own_cache(scene: Scene) -> Path:
    """A copy of what the campaign has compiled once, for this case alone."""
    made = scene.templates.folder / "compiled"
    if not made.exists():
        raise Skipped("there is no C compiler here")
    scene.cache = Path(shutil.copytree(made, scene.folder / "cache", symlinks=True))
    for path in [scene.cache, *scene.cache.rglob("*")]:
        path.chmod(0o700)
    return scene.cache


def require_same(scene: Scene, codes: tuple[int, ...] = (0,), **how: object) -> None:
    """The run ends well, with the bits of one whose cache was whole."""
    scene.run(*train("ppo", "run", SETTINGS, 128), codes=codes, seconds=120, **how)
    require(not (scene.folder / "ran").exists(), "a stranger's code ran")
    bits = [
        (newest(run) / "state.safetensors").read_bytes()
        for run in (scene.work / "run", scene.templates.folder / "fast")
    ]
    require(bits[0] == bits[1], "it computed something else")


def evil(scene: Scene) -> Path:
    """A library that leaves a mark when it is loaded."""
    source, to = scene.folder / "evil.c", scene.folder / "evil.so"
    source.write_text("#include <stdio.h>\n" + EVIL.format(scene.folder / "ran"))
    done = subprocess.run(["cc", "-shared", "-fPIC", "-o", str(to), str(source)], capture_output=True)
    if done.returncode:
        raise Skipped("there is no C compiler here")
    return to


def _write(content: Callable[[bytes], bytes]) -> Callable[[Scene, Path], None]:
    def harm(scene: Scene, path: Path) -> None:
        path.write_bytes(content(path.read_bytes()))

    return harm


def _flip(payload: bytes) -> bytes:
    return payload[: len(payload) // 2] + bytes([payload[len(payload) // 2] ^ 1]) + payload[len(payload) // 2 + 1 :]


def _link(scene: Scene, path: Path) -> None:
    target = evil(scene)
    path.unlink()
    path.symlink_to(target)


def _stranger_linked(scene: Scene, path: Path) -> None:
    """A link that somebody else planted to a file of the victim's."""
    _link(scene, path)
    os.chown(path, STRANGER, STRANGER, follow_symlinks=False)


def _replaced(scene: Scene, path: Path) -> None:
    shutil.copy(evil(scene), path)


def _strangers(scene: Scene, path: Path) -> None:
    _replaced(scene, path)
    os.chown(path, STRANGER, STRANGER)


def _hard_link(scene: Scene, path: Path) -> None:
    os.link(path, path.with_name(f"another-{path.name}"))


def _pipe(scene: Scene, path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o700)


def _folder(scene: Scene, path: Path) -> None:
    path.unlink()
    path.mkdir()


LIBRARIES: dict[str, Callable[[Scene, Path], None]] = {
    "empty": _write(lambda payload: b""),
    "cut in half": _write(lambda payload: payload[: len(payload) // 2]),
    "cut after a page": _write(lambda payload: payload[:4096]),
    "cut by a byte": _write(lambda payload: payload[:-1]),
    "flipped": _write(_flip),
    "zeros": _write(lambda payload: bytes(len(payload))),
    "a text": _write(lambda payload: b"hello\n"),
    "longer by a page": _write(lambda payload: payload + bytes(4096)),
    "a link to a stranger's": _link,
    "a stranger's link": _stranger_linked,
    "replaced": _replaced,
    "a stranger's file": _strangers,
    "open to all": lambda scene, path: path.chmod(0o777),
    "not readable": lambda scene, path: path.chmod(0o000),
    "of two names": _hard_link,
    "a pipe": _pipe,
    "a folder": _folder,
    "gone": lambda scene, path: path.unlink(),
}


def harmed(scene: Scene, harm: Callable[[Scene, Path], None]) -> None:
    cache = own_cache(scene)
    for path in libraries(cache):
        harm(scene, path)
    require_same(scene)
    require_same_again(scene)


def require_same_again(scene: Scene) -> None:
    shutil.rmtree(scene.work / "run")
    require_same(scene)


def _open_to_all(scene: Scene, cache: Path) -> None:
    for path in [cache, *cache.rglob("*")]:
        path.chmod(0o777)
    for path in libraries(cache):
        _replaced(scene, path)


def _strangers_folder(scene: Scene, cache: Path) -> None:
    for path in libraries(cache):
        _replaced(scene, path)
    for path in [cache, *cache.rglob("*")]:
        if path.is_dir():
            os.chown(path, STRANGER, STRANGER)


def _strangers_parent(scene: Scene, cache: Path) -> None:
    above = scene.folder / "theirs"
    above.mkdir()
    cache.rename(above / "cache")
    os.chown(above, STRANGER, STRANGER)
    scene.cache = above / "cache"
    for path in libraries(scene.cache):
        _replaced(scene, path)


def _linked_folder(scene: Scene, cache: Path) -> None:
    for path in libraries(cache):
        _replaced(scene, path)
    cache.rename(scene.folder / "real-cache")
    cache.symlink_to(scene.folder / "real-cache")
    os.chown(cache, STRANGER, STRANGER, follow_symlinks=False)


def _not_ours_to_write(scene: Scene, cache: Path) -> None:
    for path in libraries(cache):
        path.unlink()
    for path in [cache, *cache.rglob("*")]:
        path.chmod(0o500)


FOLDERS: dict[str, Callable[[Scene, Path], None]] = {
    "open to all": _open_to_all,
    "a stranger's": _strangers_folder,
    "in a stranger's folder": _strangers_parent,
    "a stranger's link": _linked_folder,
    "closed to us": _not_ours_to_write,
}


def placed(scene: Scene, harm: Callable[[Scene, Path], None]) -> None:
    harm(scene, own_cache(scene))
    require_same(scene, prepare=processes.without_privileges if harm is _not_ours_to_write else None)


VALUES: dict[str, str] = {
    "a file": "FOLDER/outside/canary.txt", "missing and deep": "FOLDER/a/b/c", "relative": "here/cache", "empty": "",
    "/dev/null": "/dev/null", "/proc": "/proc/self", "very long": "FOLDER/" + "x" * 300, "with a line end": "FOLDER/a\nb",
    "with an escape": "FOLDER/\x1b[31m",
}  # fmt: skip


def variable(scene: Scene, value: str | None, home: str | None = "FOLDER/home") -> None:
    own_cache(scene)
    given = {"PHASEGRAD_CACHE": value, "HOME": home}
    changed = {name: text and text.replace("FOLDER", str(scene.folder)) for name, text in given.items()}
    require_same(scene, environment=scene.environment(**changed))


def on_mount(scene: Scene, options: str) -> None:
    own_cache(scene)
    with mounted(scene.folder / "mount", options) as place:
        place.chmod(0o700)
        scene.cache = place / "cache"
        require_same(scene)


def exchanged(scene: Scene) -> None:
    """The library and a stranger's change places as fast as they can."""
    cache = own_cache(scene)
    other = evil(scene)
    pairs = []
    for path in libraries(cache):
        beside = path.with_name(f"{path.name}.swap")
        shutil.copy(other, beside)
        pairs.append((str(path), str(beside)))
    for attempt in range(3):
        helper = os.fork()
        if helper == 0:
            exchange_for_ever(*pairs[attempt % len(pairs)])
        processes.helpers.add(helper)
        try:
            require_same(scene)
        finally:
            os.kill(helper, 9)
            os.waitpid(helper, 0)
            processes.helpers.discard(helper)
        shutil.rmtree(scene.work / "run")


def two_runs(scene: Scene) -> None:
    scene.cache = scene.folder / "new"
    words = [train("ppo", f"run-{number}", SETTINGS, 128) for number in range(2)]
    if not (scene.templates.folder / "compiled").exists():
        raise Skipped("there is no C compiler here")
    running = [scene.start(*line) for line in words]
    processes.helpers.add(running[1].process)
    scene.end(running[0], (0,), 180)
    processes.helpers.discard(running[1].process)
    scene.end(running[1], (0,), 180)
