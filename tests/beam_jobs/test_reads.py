"""Reads side by side: all of them, in their order, few at once, and with whatever threads there are."""

from __future__ import annotations

import threading
import time

import pytest

from beam_jobs.reads import side_by_side


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
