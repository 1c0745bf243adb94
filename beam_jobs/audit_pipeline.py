"""The items of `pileshard verify` on a Beam runner: one a shard and an input, the same checks, the same report.

Each item leaves what it found in a file, which the driver reads and removes; nothing else passes through the runner.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from beam_jobs.pipeline import beam, run_elements
from pileshard.audit.items import AuditItem, Auditor, ItemResult, Task, item_bytes
from pileshard.errors import PileshardError
from pileshard.format.manifest import Manifest
from pileshard.format.paths import BUILD
from pileshard.format.storage import Storage


class _Work(msgspec.Struct, frozen=True, kw_only=True):
    """What the workers are told: the task, and where results go."""

    task: Task
    results_url: str
    results: str


def beam_engine(temp_url: str | None, beam_args: Sequence[str], workers: int | None) -> Any:
    """The engine for `pileshard.audit.verify.verify` that lets Beam do the items.

    Args:
      temp_url: where the workers' results go for a while; the dataset's `_build` where it is None.
      beam_args: options for Beam.
      workers: processes of the local runner, where no other is named.
    """

    def engine(
        task: Task, manifest: Manifest, items: Sequence[AuditItem], on_bytes: Callable[[int], None]
    ) -> Iterator[ItemResult]:
        work = _Work(task=task, results_url=temp_url or task.url, results=f"{BUILD}/verify-{uuid.uuid4().hex[:12]}")
        storage = Storage(work.results_url, task.storage_options)
        order = sorted(range(len(items)), key=lambda at: -item_bytes(manifest, items[at], task.level))
        elements = [msgspec.json.encode((at, items[at])) for at in order]
        try:
            if elements:
                try:
                    run_elements("Verify", elements, VerifyFn(msgspec.json.encode(work)), beam_args, workers or 1)
                except PileshardError:
                    raise
                except Exception as error:
                    lines = [line for line in str(error).splitlines() if line.strip()]
                    last = lines[-1].strip() if lines else type(error).__name__
                    raise PileshardError(f"the runner stopped: {last}; run the same command again") from error
            for at, item in enumerate(items):
                result: ItemResult = msgspec.json.decode(
                    storage.read_bytes(f"{work.results}/{at}.json"), type=ItemResult
                )
                on_bytes(item_bytes(manifest, item, task.level))
                yield result
        finally:
            storage.remove_tree(work.results)

    return engine


class VerifyFn(beam.DoFn):
    """Does audit items. Elements are a number and an item as JSON; what comes out is the numbers."""

    def __init__(self, work: bytes) -> None:
        self._work = work
        self._auditor: Auditor | None = None

    def setup(self) -> None:
        """Reads the manifest, once a worker."""
        work = msgspec.json.decode(self._work, type=_Work)
        manifest = Manifest.read(Storage(work.task.url, work.task.storage_options))
        self._auditor = Auditor(work.task, manifest)

    def process(self, element: bytes) -> list[int]:
        """Does one item and leaves its result."""
        assert self._auditor is not None
        work = msgspec.json.decode(self._work, type=_Work)
        at, item = msgspec.json.decode(element, type=tuple[int, AuditItem])
        result = self._auditor.do(item, lambda _: None)
        storage = Storage(work.results_url, work.task.storage_options)
        storage.write_bytes(f"{work.results}/{at}.json", msgspec.json.encode(result))
        return [at]
