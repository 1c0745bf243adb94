"""Reads side by side and ahead: all of them, in their order, few at once, with whatever threads there are."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator

import pytest

from beam_jobs.reads import one_ahead, side_by_side


def test_results_come_in_order_and_only_so_many_wait() -> None:
    lock = threading.Lock()
    begun = taken = most = 0

    def read(number: int) -> int:
        nonlocal begun, most
        with lock:
            begun += 1
            most = max(most, begun - taken)
        time.sleep(0.001 * (number % 3))
        return number

    for number, result in enumerate(side_by_side(read, range(100), at_once=4)):
        assert result == number
        with lock:
            taken += 1
    assert taken == 100
    assert most <= 9


def test_an_error_comes_through_and_ends_the_rest() -> None:
    begun = []

    def read(number: int) -> int:
        begun.append(number)
        if number == 3:
            raise FileNotFoundError("3")
        return number

    with pytest.raises(FileNotFoundError):
        list(side_by_side(read, range(1000), at_once=2))
    assert len(begun) < 20


def test_where_no_thread_can_be_had_it_reads_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert list(side_by_side(lambda number: number * 2, range(50))) == [number * 2 for number in range(50)]


class _Block:
    def __init__(self, number: int) -> None:
        self.number = number


def _blocks(count: int, made: list[int]) -> Iterator[_Block]:
    for number in range(count):
        made.append(number)
        yield _Block(number)


def test_the_next_item_is_made_while_the_caller_has_the_last() -> None:
    ready = threading.Event()

    def items() -> Iterator[int]:
        yield 0
        ready.set()
        yield 1

    ahead = one_ahead(items())
    assert next(ahead) == 0
    assert ready.wait(10)  # nobody asked for it yet
    assert list(ahead) == [1]


def test_ahead_is_one_item_and_none_is_held_that_the_caller_has() -> None:
    made: list[int] = []
    taken = 0
    for block in one_ahead(_blocks(50, made)):
        assert block.number == taken
        assert len(made) <= taken + 2
        taken += 1  # noqa: SIM113 - a tuple of enumerate would hold the item
        held = weakref.ref(block)
        del block
        until = time.monotonic() + 60
        while held() is not None and time.monotonic() < until:  # the thread lets go of it a moment later
            time.sleep(0.001)
        assert held() is None
    assert made == list(range(50))


def test_beside_a_large_item_none_is_made() -> None:
    made: list[int] = []
    for block in one_ahead(_blocks(20, made), lambda block: block.number % 3 == 0):
        if block.number % 3 == 0:
            time.sleep(0.01)
            assert made[-1] == block.number


def test_an_error_comes_where_its_item_would_have_come() -> None:
    def items() -> Iterator[int]:
        yield 0
        yield 1
        raise FileNotFoundError("2")

    ahead = one_ahead(items())
    assert [next(ahead), next(ahead)] == [0, 1]
    with pytest.raises(FileNotFoundError):
        next(ahead)


def test_a_caller_that_leaves_waits_for_what_is_at_work() -> None:
    made: list[int] = []
    ahead = one_ahead(_blocks(50, made))
    next(ahead)
    ahead.close()
    assert len(made) <= 2
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("pileshard-one-ahead")]


def test_where_no_thread_can_be_had_items_come_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert list(one_ahead(iter(range(1, 50)))) == list(range(1, 50))


def test_where_a_thread_can_be_had_only_later_no_item_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    start, refused = threading.Thread.start, []

    def refuse_once(self: threading.Thread) -> None:
        if not refused:
            refused.append(1)
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse_once)
    assert list(one_ahead(iter(range(1, 50)))) == list(range(1, 50))
