"""A client's connections to the server of an export, one a thread, made anew when the server was away."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from tests.cluster import wire


class Connections:
    """Calls operations of the server.

    Where the server cannot be reached, a call waits until it is back, as a hard NFS mount does, or gives `EIO` after
    `timeout` seconds, as a soft one. A request that was cut off is sent again, so it may be executed twice.
    """

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._session = uuid.uuid4().hex
        self._mine = threading.local()
        self.timeout: float | None = None

    def call(self, operation: str, *arguments: Any, interrupted: Callable[[], bool] = lambda: False) -> Any:
        """The server's answer.

        Raises:
          OSError: the server's error; EIO where it stays away; EINTR where the caller does not wait any more.
        """
        began = time.monotonic()
        while True:
            try:
                connection = self._connection()
                wire.send(connection, (operation, arguments))
                error, answer = wire.receive(connection)
            except (OSError, EOFError):
                self._drop()
                if interrupted():
                    raise OSError(errno.EINTR, "interrupted") from None
                if self.timeout is not None and time.monotonic() - began > self.timeout:
                    raise OSError(errno.EIO, "the server does not answer") from None
                time.sleep(0.05)
                continue
            if error:
                raise OSError(error, operation)
            return answer

    def _connection(self) -> socket.socket:
        connection = getattr(self._mine, "connection", None)
        if connection is None:
            connection = socket.create_connection(self._address, timeout=5)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(60)
            wire.send(connection, self._session)
            self._mine.connection = connection
        return connection

    def _drop(self) -> None:
        connection = getattr(self._mine, "connection", None)
        self._mine.connection = None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()
