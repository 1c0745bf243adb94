"""A proxy before an HTTP server that breaks its answers by plan, and one that only makes them late."""

from __future__ import annotations

import contextlib
import http.client
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

#: What can happen to an answer. "short" and "long": a range answer of another length than asked for, whole in itself.
FAULTS = ("refuse", "reset", "500", "503", "429", "truncate", "stall", "slow", "short", "long")

_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}


class Proxy:
    """Stands between clients and a server on loopback.

    Attributes:
      port: where it listens.
      fault: decides what happens to a request: (method, path, the range it reads or "") -> a fault, or "".
      latency: seconds before each answer.
      stall: seconds that a stalled answer takes.
      requests: what was asked for, by (method, range read).
      injected: how often each fault happened.
      most_waiting: how many answers were late at the same time, at most.
    """

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.fault: Callable[[str, str, str], str] = lambda method, path, ranged: ""
        self.latency = 0.0
        self.stall = 30.0
        self.injected: Counter[str] = Counter()
        self.requests: Counter[tuple[str, bool]] = Counter()
        self.bytes = 0
        self.closing = threading.Event()
        self.most_waiting = 0
        self._waiting = 0
        self._lock = threading.Lock()
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def plan(self, seed: int, share: float, faults: tuple[str, ...] = FAULTS) -> None:
        """Breaks a share of the answers at random; one request (path and range) fails at most three times in a row."""
        rng = random.Random(seed)
        lock = threading.Lock()
        row: Counter[tuple[str, str, str]] = Counter()

        def decide(method: str, path: str, ranged: str) -> str:
            request = method, path, ranged
            with lock:
                if row[request] >= 3 or rng.random() >= share:
                    row[request] = 0
                    return ""
                row[request] += 1
                kinds = [fault for fault in faults if ranged or fault not in ("short", "long")]
                return rng.choice(kinds)

        self.fault = decide

    @contextmanager
    def waiting(self) -> Iterator[None]:
        with self._lock:
            self._waiting += 1
            self.most_waiting = max(self.most_waiting, self._waiting)
        yield
        with self._lock:
            self._waiting -= 1

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def proxied(upstream: int) -> Iterator[Proxy]:
    proxy = Proxy(upstream)
    try:
        yield proxy
    finally:
        proxy.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # clients go when they like


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: Proxy

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._upstream = http.client.HTTPConnection("127.0.0.1", self.owner.upstream, timeout=60)

    def finish(self) -> None:
        self._upstream.close()
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _relay(self) -> None:
        owner = self.owner
        body = self._body()
        ranged = (self.headers.get("Range") or self.headers.get("x-ms-range") or "") if self.command == "GET" else ""
        owner.requests[self.command, bool(ranged)] += 1
        fault = owner.fault(self.command, self.path, ranged)
        if owner.latency:
            with owner.waiting():
                owner.closing.wait(owner.latency)
        if fault:
            owner.injected[fault] += 1
        if fault == "refuse":
            return self._reset()
        if fault.isdigit():
            return self._answer(int(fault), [], b"")
        self._upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in ("connection", "expect", "transfer-encoding", "content-length"):
                self._upstream.putheader(name, value)
        if body or self.command in ("PUT", "POST"):
            self._upstream.putheader("Content-Length", str(len(body)))
        self._upstream.endheaders(body)
        answer = self._upstream.getresponse()
        data = answer.read()
        owner.bytes += len(data)
        headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in _HOP]
        if self.command == "HEAD":
            length = answer.getheader("Content-Length")
            headers += [("Content-Length", length)] if length else []
        if fault == "short" and answer.status == 206:
            data = data[: len(data) // 2]
        elif fault == "long" and answer.status == 206:
            data += bytes(100)
        if fault in ("reset", "truncate", "stall"):
            return self._break(fault, answer.status, headers, data)
        if fault == "slow":
            time.sleep(0.2)
        self._answer(answer.status, headers, data)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _relay  # noqa: N815

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if self.command != "HEAD" and status not in (204, 304):
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _break(self, fault: str, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
        """Tells the whole length, and sends half."""
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(data) or 10))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if self.command != "HEAD" else b"")
        self.wfile.flush()
        if fault == "stall":
            self.owner.closing.wait(self.owner.stall)
        if fault == "reset":
            return self._reset()
        self.close_connection = True

    def _reset(self) -> None:
        """Closes the connection by a reset, as a server that dies does."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()
