"""A headless Chromium, driven by its own DevTools protocol: no driver program and no package is needed beside it.

https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
START_SECONDS = 60.0
ANSWER_SECONDS = 30.0
DESKTOP = (1280, 900)
PHONE = (375, 812)
_KEYS = {
    "Tab": ("Tab", 9, ""),
    "Enter": ("Enter", 13, "\r"),
    "ArrowLeft": ("ArrowLeft", 37, ""),
    "/": ("Slash", 191, "/"),
}


def program() -> str:
    """Path of Chromium. Skips the test where there is none (fails if ELASTRAIN_REQUIRE_BROWSER=1)."""
    named = os.environ.get("ELASTRAIN_BROWSER")
    found = named or next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        reason = "there is no Chromium: neither $ELASTRAIN_BROWSER nor PATH names one (scripts/get-chromium)"
        if os.environ.get("ELASTRAIN_REQUIRE_BROWSER") == "1":
            pytest.fail(f"ELASTRAIN_REQUIRE_BROWSER=1, but {reason}", pytrace=False)
        pytest.skip(reason)
    return found


class Page:
    """One tab. Everything that its console was told stays in ``complaints``, if it is a warning or an error."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.complaints: list[str] = []
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its result."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        async with asyncio.timeout(ANSWER_SECONDS):
            return await answer

    async def listen(self) -> None:
        """Take in what the browser says. Until the tab is closed."""
        async for message in self._socket:
            told = message.json()
            if "id" in told:
                answer = self._answers.pop(told["id"])
                if answer.done():
                    continue
                if "error" in told:
                    answer.set_exception(AssertionError(told["error"]))
                else:
                    answer.set_result(told["result"])
            else:
                self._complain(told["method"], told["params"])

    def _complain(self, method: str, told: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = told["exceptionDetails"]
            self.complaints.append(str(details.get("exception", {}).get("description") or details["text"]))
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.complaints.append(" ".join(str(a.get("value", a.get("description"))) for a in told["args"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")

    async def open(self, url: str) -> None:
        await self.send("Page.navigate", url=url)

    async def look(self, size: tuple[int, int] = DESKTOP, *, dark: bool = False) -> None:
        """As a screen of this size shows it; narrow ones are phones."""
        width, height = size
        phone = width < 600
        await self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.send("Emulation.setEmulatedMedia", features=[scheme])

    async def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        told = await self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, f"{expression}: {told['exceptionDetails']}"
        return told["result"].get("value")

    async def until(self, expression: str, within: float = 20.0) -> Any:
        """The first true value of an expression; what the page shows instead is in the error."""
        try:
            async with asyncio.timeout(within):
                while not (value := await self.ask(expression)):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        except TimeoutError:
            shown = await self.ask("document.body ? document.body.innerText : ''")
            raise AssertionError(f"not within {within:g} s: {expression}\n{self.complaints}\n{shown}") from None
        return value

    async def text(self, selector: str = "body") -> str:
        """What a person sees of an element, in one line."""
        return " ".join(str(await self.ask(f"document.querySelector({selector!r})?.innerText ?? ''")).split())

    async def press(self, key: str) -> None:
        code, number, text = _KEYS[key]
        for kind in ("keyDown", "keyUp"):
            told = {"text": text} if text and kind == "keyDown" else {}
            await self.send(
                "Input.dispatchKeyEvent", type=kind, key=key, code=code, windowsVirtualKeyCode=number, **told
            )

    async def picture(self, path: Path, *, whole: bool = False) -> None:
        """A screenshot as PNG; ``whole``: also of what one would have to scroll for."""
        taken = await self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(taken["data"]))  # noqa: ASYNC240


@contextlib.asynccontextmanager
async def page() -> AsyncIterator[Page]:
    """A tab of a browser of its own, which is ended with it."""
    with tempfile.TemporaryDirectory(prefix="elastrain-browser-", ignore_cleanup_errors=True) as home:
        flags = [
            "--headless=new", "--remote-debugging-port=0", f"--user-data-dir={home}", "--no-first-run", "--disable-gpu",
            "--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-extensions",
            "--disable-component-update", "--hide-scrollbars", "--mute-audio", "--no-proxy-server", "about:blank",
        ]  # fmt: skip
        with (Path(home) / "log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                program(), *flags, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            port = await _port(Path(home), process)
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    targets = await answer.json(content_type=None)
                url = next(t["webSocketDebuggerUrl"] for t in targets if t["type"] == "page")
                async with session.ws_connect(url, max_msg_size=0) as socket:
                    tab = Page(socket)
                    listening = asyncio.create_task(tab.listen())
                    for domain in ("Page", "Runtime", "Log"):
                        await tab.send(f"{domain}.enable")
                    await tab.look()
                    yield tab
                    listening.cancel()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with its helpers, which share its session
            await process.wait()


async def _port(home: Path, process: asyncio.subprocess.Process) -> int:
    """On which it listens: the first line of a file that it writes."""
    told = home / "DevToolsActivePort"
    try:
        async with asyncio.timeout(START_SECONDS):
            while not (told.exists() and told.read_text().strip()):
                assert process.returncode is None, (home / "log").read_text()[-2000:]
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"Chromium does not answer:\n{(home / 'log').read_text()[-2000:]}") from None
    return int(told.read_text().split()[0])
