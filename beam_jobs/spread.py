"""The tokenize stage's items: how inputs are cut for this build, counted where they are entered, and dealt out."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection
from typing import Literal

import msgspec

from beam_jobs.count_stage import count_items, entries
from beam_jobs.job import CountReceipt, HashReceipt, Job, TokenizeItem, write_json
from beam_jobs.options import EngineName
from beam_jobs.parts import PARTS, InputParts, Kind, PartsPlan, cut, make_plan
from beam_jobs.stages import Stages
from pileshard.format.storage import Storage
from pileshard.ingest.parts import Entry

_log = logging.getLogger("pileshard.build")

#: An input that should be entered and cannot be is read through, in not more parts than this.
_MOST_THROUGH = 8


def parts_plan(job: Job, asked: int | Literal["auto"], workers: int, storage: Storage | None = None) -> PartsPlan:
    """How the inputs are cut: as an earlier command on this output did, if it was asked the same.

    An input that has another size since (copied anew) is cut anew, and no other.

    Args:
      job: the job.
      asked: parts of an input, or "auto".
      workers: items that the engine does at once.
      storage: the dataset's root, where the plan is kept; None keeps nothing.
    """
    inputs = job.record.inputs
    before: list[InputParts] = []
    if storage is not None:
        with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
            kept = msgspec.json.decode(storage.read_bytes(PARTS), type=PartsPlan)
            if kept.asked == asked and len(kept.inputs) == len(inputs):
                before = kept.inputs
    same = [one.cuts[-1] == entry.size for one, entry in zip(before, inputs, strict=False)]
    if before and all(same):
        return PartsPlan(asked=asked, inputs=before)
    plan = make_plan(inputs, asked, workers, job.storage_options)
    if before:
        chosen = zip(same, before, plan.inputs, strict=True)
        plan = PartsPlan(asked=asked, inputs=[old if keep else new for keep, old, new in chosen])
    if storage is not None:
        write_json(storage, PARTS, plan)
    return plan


class Spread:
    """The items of the tokenize stage.

    Args:
      plan: how the inputs are cut.
      job: the job.
      stages: does the items that count.
    """

    def __init__(self, plan: PartsPlan, job: Job, stages: Stages) -> None:
        self._plan = plan
        self._job = job
        counts = count_items(plan, [entry.state for entry in job.record.inputs])
        sizes = [entry.size for entry in job.record.inputs]
        kind = CountReceipt | HashReceipt
        receipts = stages.do("count", counts, kind, []) if counts else []  # type: ignore[arg-type]
        self._entries = entries(plan, sizes, receipts)
        for number, one in enumerate(plan.inputs):
            if one.way == "enter" and number not in self._entries:
                _log.info("%s: cannot be entered at its frames; it is read through", job.record.inputs[number].url)

    def items(self, doubtful: Collection[int]) -> list[TokenizeItem]:
        """The items of all inputs.

        Args:
          doubtful: inputs that the reference engine does.
        """
        return [
            item
            for number, one in enumerate(self._plan.inputs)
            for item in self._of_input(number, one, "reference" if number in doubtful else self._job.engine)
        ]

    def _of_input(self, number: int, one: InputParts, engine: EngineName) -> list[TokenizeItem]:
        parts: list[Entry] | list[None]
        if number in self._entries:
            parts, sha256 = self._entries[number]
        else:
            if one.way == "enter":
                one = cut(one.cuts[-1], Kind(one.container, False), min(one.parts, _MOST_THROUGH))
            parts, sha256 = [None] * one.parts, ""
        return [
            TokenizeItem(
                input=number,
                part=part,
                parts=len(parts),
                engine=engine,
                begin=one.cuts[part],
                end=None if entry is None and part + 1 == len(parts) else one.cuts[part + 1],
                entry=entry,
                input_sha256=sha256,
                state=self._job.record.inputs[number].state,
            )
            for part, entry in enumerate(parts)
        ]
