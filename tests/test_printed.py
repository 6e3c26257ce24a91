"""What commands print and write of texts from files: nothing steers a terminal, a spreadsheet, a page or a formula."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
import sys
import unicodedata
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from terminal import Terminal
from written_runs import rows_of, write_run

import phasegrad as pg
from phasegrad.cli.main import main
from phasegrad.errors import ConfigError, PhasegradWarning, visible
from phasegrad.machine.terminals import PlainStream, as_it_writes, beneath, plain_streams
from phasegrad.report.cells import csv_cell, markdown_text
from phasegrad.report.plot import plot_runs
from phasegrad.runs.consoles import PlainConsole
from phasegrad.runs.reading import MetricsReader
from phasegrad.studies.definition import parse_study
from phasegrad.studies.grid import build_grid
from phasegrad.studies.scores import Scored
from phasegrad.studies.table import build_table
from phasegrad.studies.table_views import as_csv, as_markdown, print_table

EVIL = "\x1b]0;evil\x07\x9b2J\x08\r\u202eabc\u2066"
SMALL: dict[str, Any] = {
    "preset": "none", "num_envs": 2, "num_steps": 8, "num_minibatches": 2, "hidden_sizes": (8,), "seed": 3,
    "compile": "off", "checkpoint_every": 16, "eval_episodes": 0,
}  # fmt: skip


def steering(text: str) -> set[str]:
    """The characters of a text that could do something to a terminal."""
    odd = {c for c in text if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") and c not in "\n\t"}
    return odd | {c for c in text if unicodedata.bidirectional(c) in ("RLE", "LRE", "RLO", "LRO", "PDF", "RLI", "LRI", "FSI", "PDI")}  # fmt: skip


def test_every_character_that_steers_is_spelt_out() -> None:
    everything = "".join(map(chr, range(0x110000)))
    assert steering(visible(everything)) == set()
    assert visible(EVIL) == "\\x1b]0;evil\\x07\\x9b2J\\x08\\x0d\\u202eabc\\u2066"
    assert visible("\ud800") == "\\ud800"
    plain = "Zeile\tzwei\nüñ 日本 😀 👩‍👧 é — “x” \\x1b"
    assert visible(plain) == plain


# Every verb


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("printed") / "run"
    pg.PPO("CartPole-v1", run_dir=run, **SMALL).learn(256).close()
    return run


def spoilt(value: Any, only: str | None = None, name: str = "") -> Any:
    """The same data with something evil at the end of every string, or of those under one name."""
    if isinstance(value, dict):
        return {key: spoilt(entry, only if only != key else None, key) for key, entry in value.items()}
    if isinstance(value, list):
        return [spoilt(entry, only, name) for entry in value]
    return value + EVIL if isinstance(value, str) and only is None else value


def spoil(run: Path, files: tuple[str, ...], only: str | None) -> None:
    for pattern in files:
        for path in run.glob(pattern):
            path.write_text(json.dumps(spoilt(json.loads(path.read_text()), only)))


def commands(run: Path, out: Path) -> list[list[str]]:
    place = str(run)
    return [
        ["eval", place, "--episodes", "1"], ["resume", place, "--total-steps", "272"], ["watch", place, "--once"],
        ["plot", place, "--out", str(out / "c.svg")], ["plot", place, "--out", str(out / "c.csv")],
        ["report", place, "--out", str(out / "r.html")], ["export", place, "--onnx", str(out / "p.onnx")],
        ["video", place, "--out", str(out / "v.gif"), "--max-steps", "2"],
        ["train", "ppo", "--env", "CartPole-v1", "--run-dir", place, "--resume"],
        ["train", "ppo", "--env", "CartPole-v1", "--run-dir", place],
    ]  # fmt: skip


JSON_FILES = ("config.json", "result.json", "checkpoints/*/state.json", "tracking.json")


@pytest.mark.parametrize(
    "only", [None, "versions", "format", "env", "algorithm", "status", "preset", "arch", "sha256", "encoder"]
)
def test_no_verb_prints_what_steers_the_terminal(
    original: Path, tmp_path: Path, only: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(original, tmp_path / "run"))
    spoil(run, JSON_FILES, only)
    evil = commands(run, tmp_path)
    for command in evil if only in (None, "versions", "env") else evil[:7]:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            main(command)
        told = capsys.readouterr()
        assert steering(told.out + told.err) == set(), command
    for written in tmp_path.glob("*.[hcs]*"):
        assert "\x1b" not in written.read_text(errors="replace"), written.name


def test_versions_from_a_file_are_shown_spelt_out(
    original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(original, tmp_path / "run"))
    spoil(run, ("checkpoints/*/state.json",), "versions")
    assert main(["eval", str(run), "--episodes", "1"]) == 0
    assert "\\x1b]0;evil\\x07" in capsys.readouterr().err
    with pytest.warns(PhasegradWarning) as told:
        pg.load(run)
    assert all(steering(str(each.message)) == set() for each in told)


def test_names_of_checkpoints_and_folders(original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Path(shutil.copytree(original, tmp_path / ("run" + EVIL.replace("/", ""))))
    last = sorted((run / "checkpoints").iterdir())[-1]
    last.rename(last.with_name("step-999999999999\x1b]0;evil\x07\u202e"))
    for command in commands(run, tmp_path):
        main(command)
        told = capsys.readouterr()
        assert steering(told.out + told.err) == set(), command


def test_a_study_and_its_failures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = {"env": EVIL, "name": "a" + EVIL}
    (tmp_path / "study.json").write_text(
        json.dumps({"title": EVIL, "environments": [entry], "variants": [{"name": "v" + EVIL}], "seeds": [1], "score_name": EVIL, "steps": 5})
    )  # fmt: skip
    for folder in ("a", "a-x1b-0-evil-x07-x9b2J-x08-x0d-u202eabc-u2066"):
        log = tmp_path / "logs" / folder
        log.mkdir(parents=True)
    assert main(["watch", str(tmp_path), "--once"]) == 0
    told = capsys.readouterr()
    assert steering(told.out + told.err) == set()
    assert "\\x1b]0;evil" in told.out
    text = f"environments = ['CartPole-v1']\ntitle = {json.dumps(EVIL)}\nabout = {json.dumps('x' + EVIL)}"
    assert steering(parse_study(text, "x").title) == set()
    (tmp_path / "s.toml").write_text(f"{json.dumps(EVIL)} = 1")
    assert main(["study", str(tmp_path / "s.toml")]) == 2
    assert steering(capsys.readouterr().err) == set()


@pytest.mark.parametrize(
    "arguments",
    [
        [EVIL], ["train", EVIL], ["train", "ppo", "--env", EVIL], ["train", "ppo", f"--{EVIL}"], ["eval", EVIL], ["study", EVIL],
        ["presets", EVIL], ["envs", EVIL], ["bench", EVIL], ["report", EVIL], ["watch", EVIL], ["completion", EVIL],
        ["tune", EVIL, "--env", "CartPole-v1"], ["train", "ppo", "--env", "CartPole-v1", "--arch", EVIL],
        ["train", "ppo", "--env", "CartPole-v1", f"--env.{EVIL}", EVIL], ["clone", "ppo", "--env", "CartPole-v1", "--data", EVIL],
        ["train", "ppo", "--env", "CartPole-v1", "--preset", f"{EVIL}.json"],
    ],
)  # fmt: skip
def test_arguments_are_echoed_spelt_out(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: Any = main(arguments)
    except SystemExit as error:
        code = error.code
    assert code == 2
    told = capsys.readouterr()
    assert steering(told.out + told.err) == set()


def test_what_an_environment_says_is_spelt_out(tmp_path: Path) -> None:
    """Its exceptions, its warnings and what it prints, in a process of its own; and an error that nobody expected."""
    (tmp_path / "loud.py").write_text(
        "import gymnasium, warnings\n"
        f"EVIL = {EVIL!r}\n"
        "class Loud(gymnasium.Wrapper):\n"
        "    def __init__(self):\n"
        "        super().__init__(gymnasium.make('CartPole-v1'))\n"
        "    def step(self, action):\n"
        "        print('printed', EVIL)\n"
        "        warnings.warn('warned ' + EVIL)\n"
        "        gymnasium.logger.warn('coloured')\n"
        "        raise ValueError('raised ' + EVIL)\n"
        "gymnasium.register('Loud-v0', entry_point=Loud)\n"
    )
    command = [
        sys.executable,
        "-m",
        "phasegrad",
        "train",
        "ppo",
        "--env",
        "loud:Loud-v0",
        "--num-envs",
        "1",
        "--preset",
        "none",
    ]
    command += ["--num-steps", "8", "--num-minibatches", "1", "--total-steps", "64", "--run-dir", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    assert steering(done.stdout + done.stderr) == set()
    assert "\\x1b]0;evil" in done.stderr
    assert "raised" in done.stderr
    script = "import importlib\nmain = importlib.import_module('phasegrad.cli.main')\n"
    script += f"def fail(options): raise RuntimeError({EVIL!r})\nmain.VERBS['presets'] = fail\nmain.main(['presets'])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert "RuntimeError" in done.stderr
    assert steering(done.stderr) == set()


def test_on_a_terminal(original: Path, tmp_path: Path) -> None:
    """Where panels and tables move the cursor themselves."""
    run = Path(shutil.copytree(original, tmp_path / "run"))
    for path in (run / "result.json", run / "config.json"):
        found = json.loads(path.read_text())
        path.write_text(
            json.dumps(found | {name: f"{found.get(name)}{EVIL}" for name in ("env", "status", "arch", "compile")})
        )
    study = tmp_path / "study"
    study.mkdir()
    (study / "study.json").write_text(
        json.dumps(
            {"title": EVIL, "environments": [{"name": "a" + EVIL}], "variants": [{"name": "v" + EVIL}], "seeds": [1]}
        )
    )
    for place in (run, study):
        terminal = Terminal([sys.executable, "-m", "phasegrad", "watch", str(place), "--once"], 100)
        assert terminal.end() == 0
        shown = terminal.output.decode()
        assert "evil" in shown
        assert "\x1b]" not in shown
        assert not {"\x07", "\x9b", "\x08", "\u202e", "\u2066"} & set(shown)


def test_a_console_spells_out_and_keeps_its_own_colours() -> None:
    file = io.StringIO()
    console = PlainConsole(file=file, force_terminal=True, width=60, color_system="standard", highlight=False)
    console.print(f"[bold]a{EVIL}[/bold]")
    assert "\x1b[1m" in file.getvalue()
    assert "\\x1b]0;evil" in file.getvalue()
    assert "\x1b]" not in file.getvalue()


def test_streams_are_put_back_and_displays_get_beneath_them(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout, sys.stderr
    with plain_streams():
        assert isinstance(sys.stdout, PlainStream)
        print(EVIL)
        sys.stderr.writelines([EVIL, "x\n"])
        beneath(sys.stdout).write("\x1b[K\n")
        with as_it_writes():
            print("\x1b[32mgreen\x1b[0m")
        assert sys.stdout.encoding
    assert (sys.stdout, sys.stderr) == before
    told = capsys.readouterr()
    assert told.out == f"{visible(EVIL)}\n\x1b[K\n\x1b[32mgreen\x1b[0m\n"
    assert steering(told.err) == set()


def test_a_terminal_that_knows_few_characters() -> None:
    beneath_it = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    PlainStream(beneath_it).write("ü …\n")
    assert beneath_it.buffer.getvalue() == b"\\xfc \\u2026\n"  # type: ignore[attr-defined]


def test_errors_and_warnings_in_python_too() -> None:
    assert str(ConfigError(f"x {EVIL}")) == f"x {visible(EVIL)}"
    assert str(PhasegradWarning(EVIL)) == visible(EVIL)


def test_names_of_metrics_that_steer_are_no_metrics(tmp_path: Path) -> None:
    row = {"step": 1, "a" + EVIL: 1.0, "b" * 300: 2.0, "\ud800": 3.0, "return_mean": 4.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    assert list(MetricsReader(tmp_path / "metrics.jsonl").new_rows()) == [{"step": 1.0, "return_mean": 4.0}]


# Tables


def table_of(names: tuple[str, ...], title: str = "t") -> dict[str, Any]:
    entries = ", ".join(f"{{ env = 'CartPole-v1', name = {json.dumps(name)} }}" for name in names)
    study = parse_study(
        f"title = {json.dumps(title)}\nenvironments = [{entries}]\nseeds = [1]\nnormalise = 'none'", "x"
    )
    runs = build_grid(study, Path("/nowhere"), {})
    scored = [Scored(run, "return", "finished", -3.5, None, 1.0, 20) for run in runs]
    return build_table(study, scored)


def test_cells_of_a_csv_are_no_formulas_and_numbers_stay_numbers() -> None:
    names = ("=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "plain-name")
    rows = list(csv.DictReader(io.StringIO(as_csv(table_of(names)))))
    assert [row["environment"] for row in rows[: len(names)]] == [f"'{name}" for name in names[:-1]] + [names[-1]]
    assert {row["score"] for row in rows if row["kind"] == "run"} == {"-3.5"}
    assert [csv_cell(value) for value in (-3, -3.5, None, "\t=1", "\r=1", "a\nb", "a=b")] == [
        -3, -3.5, None, "'\t=1", "' =1", "a b", "a=b",
    ]  # fmt: skip


def test_markdown_shows_names_as_they_are() -> None:
    evil = "<script>alert(1)</script> | [x](http://y) `c` **b** _i_ ![](z) &lt; \\"
    shown = as_markdown(table_of((evil[:70], "kl_penalty-0.2"), "# <b>t</b>"))
    body = re.sub(r"\\.", "", shown)
    assert not re.search(r"<[a-z/]", body)
    assert "](" not in body
    assert "`" not in body
    assert "kl_penalty-0.2" in shown, "a plain name stays as it is"
    rows = [line for line in body.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in rows}) == 1, "no name makes a column"
    assert markdown_text("a\n# b") == "a # b"
    assert markdown_text("- a").startswith("\\-")
    assert markdown_text("-3.5") == "-3.5"
    markdown = pytest.importorskip("markdown_it", reason="markdown-it-py, which rich brings, is not installed")
    html = markdown.MarkdownIt("commonmark").enable("table").render(shown)
    assert "<script" not in html
    assert "<a " not in html
    assert "<img" not in html
    assert "alert(1)" in html


def test_a_table_on_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    table = table_of(("a",))
    for row in (*table["cells"], *table["runs"]):
        row["environment"] = "a" + EVIL
    print_table(table | {"score": "s" + EVIL})
    assert steering(capsys.readouterr().out) == set()


def test_cells_of_a_curves_table(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rows_of(20), env="=cmd()", algorithm="=1")
    plot_runs([run], tmp_path / "c.csv")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "c.csv").read_text())))
    assert rows
    assert all(not row["group"].startswith("=") for row in rows)


# Pictures and pages


@pytest.mark.parametrize(
    "label", ["$\\bad$", "$", "_hidden", "x_{", "\\frac", "日本語", "$\\input{/etc/passwd}$", "a\x1b[2Jb", "<b>&"]
)
@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_plot_draws_names_as_they_are(tmp_path: Path, label: str, ending: str) -> None:
    first = write_run(tmp_path / "a", rows_of(20), env=label, algorithm=label)
    second = write_run(tmp_path / "b", rows_of(20), env=label + "2", algorithm=label)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        plot_runs([first, second], tmp_path / f"c.{ending}", title=label)
    assert (tmp_path / f"c.{ending}").stat().st_size > 1000
    others = [str(each.message) for each in told if not issubclass(each.category, PhasegradWarning | ResourceWarning)]
    assert others == []


def test_a_name_that_begins_with_an_underscore_is_in_the_legend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import matplotlib.figure

    seen: list[str] = []
    legend: Callable[..., Any] = matplotlib.figure.Figure.legend

    def noted(self: Any, handles: Any, labels: list[str], **how: Any) -> Any:
        seen.extend(labels)
        return legend(self, handles, labels, **how)

    monkeypatch.setattr(matplotlib.figure.Figure, "legend", noted)
    write_run(tmp_path / "a", rows_of(20), algorithm="_a")
    write_run(tmp_path / "b", rows_of(20), algorithm="_b")
    plot_runs([tmp_path / "a", tmp_path / "b"], tmp_path / "c.png")
    assert len(seen) == 2


def test_a_page_with_names_that_would_break_out(tmp_path: Path) -> None:
    from phasegrad.report import write_report

    names = ("</script><script>x()</script>", "\"'><img src=x onerror=x()>", "\u2028\u2029]]>", EVIL, "$&", "<!--")
    runs = [
        write_run(tmp_path / f"r{i}", rows_of(20), env=name, algorithm=name, arch=name) for i, name in enumerate(names)
    ]
    page = write_report(runs, tmp_path / "r.html").read_text()
    assert page.count("<script") == 3
    assert page.count("</script>") == 3
    assert "<img" not in page
    assert steering(page) == set()
    data = re.search(r'id="report-data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert json.loads(data[1])["runs"]
