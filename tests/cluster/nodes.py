"""What a mount remembers: the kernel's nodes and their paths, and attributes and listings for some seconds."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from tests.cluster.kernel import Attributes


@dataclass
class Node:
    """A file or directory that the kernel knows.

    Attributes:
      number: the kernel's name for it.
      path: below the mount; the last one it had, where it was removed.
      ino: the server's inode, or 0 for the root.
      lookups: references that the kernel holds.
      handles: how often it is open.
      hidden: removed while it was open: its path is the one that hides it until it is closed.
    """

    number: int
    path: str
    ino: int
    lookups: int = 0
    handles: int = 0
    hidden: bool = False


class Nodes:
    """The nodes of one mount, by number, and by path and inode."""

    def __init__(self) -> None:
        root = Node(1, "", 0, lookups=1)
        self._lock = threading.RLock()
        self._by_number = {1: root}
        self._by_file = {("", 0): root}
        self._next = 2

    def __getitem__(self, number: int) -> Node:
        with self._lock:
            return self._by_number[number]

    def found(self, path: str, ino: int) -> Node:
        """The node of a file that a lookup found; the kernel holds one more reference to it."""
        with self._lock:
            node = self._by_file.get((path, ino))
            if node is None:
                node = self._by_number[self._next] = self._by_file[path, ino] = Node(self._next, path, ino)
                self._next += 1
            node.lookups += 1
            return node

    def forget(self, number: int, lookups: int) -> None:
        with self._lock:
            node = self._by_number.get(number)
            if node is not None and number != 1:
                node.lookups -= lookups
                self._drop_unused(node)

    def handle(self, number: int, change: int) -> Node:
        """Counts an open or a close."""
        with self._lock:
            node = self._by_number[number]
            node.handles += change
            if number != 1:
                self._drop_unused(node)
            return node

    def _drop_unused(self, node: Node) -> None:
        if node.lookups <= 0 and not node.handles:
            del self._by_number[node.number]
            if self._by_file.get((node.path, node.ino)) is node:
                del self._by_file[node.path, node.ino]

    def open_at(self, path: str) -> Node | None:
        """A node of this path that is open on this mount."""
        with self._lock:
            return next((node for (at, _), node in self._by_file.items() if at == path and node.handles), None)

    def moved(self, old: str, new: str) -> None:
        """Lets the nodes at and below a path have another."""
        with self._lock:
            for (path, ino), node in list(self._by_file.items()):
                if path == old or path.startswith(old + "/"):
                    del self._by_file[path, ino]
                    node.path = new + path[len(old) :]
                    self._by_file[node.path, ino] = node


class Cache:
    """Attributes, absences and listings as the server gave them up to `seconds` ago.

    What this mount changes itself it sees at once; what others change, when the time is over.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._lock = threading.Lock()
        self._attributes: dict[str, tuple[float, Attributes | None]] = {}
        self._listings: dict[str, tuple[float, list[tuple[str, int, int]]]] = {}

    def attributes(self, path: str) -> tuple[bool, Attributes | None]:
        """Whether something is remembered, and what: None is an absence."""
        with self._lock:
            until, found = self._attributes.get(path, (0.0, None))
            return until > time.monotonic(), found

    def keep(self, path: str, attributes: Attributes | None) -> None:
        if self.seconds > 0:
            with self._lock:
                self._attributes[path] = time.monotonic() + self.seconds, attributes

    def listing(self, path: str) -> list[tuple[str, int, int]] | None:
        with self._lock:
            until, found = self._listings.get(path, (0.0, []))
            return found if until > time.monotonic() else None

    def keep_listing(self, path: str, entries: list[tuple[str, int, int]]) -> None:
        if self.seconds > 0:
            with self._lock:
                self._listings[path] = time.monotonic() + self.seconds, entries

    def changed(self, *paths: str) -> None:
        """Forgets paths that this mount changed, what is below them, and their directories' listings."""
        with self._lock:
            for path in paths:
                self._attributes.pop(path, None)
                self._listings.pop(path.rpartition("/")[0], None)
                self._attributes.pop(path.rpartition("/")[0], None)
                for below in [other for other in self._attributes if other.startswith(path + "/")]:
                    del self._attributes[below]

    def clear(self) -> None:
        with self._lock:
            self._attributes.clear()
            self._listings.clear()
