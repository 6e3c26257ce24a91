"""The built documentation site: every link is followed, nothing comes from another server, the reference is complete."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from chromium import Browser, find_chromium

import phasegrad as pg
from phasegrad.algorithms import ALGORITHMS
from phasegrad.config import documented_fields

pytest.importorskip("zensical", reason="the extra docs is not installed")
pytest.importorskip("latex2mathml", reason="the extra docs is not installed")

ROOT = Path(__file__).parents[1]
BUILT_IN = ("ppo", "ppg", "a2c", "vpg", "trpo", "acer")
FETCHED = {
    "script": ("src",), "img": ("src", "srcset"), "source": ("src", "srcset"), "video": ("src", "poster"), "audio": ("src",),
    "iframe": ("src",), "embed": ("src",), "object": ("data",), "image": ("href",), "use": ("href",),
}  # fmt: skip


class Page(HTMLParser):
    """Anchors, links and what a browser would fetch of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attributes}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag == "link" and not {"canonical", "prev", "next"} & set(found.get("rel", "").split()):
            self.fetched.append(found.get("href", ""))
        self.fetched += [found[name] for name in FETCHED.get(tag, ()) if name in found]


class Site:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def pages(self) -> dict[Path, Page]:
        return {path: Page(path.read_text(encoding="utf-8")) for path in sorted(self.folder.rglob("*.html"))}

    def text(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf-8")


def build(out: Path, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "tools" / "docs_site"), "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    out = tmp_path_factory.mktemp("docs")
    finished = build(out)
    assert finished.returncode == 0, finished.stderr
    return Site(out / "site")


def broken_links(site: Site) -> Iterator[str]:
    for path, page in site.pages.items():
        for link in {*page.links, *page.fetched}:
            parts = urlsplit(link)
            if parts.scheme or link.startswith(("//", "data:")) or path.name == "404.html":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                yield f"{path.name}: {link} leads nowhere"
            elif parts.fragment and target in site.pages:
                wanted = unquote(parts.fragment)
                if wanted not in site.pages[target].anchors and not wanted.startswith("__"):
                    yield f"{path.name}: {link} has no such heading"


def test_every_link_of_the_built_site_leads_somewhere(site: Site) -> None:
    assert sum(len(page.links) for page in site.pages.values()) > 1_000
    assert list(broken_links(site)) == []


def test_nothing_of_it_comes_from_another_server(site: Site) -> None:
    outside = re.compile(r"^(https?:)?//")
    for path, page in site.pages.items():
        assert [link for link in page.fetched if outside.match(link)] == [], path
    for path in site.folder.rglob("*.css"):
        found = re.findall(r"""(?:url\(|@import)\s*["']?([^"')\s]+)""", path.read_text(encoding="utf-8"))
        assert [link for link in found if outside.match(link)] == [], path


def test_the_groups_of_the_navigation(site: Site) -> None:
    tabs = re.findall(r'class="md-tabs__link">\s*(.*?)\s*</a>', site.text("index.html"), re.DOTALL)
    tabs = [re.sub(r"<.*?>|\s+", " ", tab).strip() for tab in tabs]
    assert tabs == ["Start", "Guides", "Algorithms", "Reference", "Results", "Inside"]


def test_search_finds_a_setting(site: Site) -> None:
    found = [item for item in json.loads(site.text("search.json"))["items"] if "clip_range" in json.dumps(item)]
    assert "settings.html#clip_range" in [item["location"] for item in found]
    assert len({item["location"].partition("#")[0] for item in found}) >= 3


def test_every_setting_and_every_public_name_has_its_place(site: Site) -> None:
    settings = site.pages[site.folder / "settings.html"].anchors
    for algorithm in BUILT_IN:
        assert documented_fields(ALGORITHMS[algorithm].config_class).keys() <= settings
    text = site.text("settings.html")
    entry = text[text.index('id="clip_range"') : text.index('id="anneal_clip_range"')]
    plain = re.sub(r"<[^>]*>", "", entry)
    for fact in (
        "Type: number",
        "Default: 0.2",
        "Range: at least 0",
        "Algorithms: PPO, PPG",
        "atari 0.1",
        "live, scheduled",
    ):
        assert fact in plain
    assert "<math" in entry
    interface = site.pages[site.folder / "api.html"].anchors
    assert {f"pg-{name.lower()}" for name in pg.__all__ if not name.startswith("__")} <= interface
    assert {"agent-learn", "agent-predict", "agent-save"} <= interface


def test_symbols_are_of_settings_that_there_are() -> None:
    sys.path.insert(0, str(ROOT / "tools" / "docs_site"))
    try:
        from settings_page import SYMBOLS
    finally:
        sys.path.pop(0)
    known = {name for algorithm in BUILT_IN for name in documented_fields(ALGORITHMS[algorithm].config_class)}
    assert SYMBOLS.keys() <= known


@pytest.mark.parametrize("page", ["ppo", "ppg", "baselines", "acer"])
def test_equations_are_drawn_by_the_browser(site: Site, page: str) -> None:
    text = site.text(f"{page}.html")
    assert text.count('<math xmlns="http://www.w3.org/1998/Math/MathML" display="block"') >= 2
    shown = re.sub(r"<[^>]*>", "", re.sub(r"<(script|code|pre).*?</\1>", "", text, flags=re.DOTALL))
    assert "$" not in shown
    assert not re.search(r"\\(frac|mathbb|pi|theta|operatorname|left)", shown)


def test_a_page_that_is_not_named_and_a_link_to_nowhere_end_the_build(tmp_path: Path) -> None:
    root = tmp_path / "project"
    for name in ("docs", "results"):
        (root / name).mkdir(parents=True)
    for name in ("tools", "phasegrad"):
        (root / name).symlink_to(ROOT / name)
    script = tmp_path / "check.py"
    script.write_text(
        "import sys; from pathlib import Path; sys.path[:0] = [sys.argv[1], sys.argv[2]]\n"
        "from staging import Staging\n"
        "staging = Staging(Path(sys.argv[2]), Path(sys.argv[2]) / 'out'); staging.write(); print(staging.faults)\n"
    )
    (root / "CHANGELOG.md").write_text("# Changes\n")
    (root / "docs" / "index.md").write_text("# Here\n\n[gone](nowhere.md) and `[kept](as_code.md)`\n")
    command = [sys.executable, str(script), str(ROOT / "tools" / "docs_site"), str(root)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip() == "['docs/index.md points to nowhere.md, which is not in the repository.']"


@pytest.mark.skipif(find_chromium() is None, reason="no Chromium")
def test_a_browser_draws_equations_and_asks_no_server(site: Site, tmp_path: Path) -> None:
    with Browser(find_chromium() or "", tmp_path / "profile") as browser:
        browser.open((site.folder / "ppo.html").as_uri())
        assert browser.ask("document.querySelector('math[display=block]').getBoundingClientRect().width") > 100
        requests = browser.requests()
    assert requests
    assert [url for url in requests if not url.startswith("file:")] == []
