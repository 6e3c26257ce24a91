"""The pages of the site as plain Markdown in one folder, whatever program makes HTML of them.

What a page points to outside docs/ comes along: reports on results as pages, source files as highlighted pages, everything
else as it is. A link that leads nowhere ends the build.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path, PurePosixPath

from api_page import api_page
from equations import outside_code, with_equations
from settings_page import settings_page

LANGUAGES = {".py": "python", ".h": "c", ".c": "c", ".toml": "toml", ".txt": "text", ".sh": "bash", ".ipynb": "json"}
GENERATED = {"settings.md": settings_page, "api.md": api_page}
ATTRIBUTE = re.compile(r'((?:src|srcset)=")([^"#?]+)(")')  # of pictures in HTML
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
ANOTHER_PLACE = re.compile(r"[a-z]+:")


class Staging:
    """`pages` and `files` say where in the site a file of the repository is; what is asked for is added to them."""

    def __init__(self, root: Path, out: Path) -> None:
        self.root, self.out = root, out
        self.pages: dict[PurePosixPath, PurePosixPath] = {PurePosixPath("CHANGELOG.md"): PurePosixPath("changelog.md")}
        self.files: dict[PurePosixPath, PurePosixPath] = {}
        self.faults: list[str] = []
        for path in sorted(root.glob("docs/**/*")):
            if path.is_file():
                origin = PurePosixPath(path.relative_to(root).as_posix())
                (self.pages if path.suffix == ".md" else self.files)[origin] = origin.relative_to("docs")
        for path in sorted(root.glob("results/*.md")):
            origin = PurePosixPath("results", path.name)
            self.pages[origin] = PurePosixPath("results", "index.md" if path.name == "README.md" else path.name)

    def write(self) -> None:
        """All pages, and what they point to."""
        shutil.rmtree(self.out, ignore_errors=True)
        for name, page in GENERATED.items():
            self._write(PurePosixPath(name), with_equations(page()))
        done: set[PurePosixPath] = set()
        while waiting := self.pages.keys() - done:
            for origin in sorted(waiting):
                self._write(self.pages[origin], self._page(origin))
            done |= waiting
        for origin, place in self.files.items():
            (self.out / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.root / origin, self.out / place)

    def _write(self, place: PurePosixPath, text: str) -> None:
        (self.out / place).parent.mkdir(parents=True, exist_ok=True)
        (self.out / place).write_text(text, encoding="utf-8")

    def _page(self, origin: PurePosixPath) -> str:
        if (self.root / origin).is_dir():
            names = sorted(path.name for path in (self.root / origin).iterdir() if path.suffix in LANGUAGES)
            lines = [f"* [{name}]({relative(self._place(origin / name), self.pages[origin].parent)})" for name in names]
            return "\n".join([f"# {origin}", "", *lines, ""])
        text = (self.root / origin).read_text(encoding="utf-8")
        if origin.suffix != ".md":
            language = LANGUAGES.get(origin.suffix, "text")
            return f"---\nsearch:\n  exclude: true\n---\n\n# {origin}\n\n````{language}\n{text.rstrip()}\n````\n"

        def moved(part: str) -> str:
            part = ATTRIBUTE.sub(lambda found: f"{found[1]}{self._target(origin, found[2])}{found[3]}", part)
            return LINK.sub(lambda found: f"{found[1]}{self._target(origin, found[2])}{found[3] or ''}{found[4]}", part)

        return with_equations(outside_code(text, moved))

    def _target(self, origin: PurePosixPath, link: str) -> str:
        """Where a link of the page `origin` leads on the site."""
        if ANOTHER_PLACE.match(link):
            return link
        if origin.parent == PurePosixPath("docs") and link in GENERATED:
            return link
        path = (self.root / origin.parent / link).resolve()
        if not path.exists() or not path.is_relative_to(self.root.resolve()):
            self.faults.append(f"{origin} points to {link}, which is not in the repository.")
            return link
        wanted = PurePosixPath(path.relative_to(self.root.resolve()).as_posix())
        return relative(self._place(wanted), self.pages[origin].parent)

    def _place(self, wanted: PurePosixPath) -> PurePosixPath:
        """Where a file of the repository is on the site; one that nothing has asked for so far is given a place."""
        if known := self.pages.get(wanted) or self.files.get(wanted):
            return known
        if (self.root / wanted).is_dir():
            self.pages[wanted] = PurePosixPath("source", wanted, "index.md")
            return self.pages[wanted]
        if wanted.suffix in LANGUAGES or wanted.name == "Makefile":
            self.pages[wanted] = PurePosixPath("source", f"{wanted}.md")
            return self.pages[wanted]
        if wanted.suffix == ".md":
            self.pages[wanted] = PurePosixPath("source", wanted)
            return self.pages[wanted]
        self.files[wanted] = PurePosixPath("files", wanted)
        return self.files[wanted]


def relative(place: PurePosixPath, folder: PurePosixPath) -> str:
    """`place` as seen from `folder`, both within the site."""
    ours, theirs = list(folder.parts), list(place.parts)
    while ours and len(theirs) > 1 and ours[0] == theirs[0]:
        ours.pop(0), theirs.pop(0)
    return "/".join([".."] * len(ours) + theirs)
