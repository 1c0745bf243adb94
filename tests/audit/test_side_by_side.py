"""Work beside each other: results in order, few of them waiting, and a lost worker told in one sentence."""

from __future__ import annotations

import os
import threading
import time

import pytest

from pileshard.audit.side_by_side import side_by_side
from pileshard.errors import DatasetError, PileshardError


def _slow_first(item: int) -> int:
    time.sleep(0.2 if item == 0 else 0)
    return item * item


def _fail_at_three(item: int) -> int:
    if item == 3:
        raise DatasetError("three")
    return item


@pytest.mark.parametrize("workers", [None, 1, 2])
def test_results_come_in_the_order_of_the_items(workers: int | None) -> None:
    assert list(side_by_side(_slow_first, range(20), workers)) == [(item, item * item) for item in range(20)]


@pytest.mark.parametrize("workers", [None, 1, 2])
def test_error_of_an_item_comes_in_its_place(workers: int | None) -> None:
    found = side_by_side(_fail_at_three, range(8), workers)
    assert [next(found) for _ in range(3)] == [(0, 0), (1, 1), (2, 2)]
    with pytest.raises(DatasetError, match="three"):
        next(found)


def test_few_results_wait_for_their_reader() -> None:
    taken = 0
    done = threading.Semaphore(0)

    def items():  # type: ignore[no-untyped-def]
        nonlocal taken
        for item in range(1000):
            taken += 1
            yield item

    def work(item: int) -> int:
        done.release()
        return item

    found = side_by_side(work, items(), None)
    next(found)
    for _ in range(8):
        assert done.acquire(timeout=60)
    assert taken <= 2 * 16
    found.close()  # type: ignore[attr-defined]


def test_lost_worker_is_told_in_one_sentence() -> None:
    with pytest.raises(PileshardError, match=r"a worker process died .*run the command again"):
        list(side_by_side(os._exit, [3, 3, 3], 2))
