"""A tokenizer belongs to one thread at a time, whatever the engine does at once in a process."""

from __future__ import annotations

import threading
import time

from beam_jobs.lent_tokenizers import lent_tokenizer
from tests.built import TOKENIZER


def test_no_two_threads_have_the_same_tokenizer_and_none_is_loaded_needlessly() -> None:
    data = TOKENIZER.read_bytes()
    held: set[int] = set()
    seen: set[int] = set()
    twice = []
    lock = threading.Lock()

    def work() -> None:
        for _ in range(20):
            with lent_tokenizer(data, None, "text", "reference") as tokenizer:
                with lock:
                    twice.append(id(tokenizer) in held)
                    held.add(id(tokenizer))
                    seen.add(id(tokenizer))
                time.sleep(0.001)
                with lock:
                    held.remove(id(tokenizer))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(twice) == 80
    assert not any(twice)
    assert len(seen) <= 4


def test_a_thread_gets_back_what_it_returned() -> None:
    data = TOKENIZER.read_bytes()
    with lent_tokenizer(data, None, "text", "reference") as first:
        pass
    with lent_tokenizer(data, None, "text", "reference") as second:
        assert second is first
