"""How the page looks: contrast of its colours, the order of its links, and what is said of its films."""

from __future__ import annotations

import base64
import json
import re
from importlib import resources
from pathlib import Path

import pytest
from test_report import Elements
from test_report_scores import evaluation
from written_runs import rows_of, write_run

from phasegrad.report import write_report
from phasegrad.report.collect import read_run
from phasegrad.report.videos import caption, newest_videos

CSS = (resources.files("phasegrad.report") / "assets" / "page.css").read_text()
LEAST_CONTRAST = 4.5
MP4, GIF, WEBP = b"\x00\x00\x00\x18ftypmp42" + b"v" * 99, b"GIF89a" + b"g" * 99, b"RIFF\x00\x00\x00\x00WEBP" + b"w" * 99


def palettes() -> dict[str, dict[str, str]]:
    """The three sets of colours: light (and paper), dark by the system, dark by the button."""
    blocks = re.findall(r":root([^{]*)\{([^}]*)\}", CSS)
    found = {key.strip(): dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6})", body)) for key, body in blocks}
    light = found.pop("")
    return {"light": light, **{key: light | colours for key, colours in found.items()}}


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def test_the_contrast_is_the_standards() -> None:
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)


def test_there_are_two_themes_and_dark_is_the_same_both_ways() -> None:
    found = palettes()
    assert len(found) == 3
    system, button = (colours for name, colours in found.items() if name != "light")
    assert system == button != found["light"]


@pytest.mark.parametrize("theme", palettes())
def test_all_text_has_contrast_enough(theme: str) -> None:
    colours = palettes()[theme]
    written = set(re.findall(r"(?<![-\w])color: var\((--[\w-]+)\)", CSS))
    own = {"--on-piece": [name for name in colours if name.startswith("--t-")]}
    own |= {f"--{word}": [f"--{word}-soft", "--surface"] for word in ("good", "fair", "bad")}
    backgrounds = {name: own.get(name, ["--page", "--surface", "--accent-soft"]) for name in written}
    assert {"--ink", "--quiet", "--accent", "--on-piece", "--good", "--fair", "--bad"} <= written
    assert len(own["--on-piece"]) == 8
    for name, each in backgrounds.items():
        for behind in each:
            assert contrast(colours[name], colours[behind]) >= LEAST_CONTRAST, f"{name} on {behind}"


def test_no_text_has_a_colour_outside_the_themes() -> None:
    assert re.findall(r"(?<![-\w])color: (?!var\()(\S+)", CSS) == []
    assert "opacity" not in re.sub(r"u-select \{[^}]*\}", "", CSS)


def test_links_are_in_the_order_of_the_page(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rows_of(20), {"eval": evaluation(1.0)})
    (run / "videos").mkdir()
    (run / "videos" / "step-000000000512.mp4").write_bytes(MP4)
    page = write_report([run], tmp_path / "page.html").read_text()
    nav = page.partition("<nav")[2].partition("</nav>")[0]
    links = re.findall(r'href="#([\w-]+)"', nav)
    assert links[:4] == ["verdict", "learning", "videos", "scores"]
    assert links[-4:] == ["time", "settings", "runs", "about"]
    assert "section-policy-update" in links[4:-4]
    fixed = [link for link in links if not link.startswith("section-")]
    assert fixed == re.findall(r'<section id="([\w-]+)"', page)
    before, after = page.index('id="scores"'), page.index('id="time"')
    assert before < page.index('id="metric-sections"') < after


# ---- films ----


def film(run: Path, name: str, content: bytes, note: object = None) -> Path:
    (run / "videos").mkdir(exist_ok=True)
    (run / "videos" / name).write_bytes(content)
    if note is not None:
        (run / "videos" / name).with_suffix(".json").write_text(json.dumps(note))
    return run / "videos" / name


def test_a_caption_says_seed_step_and_return(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rows_of(5), seed=7)
    note = {"algorithm": "ppg", "env": "CartPole-v1", "seed": 3, "step": 50_000, "returns": [500.0], "levels": None, "deterministic": True}  # fmt: skip
    page = write_report([run], tmp_path / "page.html").read_text()
    assert "<figcaption>" not in page
    film(run, "clip.mp4", MP4, note)
    page = write_report([run], tmp_path / "page.html").read_text()
    assert re.findall("<figcaption>(.*?)</figcaption>", page) == [
        "PPG on CartPole-v1, seed 3, step 50,000: return 500 (greedy actions)"
    ]
    recorded = read_run(run)
    several = film(run, "many.gif", GIF, note | {"returns": [1, 2, 3, 4, 5], "deterministic": False, "levels": "test"})
    assert caption(recorded, several) == (
        "PPG on CartPole-v1, seed 3, step 50,000: returns 1, 2, 3, 4, … (mean of 5: 3) (sampled actions, test levels)"
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("step-000000050000.mp4", "PPG on LunarLander-v3, seed 7, step 50,000"),
        ("step-000000050000-grid.mp4", "PPG on LunarLander-v3, seed 7, step 50,000"),
        ("eval-worst.mp4", "PPG on LunarLander-v3, seed 7: the worst episode of an evaluation"),
        ("holiday.mp4", "PPG on LunarLander-v3, seed 7 (holiday)"),
    ],
)
def test_without_a_note_the_name_says_what_it_can(tmp_path: Path, name: str, words: str) -> None:
    run = write_run(tmp_path / "run", rows_of(5), seed=7)
    assert caption(read_run(run), film(run, name, MP4)) == words


@pytest.mark.parametrize(("name", "content", "kind"), [("a.gif", GIF, "image/gif"), ("a.webp", WEBP, "image/webp")])
def test_gif_and_webp_are_pictures(tmp_path: Path, name: str, content: bytes, kind: str) -> None:
    run = write_run(tmp_path / "run", rows_of(5))
    film(run, name, content)
    film(run, "b" + name[1:], MP4)  # not what it says it is
    found = Elements(write_report([run], tmp_path / "page.html").read_text()).found
    [picture] = [attributes for tag, attributes in found if tag == "img"]
    assert picture["src"] == f"data:{kind};base64," + base64.b64encode(content).decode()
    assert picture["alt"] == "PPG on LunarLander-v3, seed 1 (a)"


def test_one_film_in_several_forms_is_shown_once(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rows_of(5))
    for name, content in (("a.gif", GIF), ("a.mp4", MP4), ("a.webp", WEBP)):
        film(run, name, content)
    assert [file.name for file in newest_videos(read_run(run))] == ["a.mp4"]


def test_a_hostile_note_is_text(tmp_path: Path) -> None:
    evil = '"><script>alert(1)</script>'
    run = write_run(tmp_path / "run", rows_of(5))
    note = {"algorithm": evil, "env": [evil], "seed": {evil: 1}, "step": "9" * 9999, "returns": [evil, 10**400, None], "levels": evil, "deterministic": evil}  # fmt: skip
    film(run, "a.mp4", MP4, note)
    film(run, "b.gif", GIF, [evil])
    (run / "videos" / "c.mp4").write_bytes(MP4)
    (run / "videos" / "c.json").symlink_to("/etc/passwd")
    page = write_report([run], tmp_path / "page.html").read_text()
    assert [tag for tag, _ in Elements(page).found].count("script") == 3
    assert not any(name.startswith("on") for _, attributes in Elements(page).found for name in attributes)
