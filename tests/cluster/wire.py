"""Messages between a mount and its server: a length, then MessagePack."""

from __future__ import annotations

import socket
import struct
from typing import Any

import msgspec

_LENGTH = struct.Struct("=I")


def send(connection: socket.socket, message: Any) -> None:
    data = msgspec.msgpack.encode(message)
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive(connection: socket.socket) -> Any:
    """The next message; EOFError where the other side is gone."""
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    return msgspec.msgpack.decode(_exactly(connection, length))


def _exactly(connection: socket.socket, length: int) -> bytearray:
    data = bytearray(length)
    view = memoryview(data)
    while len(view):
        got = connection.recv_into(view)
        if not got:
            raise EOFError("the connection was closed")
        view = view[got:]
    return data
