"""The panel that shows a run: always as many rows, always as wide, whatever there is to say.

Every number has a field of its own width, long names lose their middle, and what is not known yet is a dash. Colour only
repeats what characters say, in colours that dark and light terminals both show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from phasegrad.runs.formats import ASCII_SPARKS, SPARKS, duration, field, score, shorten, sparkline, whole
from phasegrad.runs.view import SHARES, TRAINING_RETURN, RunView, rounded

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

WIDEST = 120
ROWS = 17  # with the frame's two
LABEL, VALUE = 11, 10  # columns
ACCENT = "magenta"
UPDATE = {  # metrics of the row "update", the first of them where there is room for few
    "kl": "kl",
    "entropy": "entropy",
    "clip_fraction": "clip",
    "explained_variance": "explained",
    "value_loss": "value loss",
    "policy_loss": "policy loss",
}
Part = str | tuple[str, str]  # a text, or one with its style
SHORT_SHARES = {"environment": "env", "inference": "act", "auxiliary": "aux"}


class RunPanel:
    """A run as rich draws it; `since` counts the seconds from its last row."""

    def __init__(self, view: RunView, now: str, since: float = 0.0, underway: bool = False) -> None:
        self.view, self.now, self.since, self.underway = view, now, since, underway

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich import box
        from rich.console import Group
        from rich.panel import Panel
        from rich.text import Text

        width = min(options.max_width, WIDEST)
        lines = Lines(max(width - 4, 1), options.ascii_only)
        title = Text(shorten(self.view.title, max(width - 6, 1), lines.dots), "bold")
        with self.view.lock:
            rows = self.rows(lines)
        yield Panel(Group(*rows), title=title, title_align="left", box=box.ROUNDED, width=width)

    def rows(self, lines: Lines) -> list[Text]:
        view, row = self.view, self.view.row
        total, left = f"{view.total:,}", duration(view.seconds_left(self.since))
        rate = rounded(view.pace.rate())
        episodes = whole(row.get("episodes"))
        memory = "-" if view.memory is None else f"{view.memory / 2**20:,.0f} MiB"
        return [
            lines.row("now", (lines.short(self.now), "bold")),
            lines.row("progress", *lines.bar(view.share_done)),
            lines.row("steps", f"{f'{view.step:,}':>{max(len(total), VALUE)}} of {total}"),
            lines.row("iteration", view.phase(self.underway).removeprefix("iteration ").rjust(VALUE)),
            lines.row("time", f"{duration(view.elapsed(self.since)):>{VALUE}} elapsed{left:>{VALUE}} left"),
            lines.row("speed", f"{field(rate, VALUE)} steps/s, last 10 s"),
            lines.row("score", *self.evaluation(view.scores[-1:], "bold", self.beside_score(lines))),
            lines.row("best score", *self.evaluation([view.best] if view.best else [], "", "")),
            self.training_return(lines),
            lines.row("episodes", f"{field(episodes, VALUE, f'{episodes:,}')} of mean length {field(row.get('length_mean'), 7)}"),
            lines.row("spent", self.shares(lines)),
            lines.row("update", self.update(lines)),
            lines.row("memory", f"{memory:>{VALUE}}   checkpoint ", shorten(view.checkpoint, lines.room - 24, lines.dots)),
            lines.row("network", lines.short(view.details or "-")),
            lines.row("directory", lines.short(view.run_dir or "-")),
        ]  # fmt: skip

    def evaluation(self, found: list[tuple[int, float]], style: str, beside: str) -> list[Part]:
        """The mean return of an evaluation, and its step."""
        if not found:
            return [("-".rjust(VALUE), style), " no evaluation yet" if self.underway else " no evaluation"]
        step, mean = found[0]
        parts: list[Part] = [
            (field(mean, VALUE, score(mean)), style),
            f" at step {step:>{len(f'{self.view.total:,}')},}  ",
        ]
        return [*parts, (beside, "" if self.view.test_score is not None else ACCENT)]

    def beside_score(self, lines: Lines) -> str:
        """What levels not trained on give, where there are such; else the evaluations so far."""
        if self.view.test_score is not None:
            return f"test levels {field(self.view.test_score, 7, score(self.view.test_score)).strip()}"
        room = lines.room - VALUE - len(f" at step {self.view.total:,}  ")
        return sparkline([mean for _, mean in self.view.scores], min(room, 20), lines.sparks)

    def training_return(self, lines: Lines) -> Text:
        mean = self.view.row.get("return_mean")
        label = f"{TRAINING_RETURN} "
        history = sparkline(self.view.returns, min(lines.width - len(label) - VALUE - 2, 40), lines.sparks)
        return lines.fitted(label, field(mean, VALUE, score(mean)), "  ", (history, ACCENT))

    def shares(self, lines: Lines) -> str:
        """Of the time of the last seconds: whole fields, as many as there is room for."""
        spent = self.view.pace.shares()
        always = [name for name in SHARES[:4] if name != "auxiliary" or self.view.interval]
        names = [*always, *(name for name in spent if name not in always)]
        texts = []
        for name in names:
            label = SHORT_SHARES.get(name, name) if lines.room < 60 else name
            texts.append(f"{label} " + (f"{spent.get(name, 0.0):>4.0%}" if spent else "   -"))
        return lines.as_many(texts)

    def update(self, lines: Lines) -> str:
        """The update's metrics: whole fields, as many as there is room for."""
        row = self.view.row
        texts = [f"{label} {field(row[name], 7)}" for name, label in UPDATE.items() if row.get(name) is not None]
        return lines.as_many(texts) or "-"


class Lines:
    """Makes rows of exactly so many columns."""

    def __init__(self, width: int, ascii_only: bool) -> None:
        self.width, self.room = width, max(width - LABEL, 1)
        self.sparks, self.blocks, self.dots = (ASCII_SPARKS, "#.", "..") if ascii_only else (SPARKS, "━─", "…")

    def row(self, label: str, *parts: Part) -> Text:
        return self.fitted(label.ljust(LABEL), *parts)

    def fitted(self, *parts: Part) -> Text:
        """One line, cut or filled up to the width."""
        from rich.text import Text

        text = Text.assemble(*parts, no_wrap=True, overflow="crop")
        text.truncate(self.width, overflow="crop", pad=True)
        return text

    def short(self, text: str) -> str:
        """A text that fits beside a label."""
        return shorten(text, self.room, self.dots)

    def bar(self, share: float) -> list[Part]:
        """How much is done; 100% only where all is."""
        length = max(self.room - 5, 1)
        done = int(share * length)
        return [(self.blocks[0] * done, ACCENT), self.blocks[1] * (length - done), f" {int(share * 100):>3}%"]

    def as_many(self, texts: list[str]) -> str:
        """Texts beside each other while there is room."""
        line = ""
        for text in texts:
            longer = f"{line}  {text}" if line else text
            if len(longer) > self.room:
                break
            line = longer
        return line
