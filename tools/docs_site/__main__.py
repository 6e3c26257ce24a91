"""Build the documentation site: python tools/docs_site [--out FOLDER]

Pages are staged as plain Markdown in build/pages (see staging.py), then Zensical makes HTML of them in build/site. Pages that
the navigation of mkdocs.yml names and that do not exist yet are left out of it; a page that it does not name is a fault.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FETCHED = "https://unpkg.com/iframe-worker/shim"
sys.path[:0] = [str(HERE), str(ROOT)]  # the package of this repository, whatever is installed

from staging import Staging  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build", help="folder for pages/ and site/ (default build)")
    out = parser.parse_args().out.resolve()
    staging = Staging(ROOT, out / "pages")
    staging.write()
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    config["nav"] = existing(config["nav"], out / "pages")
    config |= {"docs_dir": "pages", "site_dir": "site"}
    (out / "mkdocs.yml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    named = set(named_pages(config["nav"]))
    unnamed = {page.name for page in (ROOT / "docs").glob("*.md")} - named
    faults = staging.faults + [f"docs/{name} is not in the navigation of mkdocs.yml." for name in sorted(unnamed)]
    if faults:
        print("\n".join(faults), file=sys.stderr)
        return 1
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", str(out / "mkdocs.yml")]
    finished = subprocess.run(command, cwd=out, capture_output=True, text=True)
    if finished.returncode:
        print(finished.stdout + finished.stderr, file=sys.stderr)
        return 1
    search_on_files(out / "site")
    print(f"The site is in {out / 'site'}: open index.html in a browser.")
    return 0


def search_on_files(site: Path) -> None:
    """Put our own script in the place of the one that the theme would fetch from another server."""
    script = site / "assets" / "javascripts" / "search_on_files.js"
    shutil.copy(HERE / script.name, script)
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        up = "../" * (len(page.relative_to(site).parts) - 1)
        page.write_text(text.replace(FETCHED, f"{up}assets/javascripts/{script.name}"), encoding="utf-8")


def existing(entries: list[Any], pages: Path) -> list[Any]:
    """The navigation without pages that are not there, and groups that are left empty."""
    kept = []
    for entry in entries:
        ((title, value),) = entry.items()
        if isinstance(value, list):
            value = existing(value, pages)
        elif not (pages / value).exists():
            continue
        if value:
            kept.append({title: value})
    return kept


def named_pages(entries: list[Any]) -> list[str]:
    """Every page of a navigation."""
    found = []
    for entry in entries:
        for value in entry.values():
            found += named_pages(value) if isinstance(value, list) else [value]
    return found


if __name__ == "__main__":
    sys.exit(main())
