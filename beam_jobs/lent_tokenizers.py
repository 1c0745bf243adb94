"""The tokenizers of a process: kept between items, lent to one thread at a time.

Loading and proving one takes a part of a second, so a process keeps them. Some engines do several items at once as
threads of one process (Dask with several threads a worker, Prism), and a tokenizer belongs to one thread: it drops and
rebuilds its engine, learns code points, and counts what it has compared.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, cast

from pileshard.tokenize import Tokenizer, load

#: Definitions of which free tokenizers are kept; a process works for one build at a time.
_KEPT = 2

_lock = threading.Lock()
_free: dict[tuple[bytes, str | None, str, str], list[Tokenizer]] = {}


@contextlib.contextmanager
def lent_tokenizer(data: bytes, eod: str | None, special_tokens: str, engine: str) -> Iterator[Tokenizer]:
    """A tokenizer that no other thread has until the block ends; loaded where none is free.

    Args:
      data: bytes of the tokenizer.json.
      eod: the end-of-document token, or None for the tokenizer's own.
      special_tokens: text, token or reject.
      engine: auto, fast or reference.
    """
    key = (data, eod, special_tokens, engine)
    with _lock:
        free = _free.get(key)
        tokenizer = free.pop() if free else None
    if tokenizer is None:
        tokenizer = load(data, eod=eod, special_tokens=cast(Any, special_tokens), engine=cast(Any, engine))
    try:
        yield tokenizer
    finally:
        with _lock:
            _free.setdefault(key, []).append(tokenizer)
            while len(_free) > _KEPT:
                del _free[next(iter(_free))]
