"""Debian's Chromium, headless, driven over its DevTools protocol: a page as people will see it."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (Debian: apt-get install chromium)")

_SECONDS = 120


class Page:
    """A page in the browser, and what happened on it.

    Attributes:
      events: all events of the protocol so far.
    """

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._number = 0
        self.events: list[dict[str, Any]] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Calls a method of the protocol and returns its result."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == self._number:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]
            self.events.append(message)

    def open(self, path: Path, *, width: int = 1280, scheme: str = "light", height: int = 900) -> None:
        """Opens a file in a window of a width (CSS pixels) and a colour scheme, and waits until it is drawn."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.events.clear()
        loader = self.call("Page.navigate", url=path.resolve().as_uri())["loaderId"]
        until = time.monotonic() + _SECONDS
        while not self._loaded(loader):
            assert time.monotonic() < until, "the page does not load"
            self.call("Page.getLayoutMetrics")
            time.sleep(0.02)
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def _loaded(self, loader: str) -> bool:
        told = [event["params"] for event in self.events if event["method"] == "Page.lifecycleEvent"]
        return any(entry["name"] == "load" and entry["loaderId"] == loader for entry in told)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def requests(self) -> list[str]:
        """URLs that the page asked for, itself included."""
        sent = [event["params"] for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [entry["request"]["url"] for entry in sent]

    def complaints(self) -> list[str]:
        """Errors, warnings and whatever else reached the console."""
        methods = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(event["params"]) for event in self.events if event["method"] in methods]

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True, format="png")["data"]
        path.write_bytes(base64.b64decode(data))

    def print(self) -> bytes:
        """The page as a PDF."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])


@contextmanager
def browser() -> Iterator[Page]:
    """Runs the browser with one empty page."""
    import websocket

    with tempfile.TemporaryDirectory(prefix="pileshard-browser-", ignore_cleanup_errors=True) as profile:
        command = [
            str(CHROMIUM),
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
            f"--user-data-dir={profile}",
            "--remote-debugging-port=0",
            "--remote-allow-origins=*",
            "about:blank",
        ]
        log = Path(profile, "log")
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            port = _port(Path(profile, "DevToolsActivePort"), process, log)
            target = _page(port)
            # No cookie, no proxy: the socket is of this machine.
            socket = websocket.create_connection(target, timeout=_SECONDS, http_no_proxy=["127.0.0.1"])
            try:
                yield Page(socket)
            finally:
                socket.close()
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _port(path: Path, process: subprocess.Popen[bytes], log: Path) -> int:
    until = time.monotonic() + _SECONDS
    while time.monotonic() < until:
        if path.exists() and (lines := path.read_text().splitlines()):
            return int(lines[0])
        assert process.poll() is None, f"chromium ended: {log.read_text(errors='replace')}"
        time.sleep(0.05)
    raise AssertionError(f"chromium does not answer: {log.read_text(errors='replace')}")


def _page(port: int) -> str:
    import urllib.request

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    until = time.monotonic() + _SECONDS
    while time.monotonic() < until:
        with opener.open(f"http://127.0.0.1:{port}/json/list", timeout=_SECONDS) as answer:
            for target in json.load(answer):
                if target["type"] == "page":
                    return str(target["webSocketDebuggerUrl"])
        time.sleep(0.05)
    raise AssertionError("chromium has no page")
