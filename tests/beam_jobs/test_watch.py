"""Watching a stage: it never goes back, counts what is begun again, and says how long it will take."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_jobs.monitor import Monitor
from beam_jobs.progress import Beat, Stage, StageItem
from beam_jobs.status import stage_line
from beam_jobs.watch import Watch
from pileshard.format.storage import Storage

NAMES = ["merge-0", "merge-1", "merge-2", "merge-3"]


def begin(storage: Storage, size: int = 100) -> Watch:
    return Watch(
        storage, Stage(name="merge", began=0, items=[StageItem(n, f"_build/receipts/{n}", size) for n in NAMES])
    )


def beat(storage: Storage, item: str, done_bytes: float, number: int = 1, pid: int = 1, seconds: float = 10) -> str:
    told = Beat(
        item=item,
        done_bytes=done_bytes,
        documents=int(done_bytes),
        tokens=7 * int(done_bytes),
        host="node",
        pid=pid,
        time=number,
        number=number,
        seconds=seconds,
    )
    path = f"_build/progress/{item}-{pid}.json"
    storage.write_bytes(path, msgspec.json.encode(told))
    return path


def finish(storage: Storage, item: str, documents: int, retries: int = 0) -> None:
    receipt = {"shard": {"documents": documents, "tokens": 7 * documents}, "retries": {"EIO": retries}}
    storage.write_bytes(f"_build/receipts/{item}", msgspec.json.encode(receipt))


def test_documents_tokens_and_retries_are_those_of_receipts_and_heartbeats(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    watch = begin(storage)
    finish(storage, "merge-0", 100, retries=2)
    beat(storage, "merge-1", 40)
    assert watch.look(0.0).bytes_per_second == 0
    finish(storage, "merge-2", 50)
    beat(storage, "merge-1", 60, number=2)
    found = watch.look(10.0)
    assert (found.done_items, found.items, found.done_bytes) == (2, 4, 260)
    assert (found.documents, found.tokens, found.retries) == (210, 1470, 2)
    assert (found.bytes_per_second, found.documents_per_second, found.tokens_per_second) == (12.0, 7.0, 49.0)
    assert found.seconds_left == pytest.approx(140 / 12, abs=0.1)
    assert "2 of 4 items" in stage_line(found)
    assert "2 requests tried again" in stage_line(found)


def test_the_time_that_an_engine_takes_to_begin_does_not_count(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    watch = begin(storage)
    for at in (0.0, 30.0, 60.0):
        assert watch.look(at).seconds_left is None
    finish(storage, "merge-0", 1)
    assert watch.look(70.0).bytes_per_second == 10.0
    assert watch.look(80.0).bytes_per_second == 5.0


def test_the_slowest_item_bounds_the_time_that_is_left(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    watch = begin(storage)
    watch.look(0.0)
    for name in NAMES[:3]:
        finish(storage, name, 1)
    beat(storage, "merge-3", 10, seconds=100)
    found = watch.look(10.0)
    assert found.bytes_per_second == 31.0
    assert found.seconds_left == 900.0


def test_an_item_is_silent_when_its_heartbeat_stands_still_and_again_alive_when_it_moves(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    watch = begin(storage)
    beat(storage, "merge-0", 10)
    [item] = watch.look(0.0).working
    assert not item.silent
    [item] = watch.look(29.0).working
    assert not item.silent
    [item] = watch.look(31.0).working
    assert item.silent
    assert "1 without a sign: merge-0" in stage_line(watch.look(95.0))
    beat(storage, "merge-0", 10, number=2)
    [item] = watch.look(96.0).working
    assert not item.silent


def test_an_item_that_another_process_begins_again_is_counted(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    watch = begin(storage)
    beat(storage, "merge-0", 80)
    assert watch.look(0.0).repeated_items == 0
    beat(storage, "merge-0", 5, pid=2)
    found = watch.look(1.0)
    assert found.repeated_items == 1
    assert found.done_bytes == 80
    assert "1 items begun again" in stage_line(found)


@given(
    looks=st.lists(
        st.tuples(st.sampled_from(NAMES), st.sampled_from(["beat", "gone", "done", "lost"]), st.integers(0, 100)),
        max_size=12,
    )
)
def test_a_stage_never_goes_back_whatever_a_listing_shows(
    looks: list[tuple[str, str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Receipts and heartbeats come, go and come back, as a client of a shared directory may see them."""
    storage = Storage(str(tmp_path_factory.mktemp("watch")))
    watch = begin(storage)
    before = watch.look(0.0)
    for at, (name, what, far) in enumerate(looks, start=1):
        if what == "beat":
            beat(storage, name, far, number=at)
        elif what == "done":
            finish(storage, name, 1)
        else:
            storage.remove(f"_build/{'receipts/' + name if what == 'lost' else f'progress/{name}-1.json'}")
        now = watch.look(float(at))
        assert now.done_bytes >= before.done_bytes
        assert now.done_items >= before.done_items
        assert now.done_bytes <= now.total_bytes
        before = now


def test_a_torn_heartbeat_and_a_receipt_that_is_none_are_no_news(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    watch = begin(storage)
    storage.write_bytes("_build/progress/merge-0-1.json", b'{"item": "mer')
    storage.write_bytes("_build/receipts/merge-1", b"\0\0")
    found = watch.look(0.0)
    assert (found.done_items, found.working, found.documents) == (1, [], 0)


def test_a_new_stage_forgets_the_heartbeats_of_commands_that_were_killed(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    path = beat(storage, "merge-0", 10)
    with Monitor(storage, "merge", "f", []):
        assert path not in storage.files("_build/progress")


def test_each_receipt_is_read_once_and_not_too_many_at_a_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(str(tmp_path))
    monkeypatch.setattr("beam_jobs.watch._RECEIPTS_A_LOOK", 3)
    reads: list[str] = []
    read_bytes = Storage.read_bytes

    def counted(self: Storage, path: str) -> bytes:
        reads.append(path)
        return read_bytes(self, path)

    monkeypatch.setattr(Storage, "read_bytes", counted)
    watch = begin(storage)
    for name in NAMES:
        finish(storage, name, 10)
    assert [watch.look(float(at)).documents for at in range(4)] == [30, 40, 40, 40]
    assert len(reads) == len(set(reads)) == 4
