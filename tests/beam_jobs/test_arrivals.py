"""Receipts that a shared directory tells of late are waited for."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import msgspec

from beam_jobs.arrivals import arrived
from beam_jobs.build import _Driver
from beam_jobs.job import RECEIPTS, TokenizeReceipt
from beam_jobs.options import BuildOptions
from tests.built import DEMO_INPUTS, TOKENIZER, run_build
from tests.cluster.capability import needs_mounts
from tests.cluster.mount import mounted


@needs_mounts
def test_receipts_that_are_told_of_late_are_waited_for(tmp_path: Path) -> None:
    run_build(tmp_path / "shared/dataset", keep_runs=True)
    os.unlink(tmp_path / "shared/dataset/manifest.json")  # as before the end
    receipts = tmp_path / "shared/dataset" / RECEIPTS
    with mounted(tmp_path / "shared") as mount:
        options = BuildOptions(
            inputs=tuple(DEMO_INPUTS),
            output=str(mount.path / "dataset"),
            tokenizer=str(TOKENIZER),
            shard_bytes=64_000,
            workers=1,
        )
        job = _Driver(options).job
        found = [msgspec.json.decode(path.read_bytes(), type=TokenizeReceipt) for path in receipts.rglob("tokenize-*")]
        items = [receipt.item for receipt in found]
        assert len(items) == len(DEMO_INPUTS)
        os.rename(receipts, tmp_path / "away")
        receipts.mkdir()
        mount.set(cache=3600)
        assert arrived(job, items, TokenizeReceipt, patience=0) == dict.fromkeys(items)
        for path in (tmp_path / "away").iterdir():
            shutil.copy(path, receipts)
        assert arrived(job, items, TokenizeReceipt, patience=0) == dict.fromkeys(items)  # an hour old
        assert arrived(job, items, TokenizeReceipt) == {receipt.item: receipt for receipt in found}

        shutil.rmtree(receipts)
        mount.set(cache=0)
        late = threading.Timer(1, os.rename, (tmp_path / "away", receipts))
        late.start()
        assert arrived(job, items, TokenizeReceipt) == {receipt.item: receipt for receipt in found}
        late.join()
        assert all(path.is_file() for path in receipts.iterdir())
