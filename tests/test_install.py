"""What the two commands install: pins that suit every supported Python, and no more than each command needs."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from io import BytesIO
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import check_lock  # noqa: E402
from check_lock import LEFT_OUT, LOCKS, PACKAGE, PLATFORMS, File, Page, Pin, check, faults, pins, unpinned  # noqa: E402

WHEELS = {f"3.{minor}.0": f"thing-1.0-cp3{minor}-cp3{minor}-manylinux_2_28_x86_64.whl" for minor in range(11, 15)}


def names(lock: Path) -> set[str]:
    return {canonicalize_name(pin.name) for pin in pins(lock)}


def needed(*requirements: str) -> set[str]:
    """Everything that installing these installs, by the metadata of what is installed here; not what that asks of Linux."""
    found: set[tuple[str, str]] = set()
    waiting = [Requirement(requirement) for requirement in requirements]
    while waiting:
        requirement = waiting.pop()
        for extra in ("", *requirement.extras):
            key = (canonicalize_name(requirement.name), extra)
            if key in found:
                continue
            found.add(key)
            for line in importlib.metadata.requires(requirement.name) or []:
                inner = Requirement(line)
                if inner.marker is None or inner.marker.evaluate({"extra": extra}):
                    waiting.append(inner)
    return {name for name, _ in found if not name.startswith(("nvidia-", "cuda-")) and name != "triton"}


def test_the_locks_pin_what_the_package_and_its_extras_need_and_nothing_twice() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    rest, envpool, more = (names(lock) for lock in LOCKS)
    package = rest | envpool
    wanted = needed(*project["project"]["dependencies"], *project["build-system"]["requires"])
    assert package == wanted - set(LEFT_OUT)
    assert set(LEFT_OUT) <= more
    assert envpool == {
        "envpool",
        "envpool-assets",
    }  # nothing in requirements.lock requires them, or pip would bring the rest
    assert not rest & envpool
    assert not package & more
    extras = project["project"]["optional-dependencies"]
    if sys.version_info >= (3, 14):
        del extras["box2d"]  # which has no wheel there
    everything = [part for name in extras if name != "all" for part in extras[name]]
    assert needed(*everything) - package <= more
    assert not {"pytest", "ruff", "mypy", "zensical", "ray", "pyqt5-qt5"} & package
    assert "torch==2.13.0" in PACKAGE[0].read_text().split()


def test_every_python_needs_a_wheel() -> None:
    pin = Pin("Thing", "1.0")
    assert list(faults(pin, [File(name, ">=3.11") for name in WHEELS.values()])) == []
    assert list(faults(pin, [File("thing-1.0-py3-none-any.whl")])) == []
    assert list(faults(pin, [File("thing-1.0-cp311-abi3-manylinux2014_x86_64.whl")])) == []
    for python, name in WHEELS.items():
        rest = [File(other) for other in WHEELS.values() if other != name]
        assert list(faults(pin, rest)) == [f"Thing==1.0 has no wheel for Python {python}."]
    others = ("thing-1.0.tar.gz", "thing-1.1-py3-none-any.whl", "thing-1.0-cp311-cp311-win_amd64.whl", "thing.whl")
    newer = "thing-1.0-py3-none-manylinux_2_39_x86_64.whl"  # than Debian 12
    assert len(list(faults(pin, [File(name) for name in (*others, newer)]))) == 4


def test_a_pin_must_not_ask_for_a_later_patch_release() -> None:
    """pymdown-extensions 13.0 did, which ended the set-up on Debian 12."""
    (sentence,) = faults(Pin("Thing", "1.0"), [File("thing-1.0-py3-none-any.whl", ">=3.11.5")])
    assert sentence == "Thing==1.0 asks for Python >=3.11.5, which 3.11.0 is not."


def test_a_pin_is_checked_where_its_marker_holds_and_pins_must_agree(tmp_path: Path) -> None:
    first, second = tmp_path / "a.lock", tmp_path / "b.lock"
    first.write_text('# why\nThing==1.0 ; python_version < "3.14"\nother_thing==2\n')
    second.write_text("-r a.lock\nother-thing==3  # not as there\n")
    found = {
        "thing": [File(name) for name in WHEELS.values() if "cp314" not in name],
        "other-thing": [File("other_thing-2-py3-none-any.whl")],
    }
    assert check([first, second], lambda name: found[name]) == ["other-thing is pinned to 2 and, in b.lock, to 3."]
    second.write_text("thing>=1\n")
    with pytest.raises(SystemExit, match=r"b\.lock: 'thing>=1' pins no version"):
        check([second], lambda name: [])


def test_every_platform_needs_a_wheel_and_its_own_requirements(tmp_path: Path) -> None:
    pin = Pin("Thing", "1.0")
    wheels = {
        "linux-x86_64": "manylinux_2_28_x86_64", "linux-aarch64": "manylinux_2_17_aarch64",
        "macos-arm64": "macosx_11_0_arm64", "windows-amd64": "win_amd64",
    }  # fmt: skip
    assert list(wheels) == list(PLATFORMS)
    for name, platform in PLATFORMS.items():
        assert list(faults(pin, [File(f"thing-1.0-cp311-abi3-{wheels[name]}.whl")], platform)) == []
        rest = [File(f"thing-1.0-cp311-abi3-{wheel}.whl") for other, wheel in wheels.items() if other != name]
        assert len(list(faults(pin, rest, platform))) == 4
    lock = tmp_path / "x.lock"
    lock.write_text('thing==1.0\ncolours==2.0 ; sys_platform == "win32"\nsteps==1.0\n')
    asked = {"thing": ['colours>=2 ; platform_system == "Windows"', "steps<1 ; platform_machine == 'arm64'"]}

    def found(platform: str) -> set[str]:
        return set(unpinned([lock], PLATFORMS[platform], lambda name: asked.get(name, [])))

    assert found("linux-x86_64") == found("windows-amd64") == set()
    assert len(found("macos-arm64")) == 4  # steps is there in another version, for each Python
    asked["steps"] = ['colours>=2 ; python_version >= "3.13"']
    assert found("windows-amd64") == set()
    assert "steps requires colours>=2, which x.lock lacks, for 3.14.0 on linux-aarch64." in found("linux-aarch64")
    assert len(found("linux-aarch64")) == 2


def test_an_index_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    page = (
        '<a href="https://x/y/other_thing-1.0-py3-none-any.whl#sha256=1" data-requires-python="&gt;=3.11.5">t</a>'
        '<a href="thing-0.9%2Bcpu-py3-none-any.whl">t</a><a href="thing-1.0-py2-none-any.whl" data-yanked="bad">t</a>'
    )
    opened: list[str] = []
    assert Page(page).files == [
        File("other_thing-1.0-py3-none-any.whl", ">=3.11.5"),
        File("thing-0.9+cpu-py3-none-any.whl"),
    ]
    (tmp_path / "x.lock").write_text("Other_Thing==1.0\n")
    monkeypatch.setattr(
        check_lock.urllib.request, "urlopen", lambda url, timeout: opened.append(url) or BytesIO(page.encode())
    )
    assert check_lock.main([str(tmp_path / "x.lock"), "--index", "http://index/"]) == 1
    assert opened == ["http://index/other-thing/"]
    assert "asks for Python >=3.11.5" in capsys.readouterr().out


def plan(target: str, folder: Path, *stamps: str) -> str:
    """What make would do for a target where these parts of the set-up are done."""
    for name in (
        "Makefile",
        "requirements.lock",
        "requirements-envpool.lock",
        "requirements-dev.lock",
        "pyproject.toml",
    ):
        (folder / name).write_bytes((ROOT / name).read_bytes())
    (folder / ".venv").mkdir(exist_ok=True)
    for stamp in stamps:
        (folder / ".venv" / stamp).touch()
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}  # of make test
    found = subprocess.run(["make", "-n", target], cwd=folder, env=own, capture_output=True, text=True, check=True)
    return found.stdout


def test_the_demo_installs_the_package_alone_and_neither_command_installs_anything_twice(tmp_path: Path) -> None:
    package, more = "pip install .*-r requirements.lock", "pip install .*-r requirements-dev.lock"
    for target, stamps, installs in (
        ("demo", (), [package]),
        ("test", (), [package, more]),
        ("setup", (), [package, more]),
        ("demo", (".package",), []),
        ("test", (".package",), [more]),
        ("demo", (".package", ".ready"), []),
        ("test", (".package", ".ready"), []),
    ):
        folder = tmp_path / f"{target}{len(stamps)}"
        folder.mkdir()
        planned = plan(target, folder, *stamps)
        assert planned.count("-r requirements-envpool.lock") == planned.count("--no-deps -r requirements-envpool.lock")
        assert ("requirements-envpool.lock" in planned) == (package in installs)
        for command in (package, more):
            assert bool(re.search(command, planned)) == (command in installs), (target, stamps, planned)
        assert planned.count("GB to download") == len(installs)  # a wait of minutes is announced
        assert not re.search(r"--quiet.*-r requirements", planned)  # and shows what it does


def test_the_page_and_the_makefile_tell_of_the_same_size() -> None:
    root = Path(__file__).parents[1]
    told = re.search(r"([\d.]+ GB) on disk", (root / "Makefile").read_text())
    page = re.search(
        r"`make demo` installs what the package needs, ([\d.]+ GB)", (root / "docs/install.md").read_text()
    )
    assert told is not None
    assert page is not None
    assert told[1] == page[1]
