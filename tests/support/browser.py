"""A real browser for tests: the machine's Chromium without a window, spoken to over a pipe.

The protocol is the browser's own (Chrome DevTools): JSON messages with a zero byte after each, in on descriptor 3 and
out on 4 (``--remote-debugging-pipe``). Nothing is listened on, so a port is neither needed nor open.
https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: names that Chromium has on one system or another; the variable names any other one
VARIABLE = "TRTFORGE_BROWSER"
NAMES = ("chromium", "chromium-browser", "chrome-headless-shell", "google-chrome", "google-chrome-stable")
#: seconds for one answer; a machine with many workers starts a browser slowly
PATIENCE = 120.0


def find_browser() -> str | None:
    """The browser's program; None where there is none."""
    asked = os.environ.get(VARIABLE)
    return asked or next((found for name in NAMES if (found := shutil.which(name))), None)


@dataclass
class Page:
    """A page as it was shown: its session, and all that went wrong or out meanwhile."""

    browser: Browser
    session: str
    faults: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.browser.call(
            "Runtime.evaluate", self.session, expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def picture(self) -> bytes:
        """The whole page as PNG."""
        import base64

        shot = self.browser.call("Page.captureScreenshot", self.session, captureBeyondViewport=True)
        return base64.b64decode(shot["data"])


class Browser:
    """A running browser; :func:`browser` starts and ends one."""

    def __init__(self, inward: int, outward: int) -> None:
        self._inward, self._outward = inward, outward
        self._rest, self._number = b"", 0
        self._pages: dict[str, Page] = {}

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """What the browser answers to one message."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._outward, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self._note(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def show(self, path: Path, *, width: int, height: int = 800, dark: bool = False) -> Page:
        """A file in a page of that many CSS pixels, when it has loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable", session)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", session, **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", session, features=[scheme])
        self.call("Page.navigate", session, url=path.resolve().as_uri())
        done = time.monotonic() + PATIENCE
        while page.run("document.readyState + location.protocol") != "completefile:":
            if time.monotonic() > done:
                raise TimeoutError(f"{path} has not loaded")
            time.sleep(0.02)
        return page

    def _note(self, event: dict[str, Any]) -> None:
        page = self._pages.get(event.get("sessionId", ""))
        if page is None:
            return
        method, said = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            page.requests.append(said["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            page.faults.append(str(said["exceptionDetails"].get("text")))
        elif method == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
            page.faults.append(str([one.get("value") for one in said["args"]]))
        elif method == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            page.faults.append(said["entry"]["text"])

    def _next(self) -> dict[str, Any]:
        done = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._inward], [], [], max(0.0, done - time.monotonic()))
            chunk = os.read(self._inward, 1 << 20) if ready else b""
            if not chunk:
                raise TimeoutError("the browser ended" if ready else "the browser does not answer")
            self._rest += chunk
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))


@contextlib.contextmanager
def browser(program: str, folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own below ``folder``, without sound, extensions or a look at the network."""
    ends = [os.pipe(), os.pipe()]
    # above the child's own 3 and 4, so that neither is overwritten before it is copied
    high = [[fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 16) for end in pair] for pair in ends]
    for pair in ends:
        for end in pair:
            os.close(end)
    (theirs_in, ours_out), (ours_in, theirs_out) = high
    options = [
        "--headless=new",
        "--remote-debugging-pipe",
        f"--user-data-dir={folder / 'profile'}",
        "--no-first-run",
        "--disable-gpu",
        "--disable-extensions",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-dev-shm-usage",  # containers often give it 64 MiB
        "--host-resolver-rules=MAP * ~NOTFOUND",
        *(["--no-sandbox"] if os.geteuid() == 0 else []),  # the sandbox refuses root, as in containers
        "about:blank",
    ]
    silent = [(os.POSIX_SPAWN_OPEN, number, "/dev/null", os.O_RDWR, 0) for number in (0, 1, 2)]
    pipes = [(os.POSIX_SPAWN_DUP2, theirs_in, 3), (os.POSIX_SPAWN_DUP2, theirs_out, 4)]
    pid = os.posix_spawnp(program, [program, *options], os.environ, file_actions=[*silent, *pipes], setpgroup=0)
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Browser(ours_in, ours_out)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ours_in)
        os.close(ours_out)
