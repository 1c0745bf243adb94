"""Builds on a shared directory and on a store while storage fails at random operations, kind by kind.

    python -m tests.cluster.storage_faults            # a table: kind, faults injected, how the builds ended

Each build ends with the right bytes, or stops with one sentence that names a file; and then the same command, with the
storage mended, ends with the right bytes. Anything else is an AssertionError.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import s3fs

from pileshard.audit.verify import verify
from pileshard.errors import BuildError
from tests.built import DEMO_INPUTS, run_build, shard_hashes
from tests.cluster.mount import Fault, Mount, mounted
from tests.servers.faults import proxied
from tests.servers.stores import Store, running

#: Short pauses; the number of attempts is that of any build.
OPTIONS: dict[str, Any] = {"run_bytes": 100_000, "retry_seconds": 1.0}

_REMEDY = "run the same command again"


@dataclass(frozen=True)
class Kind:
    """A kind of fault of a mount.

    Attributes:
      name: for the table.
      rules: the faults of a build, from a source of random numbers.
      passes: whether retries must get the build through.
      cache: seconds for which attributes and listings may be old.
    """

    name: str
    rules: Callable[[random.Random], list[Fault]]
    passes: bool = True
    cache: float = 0.0


def _often(operation: str, error: str, done: bool = False, chance: float = 0.15) -> Callable[..., list[Fault]]:
    """A share of the operations of a kind; after each fault the next ones pass, so that what is redone gets through."""

    def rules(rng: random.Random) -> list[Fault]:
        at_random = {"chance": chance, "seed": rng.randrange(1 << 30), "count": 15, "in_a_row": 2, "rest": 40}
        return [Fault(operation, "*", error, done=done, **at_random)]

    return rules


def _once(operation: str, error: str, most: int) -> Callable[..., list[Fault]]:
    """One operation of a kind, one of the first `most`."""
    return lambda rng: [Fault(operation, "*", error, skip=rng.randrange(most))]


MOUNT_KINDS = [
    Kind("any operation: EIO", _often("*", "EIO", chance=0.05)),
    Kind("any operation: ETIMEDOUT", _often("*", "ETIMEDOUT", chance=0.05)),
    Kind("any operation: ESTALE", _often("*", "ESTALE", chance=0.05)),
    Kind("any operation: EIO, listings 1 s old", _often("*", "EIO", chance=0.05), cache=1.0),
    Kind("read: ESTALE", _often("read", "ESTALE")),
    Kind("read and write: half", _often("*", "short", chance=0.5)),
    Kind("write: EIO", _often("write", "EIO")),
    Kind("fsync: EIO", _often("fsync", "EIO")),
    Kind("close: EIO", _often("close", "EIO", chance=0.05)),
    Kind("list: EIO", _often("list", "EIO", chance=0.3)),
    Kind("rename done, said ENOENT", _often("rename", "ENOENT", done=True, chance=0.3)),
    Kind("rename done, said EIO", _often("rename", "EIO", done=True, chance=0.3)),
    Kind("create done, said EEXIST", _often("create", "EEXIST", done=True)),
    Kind("unlink done, said ENOENT", _often("unlink", "ENOENT", done=True)),
    Kind("write: ENOSPC", _once("write", "ENOSPC", 40), passes=False),
    Kind("close: ENOSPC", _once("close", "ENOSPC", 100), passes=False),
    Kind("fsync: EDQUOT", _once("fsync", "EDQUOT", 60), passes=False),
    Kind("close: EDQUOT", _once("close", "EDQUOT", 100), passes=False),
    Kind("create: EROFS", _once("create", "EROFS", 30), passes=False),
    Kind("create: EACCES", _once("create", "EACCES", 30), passes=False),
    Kind("write: EIO that stays", lambda rng: [Fault("write", "*", "EIO", count=10**6, in_a_row=10**6)], passes=False),
]

#: Faults of a store's answers; what a request does is done or not, as the answer is broken before or after.
STORE_KINDS = {
    "store: refused and reset": ("refuse", "reset"),
    "store: 500": ("500",),
    "store: 503": ("503",),
    "store: 429": ("429",),
    "store: answers cut off": ("truncate",),
    "store: answers of another length": ("short", "long"),
    "store: all of these": ("refuse", "reset", "500", "503", "429", "truncate", "short", "long"),
}


@dataclass
class Row:
    """What builds with one kind of fault gave."""

    kind: str
    builds: int = 0
    injected: int = 0
    ended: int = 0
    stopped: int = 0
    said: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return f"{self.kind:42} {self.builds:6} {self.injected:8} {self.ended:12} {self.stopped:18}"


HEADER = f"{'kind':42} {'builds':>6} {'injected':>8} {'ended equal':>12} {'stopped, continued':>18}"


def reference(folder: Path) -> dict[str, str]:
    """Hashes of the shards of an undisturbed build."""
    run_build(folder / "reference")
    return shard_hashes(folder / "reference")


def on_mount(mount: Mount, kind: Kind, seed: int, wanted: dict[str, str], row: Row) -> None:
    """One build whose inputs and output lie on a mount that fails.

    Args:
      mount: the mount; it has the demo's inputs in `inputs`.
      kind: of fault.
      seed: of the choice of operations.
      wanted: the right hashes.
      row: takes the outcome.
    """
    output = mount.path / f"dataset-{seed}"
    inputs = sorted(str(path) for path in (mount.path / "inputs").iterdir())
    rng = random.Random(seed)
    mount.set(cache=kind.cache)
    mount.faults.plan(*kind.rules(rng))

    def build() -> None:
        run_build(output, inputs, **OPTIONS)

    _attempt(build, row, str(mount.path), kind.passes)
    row.injected += mount.faults.counts().total()
    mount.faults.clear()
    mount.set(cache=0.0)
    build()
    assert shard_hashes(output) == wanted, f"{kind.name}, seed {seed}: other bytes"
    assert os.listdir(output / "_build") == ["job.json"], f"{kind.name}, seed {seed}: {os.listdir(output / '_build')}"
    shutil.rmtree(output)


def on_full_disk(mount: Mount, size: int, wanted: dict[str, str], row: Row) -> None:
    """One build on a disk that is full at some point, and is then made larger."""
    output = mount.path / f"full-{size}"
    inputs = sorted(str(path) for path in (mount.path / "inputs").iterdir())
    mount.export.limit(size)

    def build() -> None:
        run_build(output, inputs, space_check=False, **OPTIONS)

    _attempt(build, row, str(mount.path), passes=False)
    row.injected += 1
    mount.export.limit(None)
    build()
    assert shard_hashes(output) == wanted
    shutil.rmtree(output)


def on_store(store: Store, kinds: tuple[str, ...], share: float, seed: int, wanted: dict[str, str], row: Row) -> None:
    """One build from a store to the same store, whose answers are broken on the way.

    Args:
      store: the store.
      kinds: of faults.
      share: of requests that fail.
      seed: of the choice.
      wanted: the right hashes.
      row: takes the outcome.
    """
    url = store.url()
    fs = store.filesystem()
    top = url.split("://", 1)[1]
    for path in DEMO_INPUTS:
        fs.pipe_file(f"{top}/inputs/{Path(path).name}", Path(path).read_bytes())
    with proxied(store.port) as proxy:
        options = store.options(proxy.port)

        def build() -> None:
            run_build(f"{url}/dataset", [f"{url}/inputs/*"], storage_options=options, **OPTIONS)

        proxy.plan(seed, share, kinds)
        _attempt(build, row, url, passes=False)
        row.injected += proxy.injected.total()
        proxy.fault = lambda method, path, ranged: ""
        build()
    with tempfile.TemporaryDirectory() as copy:
        fs.get(f"{top}/dataset/shards", f"{copy}/shards", recursive=True)
        assert shard_hashes(Path(copy)) == wanted, f"{row.kind}, seed {seed}: other bytes"
    assert [path.rsplit("/", 1)[1] for path in fs.find(f"{top}/dataset/_build")] == ["job.json"]
    assert verify(f"{url}/dataset", storage_options=store.options(), level="quick").sound
    fs.rm(top, recursive=True)


def _attempt(build: Callable[[], None], row: Row, where: str, passes: bool) -> None:
    row.builds += 1
    try:
        build()
    except BuildError as error:
        said = str(error)
        assert "\n" not in said, said
        assert where in said, said
        assert _REMEDY in said, said
        assert not passes, f"{row.kind}: {said}"
        row.stopped += 1
        row.said[re.sub(r"[0-9a-f]{6,}|/\S+/|\d+", "*", said)] += 1
    else:
        row.ended += 1


def mount_rows(folder: Path, wanted: dict[str, str], kinds: Sequence[Kind], builds: int) -> Iterator[Row]:
    """Kinds of faults of a mount, each in some builds."""
    with mounted(folder / "shared") as mount:
        (mount.path / "inputs").mkdir()
        for path in DEMO_INPUTS:
            shutil.copy(path, mount.path / "inputs")
        for kind in kinds:
            row = Row(f"mount: {kind.name}")
            for seed in range(builds):
                on_mount(mount, kind, seed, wanted, row)
            yield row
        row = Row("mount: the disk is full")
        for size in random.Random(0).sample(range(100_000, 900_000), builds):
            on_full_disk(mount, size, wanted, row)
        yield row


def store_rows(store: Store, wanted: dict[str, str], kinds: Sequence[str], builds: int) -> Iterator[Row]:
    """Kinds of faults of a store, each in some builds."""
    for name in kinds:
        row = Row(name)
        for seed in range(builds):
            on_store(store, STORE_KINDS[name], 0.1, seed, wanted, row)
        yield row


def total(rows: Iterable[Row]) -> Row:
    """The sum of rows."""
    total = Row("all")
    for row in rows:
        total.builds += row.builds
        total.injected += row.injected
        total.ended += row.ended
        total.stopped += row.stopped
        total.said += row.said
    return total


def main() -> None:
    """Prints the table."""
    builds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    print(HEADER)
    rows = []
    with tempfile.TemporaryDirectory(prefix="pileshard-faults-") as name, running("s3") as store:
        wanted = reference(Path(name))
        s3fs.S3FileSystem.retries = 1  # the client's own repeats would hide faults from what is tested
        of_mount = mount_rows(Path(name), wanted, MOUNT_KINDS, builds)
        for row in itertools.chain(of_mount, store_rows(store, wanted, list(STORE_KINDS), builds)):
            print(row, flush=True)
            rows.append(row)
    print(total(rows))
    for said, count in total(rows).said.most_common():
        print(f"{count:4} {said}")


if __name__ == "__main__":
    main()
