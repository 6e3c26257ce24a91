"""The panel in a notebook: one output that is replaced in place. IPython is used only where it runs already."""

from __future__ import annotations

import contextvars
import io
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

SECONDS_BETWEEN_FRAMES = 1.0
WIDTH = 80
PAGE = (
    '<pre style="white-space:pre;overflow-x:auto;line-height:normal;'
    "font-family:Menlo,'DejaVu Sans Mono',Consolas,monospace\">{code}</pre>"
)
ACCENT = (184, 72, 184)  # rich's magenta is too dark for a dark notebook


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    library: Any = sys.modules.get("IPython")
    shell = library.get_ipython() if library is not None else None
    return getattr(shell, "kernel", None) is not None


class NotebookScreen:
    """The same as screen.Screen, as an output of the cell."""

    def __init__(self, frame: Callable[[], RenderableType]) -> None:
        from IPython.display import display

        self.frame = frame
        self.closed = threading.Event()
        self.lock = threading.Lock()
        self.handle = display(self._pictures(), raw=True, display_id=True)
        context = contextvars.copy_context()  # by which the kernel knows the cell
        threading.Thread(target=context.run, args=(self._redraw,), name="phasegrad display", daemon=True).start()

    def _redraw(self) -> None:
        while not self.closed.wait(SECONDS_BETWEEN_FRAMES):
            with self.lock:
                if not self.closed.is_set():
                    self.handle.update(self._pictures(), raw=True)

    def close(self) -> None:
        """Leave one last panel."""
        with self.lock:
            if not self.closed.is_set():
                self.closed.set()
                self.handle.update(self._pictures(), raw=True)

    def _pictures(self) -> dict[str, str]:
        from rich.terminal_theme import DEFAULT_TERMINAL_THEME, TerminalTheme

        from phasegrad.runs.consoles import PlainConsole

        console = PlainConsole(
            width=WIDTH, record=True, file=io.StringIO(), force_jupyter=False, force_terminal=True, legacy_windows=False
        )
        console.print(self.frame())
        usual = DEFAULT_TERMINAL_THEME
        colors = [ACCENT if i == 5 else tuple(usual.ansi_colors[i]) for i in range(8)]
        theme = TerminalTheme(tuple(usual.background_color), tuple(usual.foreground_color), colors)  # type: ignore[arg-type]
        text = console.export_text(clear=False)
        return {"text/html": console.export_html(theme=theme, code_format=PAGE, inline_styles=True), "text/plain": text}
