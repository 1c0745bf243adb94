"""Which operations of a mount fail, how, and how often: bounded by construction."""

from __future__ import annotations

import fnmatch
import random
import re
import threading
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

#: What faults may name: the operations of a mount.
OPERATIONS = (
    *("stat", "list", "open", "create", "read", "write", "fsync", "close", "rename", "unlink"),
    *("mkdir", "rmdir", "truncate", "link", "statfs"),
)

_UNIQUE = re.compile(r"[0-9a-f]{12,}")


@dataclass(frozen=True)
class Fault:
    """A rule for operations that fail.

    Attributes:
      operation: one of OPERATIONS, or "*".
      path: a pattern (fnmatch) for the path below the mount; a rename is matched by its source or its target.
      error: the name of an error number ("EIO", "ESTALE", "ENOSPC", "EDQUOT", "EEXIST", ...); or "short": a read or
        write of half the bytes; or "hang": the operation waits for `seconds`, or for another plan, then succeeds.
      count: at most so many times in all.
      done: the operation is done first, then reported as failed: a rename that took place and gives ENOENT.
      skip: so many matching operations pass before the first that fails.
      chance: which share of the matching operations fail, chosen at random.
      seed: of the choice.
      in_a_row: at most so many times in a row for one operation on one path (long hexadecimal numbers in names, which
        are new in each attempt, count as one).
      rest: after it fired, so many operations of any kind on this mount meet no fault at all.
      seconds: how long a "hang" lasts.
    """

    operation: str
    path: str = "*"
    error: str = "EIO"
    count: int = 1
    done: bool = False
    skip: int = 0
    chance: float = 1.0
    seed: int = 0
    in_a_row: int = 3
    rest: int = 0
    seconds: float = 1.0

    def __post_init__(self) -> None:
        if self.operation not in (*OPERATIONS, "*"):
            raise ValueError(f"no such operation: {self.operation}")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Injected:
    """One fault that took place: number of its rule, operation, path, error."""

    rule: int
    operation: str
    path: str
    error: str


class Plan:
    """Decides on each operation of a mount, in any thread.

    Attributes:
      reads: whether it has rules for reads. Files that are opened then are read past the page cache, so that each
        fault reaches the program: else the kernel reads ahead, and again where that failed.
      injected: the faults that took place, in order.
      over: set when another plan takes its place.
    """

    def __init__(self, rules: list[Fault]) -> None:
        self.reads = any(rule.operation in ("read", "*") for rule in rules)
        self._rules = rules
        self._lock = threading.Lock()
        self._random = [random.Random(rule.seed) for rule in rules]
        self._seen: Counter[int] = Counter()
        self._fired: Counter[int] = Counter()
        self._row: Counter[tuple[str, str]] = Counter()
        self._rest = 0
        self.injected: list[Injected] = []
        self.over = threading.Event()

    def decide(self, operation: str, *paths: str) -> Fault | None:
        """The fault of an operation on one path, or on two."""
        with self._lock:
            if self._rest > 0:
                self._rest -= 1
                return None
            request = operation, _UNIQUE.sub("*", paths[0])
            for number, rule in enumerate(self._rules):
                if self._fires(number, rule, operation, paths, request):
                    self._fired[number] += 1
                    self._row[request] += 1
                    self._rest = rule.rest
                    self.injected.append(Injected(number, operation, paths[0], rule.error))
                    return rule
            self._row[request] = 0
            return None

    def _fires(
        self, number: int, rule: Fault, operation: str, paths: tuple[str, ...], request: tuple[str, str]
    ) -> bool:
        if rule.operation not in ("*", operation) or (rule.error == "short" and operation not in ("read", "write")):
            return False
        if not any(fnmatch.fnmatchcase(path, rule.path) for path in paths):
            return False
        self._seen[number] += 1
        if self._seen[number] <= rule.skip or self._fired[number] >= rule.count:
            return False
        return self._row[request] < rule.in_a_row and self._random[number].random() < rule.chance
