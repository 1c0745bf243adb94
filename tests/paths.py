"""Where the tests find the large shared files: beside the checkout, in a folder that a plain clone does not have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_beside = Path(__file__).resolve().parents[2] / "shared"

#: Folder with corpus/, tokenizers/ and nasty/, or None in a clone without it; PILESHARD_TEST_SHARED names another.
SHARED: Path | None = next(
    (p for p in (Path(os.environ.get("PILESHARD_TEST_SHARED", _beside)),) if (p / "corpus").is_dir()), None
)

needs_shared = pytest.mark.skipif(SHARED is None, reason="needs ../shared (corpus, tokenizers, nasty inputs)")
