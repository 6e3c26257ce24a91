"""A headless Chromium for tests, spoken to over its DevTools protocol: open a page, ask it, press, look.

Found on the PATH or by the CHROMIUM environment variable; tests skip with a notice where there is none.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "headless_shell")


def find_chromium() -> str | None:
    given = os.environ.get("CHROMIUM")
    return shutil.which(given) if given else next((found for name in NAMES if (found := shutil.which(name))), None)


@contextlib.contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    """The browser of this machine, which must have one, with a profile of its own."""
    binary = find_chromium()
    assert binary is not None
    with Browser(binary, profile) as opened:
        yield opened


class Browser:
    """One page of one browser; `events` holds what the page reported."""

    def __init__(self, binary: str, profile: Path, width: int = 1280, height: int = 900) -> None:
        from websockets.sync.client import connect

        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        flags += ["--disable-extensions", "--disable-background-networking", "--mute-audio", "--hide-scrollbars"]
        flags += ["--remote-debugging-port=0", f"--user-data-dir={profile}", f"--window-size={width},{height}"]
        self.process = subprocess.Popen(
            [binary, *flags, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.events: list[dict[str, Any]] = []
        self.numbers = itertools.count(1)
        self.cleanup = contextlib.ExitStack()
        try:
            address = self._wait_for_address(profile / "DevToolsActivePort")
            self.socket = self.cleanup.enter_context(connect(address, max_size=None, open_timeout=60))
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        except BaseException:
            self.process.kill()
            raise
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    session: str | None = None

    def _wait_for_address(self, file: Path) -> str:
        for _ in range(600):
            if file.exists() and len(lines := file.read_text().split("\n")) >= 2:
                return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
            if self.process.poll() is not None:
                raise RuntimeError(f"Chromium ended with exit code {self.process.returncode}.")
            time.sleep(0.1)
        raise TimeoutError("Chromium did not start within a minute.")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters}
        self.socket.send(json.dumps(message | ({"sessionId": self.session} if self.session else {})))
        while True:
            answer = json.loads(self.socket.recv(timeout=60))
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    def open(self, address: str) -> None:
        """Load a page and wait for its load event."""
        self.events.clear()
        self.call("Page.navigate", url=address)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(json.loads(self.socket.recv(timeout=60)))

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"].get("exception", {}).get("description")))
        return answer["result"].get("value")

    def settle(self) -> None:
        """Wait until two frames were drawn."""
        self.ask("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def screenshot(self, **clip: float) -> bytes:
        more = {"clip": {**clip, "scale": 1}, "captureBeyondViewport": True} if clip else {}
        return base64.b64decode(self.call("Page.captureScreenshot", format="png", **more)["data"])

    def problems(self) -> list[str]:
        """Errors and warnings of the console, and exceptions."""
        found = []
        for event in self.events:
            parameters = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(json.dumps(parameters["exceptionDetails"])[:500])
            if event.get("method") == "Runtime.consoleAPICalled" and parameters["type"] in (
                "error",
                "warning",
                "assert",
            ):
                found.append(json.dumps(parameters["args"])[:500])
            if event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
                found.append(parameters["entry"]["text"])
        return found

    def requests(self) -> list[str]:
        """Addresses that the page asked for, without those that are data already."""
        asked = [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [address for address in asked if not address.startswith(("data:", "blob:"))]

    def close(self) -> None:
        try:
            self.session = None
            self.call("Browser.close")
            self.process.wait(timeout=20)
        except Exception:
            self.process.kill()
        finally:
            self.cleanup.close()
            self.process.wait(timeout=20)

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
