"""A plain HTTP server of a folder, with or without range reads."""

from __future__ import annotations

import os
import re
from http.server import SimpleHTTPRequestHandler
from typing import Any


class RangeHandler(SimpleHTTPRequestHandler):
    """Serves files; answers `Range: bytes=a-b` if asked to."""

    protocol_version = "HTTP/1.1"

    def __init__(self, *args: Any, ranges: bool, **options: Any) -> None:
        self._ranges = ranges
        super().__init__(*args, **options)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        path = self.translate_path(self.path)
        if not wanted or not self._ranges or not os.path.isfile(path):
            return super().do_GET()
        size = os.path.getsize(path)
        begin, end = int(wanted[1]), min(int(wanted[2]) + 1, size)
        if begin >= size:
            self.send_response(416)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None
        with open(path, "rb") as file:
            file.seek(begin)
            data = file.read(end - begin)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        return None
