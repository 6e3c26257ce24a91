"""The report in a browser: what the learning charts draw, what can be taken away, and what comes out on paper."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from chromium import Browser, browsing
from test_report import click, needs_browser, opened, scroll_through
from test_report_scores import cartpole_rows, evaluation
from written_runs import rows_of, write_run

from phasegrad.report import write_report

SVG = "{http://www.w3.org/2000/svg}"
pytestmark = needs_browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Agents that score 500 in evaluation and got 300 while they trained; one group has no evaluation."""
    folder = tmp_path_factory.mktemp("page")
    for seed in (1, 2, 3):
        rows = cartpole_rows(300.0, {4: 200.0 + seed, 9: 500.0})
        rows = [row | {"kl": 0.01 * (1 + i % 2), "value_loss": 2.0**-i} for i, row in enumerate(rows)]
        result = {"status": "finished", "eval": evaluation(500.0, step=1000)}
        write_run(folder / f"ppg{seed}", rows, result, env="CartPole-v1", seed=seed)
        write_run(folder / f"old{seed}", cartpole_rows(80.0, {}), env="CartPole-v1", seed=seed, algorithm="=1+1|x_y%")
    return write_report([folder], folder / "page.html")


def view(browser: Browser, title: str) -> int:
    found: int = browser.ask(f"phasegradReport.views.findIndex(view => view.spec.title === {json.dumps(title)})")
    assert found >= 0, title
    return found


def test_the_learning_chart_draws_the_evaluation(browser: Browser, page: Path) -> None:
    opened(browser, page)
    scroll_through(browser)
    titles = browser.ask("phasegradReport.views.slice(0, 4).map(view => view.spec.title)")
    assert titles == [
        "Score in evaluation against environment steps", "Score in evaluation against wall-clock time",
        "Training return against environment steps", "Training return against wall-clock time",
    ]  # fmt: skip
    ends = "phasegradReport.views[{}].lines.map(line => [line.label, line.curve[1].at(-1), Boolean(line.dash)])"
    assert browser.ask(ends.format(0)) == [
        ["=1+1|X_Y%, mean of 3 seeds, training return, last 100 episodes", 80, True], ["PPG, mean of 3 seeds", 500, False],
    ]  # fmt: skip
    assert [line[1] for line in browser.ask(ends.format(2))] == [80, 300]
    assert "sampled actions, last 100" in browser.ask("phasegradReport.views[2].box.innerText")


def test_one_evaluation_at_the_end_stands_over_a_faint_training_curve(browser: Browser, tmp_path: Path) -> None:
    """The score is 1,000 and training ended at 47: both are drawn, each by its name."""
    run = write_run(tmp_path / "run", cartpole_rows(47.0, {}), {"eval": evaluation(1000.0)}, env="InvertedPendulum-v5")
    opened(browser, write_report([run], tmp_path / "page.html"))
    scroll_through(browser)
    lines = browser.ask("phasegradReport.views[0].lines.map(line => [line.label, line.curve[1].at(-1), line.faint ?? false])")  # fmt: skip
    assert lines == [["PPG, training return, last 100 episodes", 47, True], ["PPG", 1000, False]]
    assert browser.problems() == []


def test_links_lead_down_the_page(browser: Browser, page: Path) -> None:
    opened(browser, page)
    tops = browser.ask(
        "[...document.querySelectorAll('nav a')].map(link => document.querySelector(link.hash).getBoundingClientRect().top)"
    )
    assert len(tops) > 8
    assert tops == sorted(tops)
    assert len(set(tops)) == len(tops)


def test_the_healthy_range_is_shaded(browser: Browser, page: Path) -> None:
    opened(browser, page)
    scroll_through(browser)
    alpha = """(title, y) => { const plot = phasegradReport.views.find(view => view.spec.title === title).plot;
      const x = plot.bbox.left + plot.bbox.width * 0.503; return plot.ctx.getImageData(x, plot.valToPos(y, "y", true), 1, 1).data[3]; }"""
    assert browser.ask(f"({alpha})('KL divergence', 0.0097)") > 10
    assert browser.ask(f"({alpha})('Value loss', 0.77)") == 0


def downloaded(browser: Browser, folder: Path, index: int, kind: str) -> bytes:
    """Press a chart's button and wait for the file."""
    folder.mkdir(exist_ok=True)
    browser_session, browser.session = browser.session, None
    browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    browser.session = browser_session
    before = set(folder.iterdir())
    click(browser, f"[...phasegradReport.views[{index}].box.querySelectorAll('.downloads button')].find(b => b.textContent === '{kind}')")  # fmt: skip
    for _ in range(100):
        new = [file for file in set(folder.iterdir()) - before if file.suffix == f".{kind.lower()}"]
        if new and new[0].stat().st_size:
            return new[0].read_bytes()
        time.sleep(0.1)
    raise AssertionError(f"no {kind} came")


def test_a_chart_downloads_as_png_svg_and_csv(browser: Browser, page: Path, tmp_path: Path) -> None:
    opened(browser, page)
    scroll_through(browser)
    chart = view(browser, "Score in evaluation against environment steps")
    svg = ElementTree.fromstring(downloaded(browser, tmp_path, chart, "SVG"))
    words = [text.text for text in svg.iter(f"{SVG}text")]
    assert "Score in evaluation against environment steps" in words
    assert "PPG, mean of 3 seeds" in words
    assert "environment steps" in words
    assert "var(" not in ElementTree.tostring(svg, encoding="unicode")
    png = downloaded(browser, tmp_path, chart, "PNG")
    assert png.startswith(b"\x89PNG")
    assert int.from_bytes(png[16:20], "big") == 1520
    parts = b"".join(png[i + 8 : i + 8 + int.from_bytes(png[i : i + 4], "big")] for i in _chunks(png, b"IDAT"))
    assert len(set(zlib.decompress(parts))) > 20  # not one blank colour
    rows = list(csv.reader(io.StringIO(downloaded(browser, tmp_path, chart, "CSV").decode())))
    assert rows[0][0] == "environment steps"
    at = rows[0].index("PPG, mean of 3 seeds")
    assert rows[0][at + 1 : at + 3] == ["PPG, mean of 3 seeds, 95 % low", "PPG, mean of 3 seeds, 95 % high"]
    assert [(row[0], row[at]) for row in rows[1:] if row[at]] == [("500", "202"), ("1000", "500")]
    assert rows[0][1].startswith("'=1+1|X_Y%")  # no formula
    assert browser.problems() == []
    assert browser.requests() == [page.as_uri()]


def _chunks(png: bytes, name: bytes) -> Iterator[int]:
    at = 8
    while at < len(png):
        if png[at + 4 : at + 8] == name:
            yield at
        at += 12 + int.from_bytes(png[at : at + 4], "big")


def test_smoothing_keeps_the_raw_curve_behind_and_the_numbers_as_they_are(browser: Browser, page: Path) -> None:
    opened(browser, page)
    scroll_through(browser)
    chart = view(browser, "KL divergence")
    raw = browser.ask(f"phasegradReport.views[{chart}].lines[0].curve[1]")
    select = "((name, value) => { const box = [...document.querySelectorAll('#controls label')].find(label => label.textContent.startsWith(name)).querySelector('select'); box.value = value; box.dispatchEvent(new Event('change')); })"
    browser.ask(f"{select}('Smoothing', '0.9')")
    lines = browser.ask(f"phasegradReport.views[{chart}].lines.map(line => [line.ghost ?? false, line.label, line.curve[1]])")  # fmt: skip
    assert [ghost for ghost, _, _ in lines] == [True, False] * 3
    assert lines[0][2] == raw
    weights = [0.9**i for i in range(len(raw))]
    for at in range(len(raw)):
        past = sum(w * y for w, y in zip(weights, reversed(raw[: at + 1]))) / sum(weights[: at + 1])
        assert lines[1][2][at] == pytest.approx(past)
    assert browser.ask(f"phasegradReport.views[{chart}].plain()[0].ys") == raw
    score = view(browser, "Score in evaluation against environment steps")
    assert not any(browser.ask(f"phasegradReport.views[{score}].lines.map(line => line.ghost ?? false)")[1:])
    assert browser.problems() == []


def test_tables_are_markdown_and_latex(browser: Browser, page: Path) -> None:
    opened(browser, page)
    made = "(kind => phasegradReport.exporting[kind]([...document.querySelectorAll('table')].find(table => table.caption?.innerText === 'Scores')))"
    markdown = browser.ask(f"{made}('markdown')").splitlines()
    assert markdown[0] == "**Scores**"
    assert markdown[2].startswith("| environment | variant | seeds | IQM |")
    assert set(markdown[3]) == set("|-:")
    assert markdown[4].startswith("| CartPole-v1 | =1+1\\|X_Y% | 3 | 80 |")
    latex = browser.ask(f"{made}('latex')")
    assert "\\begin{tabular}{llrrrrll}" in latex
    assert "CartPole-v1 & =1+1|X\\_Y\\% & 3 & 80 &" in latex
    assert re.search(r"(?<!\\)[%_#]", latex) is None
    click(browser, "document.querySelector('#scores .of-table button')")
    assert browser.ask("document.querySelector('#scores .of-table button').textContent") == "Done"


def pdf_of(browser: Browser) -> bytes:
    return base64.b64decode(browser.call("Page.printToPDF", preferCSSPageSize=True)["data"])


@pytest.mark.parametrize("dark", [False, True])
def test_paper_has_every_chart_and_light_colours(browser: Browser, tmp_path: Path, dark: bool) -> None:
    run = write_run(tmp_path / "run", rows_of(40), {"eval": evaluation(3.0)})
    opened(browser, write_report([run], tmp_path / "page.html"), dark=dark)
    assert len(pdf_of(browser)) > 20_000  # without scrolling: charts that were never on the screen are there
    browser.call("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])  # fmt: skip
    browser.ask("phasegradReport.toPaper()")
    shown: dict[str, Any] = browser.ask(
        """({ charts: phasegradReport.views.map(view => [view.paper.querySelectorAll('path').length, view.paper.offsetHeight > 50, getComputedStyle(view.area).display]),
          page: getComputedStyle(document.body).backgroundColor, ink: getComputedStyle(document.body).color,
          bar: getComputedStyle(document.querySelector('.piece')).printColorAdjust, controls: getComputedStyle(document.getElementById('controls')).display,
          head: getComputedStyle(document.querySelector('h2')).breakAfter })"""
    )
    browser.call("Emulation.setEmulatedMedia", media="", features=[])
    assert all(paths > 8 and there and screen == "none" for paths, there, screen in shown["charts"])
    assert shown["page"] == "rgb(255, 255, 255)"
    assert shown["ink"] == "rgb(27, 35, 48)"
    assert (shown["bar"], shown["controls"], shown["head"]) == ("exact", "none", "avoid")
    assert browser.problems() == []


def test_a_film_prints_as_its_first_frame(browser: Browser, tmp_path: Path) -> None:
    writer = pytest.importorskip("imageio_ffmpeg").write_frames
    run = write_run(tmp_path / "run", rows_of(9))
    (run / "videos").mkdir()
    film = writer(str(run / "videos" / "step-000000001152.mp4"), (64, 48), fps=10)
    film.send(None)
    for _ in range(10):
        film.send(bytes([20, 200, 40]) * (64 * 48))
    film.close()
    opened(browser, write_report([run], tmp_path / "page.html"))
    for _ in range(50):
        if browser.ask("document.querySelector('video').error !== null"):
            pytest.skip("NOTICE: this browser cannot show H.264")
        if browser.ask("document.querySelector('.still')?.complete ?? false"):
            break
        time.sleep(0.1)
    pixel = """(() => { const canvas = document.createElement('canvas').getContext('2d'), still = document.querySelector('.still');
      canvas.drawImage(still, 0, 0); return [...canvas.getImageData(30, 20, 1, 1).data, getComputedStyle(still).display]; })()"""
    red, green, blue, alpha, shown = browser.ask(pixel)
    assert green > 150 > max(red, blue)
    assert (alpha, shown) == (255, "none")  # on the screen there is the film itself
    assert browser.problems() == []
