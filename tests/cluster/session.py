"""What every operation of a mount goes through: latency, faults, what is remembered, the server."""

from __future__ import annotations

import errno
import itertools
import os
import threading
import time
from collections import Counter
from typing import Any

from tests.cluster import kernel
from tests.cluster.connection import Connections
from tests.cluster.faults import Fault, Plan
from tests.cluster.kernel import Attributes, Request
from tests.cluster.nodes import Cache, Nodes


class Session:
    """The state of a mount.

    Attributes:
      connections: to the server.
      latency: seconds that each operation takes at least.
      plan: the faults to inject.
      calls: how often each operation was asked for.
      cache: attributes, absences and listings that may be old.
    """

    def __init__(self, connections: Connections) -> None:
        self.connections = connections
        self.latency = 0.0
        self.plan = Plan([])
        self.calls: Counter[str] = Counter()
        self.cache = Cache()
        self._nodes = Nodes()
        self._hidden = itertools.count()
        self._interrupted: set[int] = set()
        self._unique = threading.local()

    def _call(self, operation: str, *arguments: Any) -> Any:
        unique = self._unique.value
        encoded = [os.fsencode(value) if isinstance(value, str) else value for value in arguments]
        return self.connections.call(operation, *encoded, interrupted=lambda: unique in self._interrupted)

    def _attributes(self, operation: str, *arguments: Any) -> Attributes:
        return Attributes(*self._call(operation, *arguments))

    def _begin(self, operation: str, *paths: str) -> Fault | None:
        """Waits for the latency, and raises the fault that is planned; returns one that comes with success."""
        self.calls[operation] += 1
        if self.latency:
            time.sleep(self.latency)
        plan = self.plan
        fault = plan.decide(operation, *paths)
        if fault is None or fault.error == "short" or fault.done:
            return fault
        if fault.error == "hang":
            plan.over.wait(fault.seconds)
            return None
        raise OSError(getattr(errno, fault.error), operation)

    @staticmethod
    def _end(fault: Fault | None) -> None:
        if fault is not None and fault.done:
            raise OSError(getattr(errno, fault.error), "reported after it was done")

    def _child(self, request: Request, skip: int) -> str:
        name = os.fsdecode(request.body[skip:].split(b"\0", 1)[0])
        parent = self._nodes[request.node].path
        return f"{parent}/{name}" if parent else name

    def _stat(self, path: str) -> Attributes:
        known, found = self.cache.attributes(path)
        if not known:
            try:
                found = self._attributes("stat", path)
            except FileNotFoundError:
                found = None
            self.cache.keep(path, found)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such file")
        return found

    def _entry(self, path: str, attributes: Attributes) -> bytes:
        return kernel.entry_reply(self._nodes.found(path, attributes.ino).number, attributes)

    def _changing(self, path: str, operation: str, *arguments: Any) -> Any:
        """Calls what changes a path: whatever came of it, nothing old is told of the path from now on."""
        try:
            return self._call(operation, *arguments)
        finally:
            self.cache.changed(path)
