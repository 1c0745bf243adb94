"""The gather stage: fewer runs to read for a shard, and never another byte in it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import beam_jobs.build as driver
from beam_jobs import gather_plan
from beam_jobs.gather_plan import cut_blocks, gathered, plan_gather
from beam_jobs.gather_stage import gather_item
from beam_jobs.inputs import InputFile
from beam_jobs.job import Job, JobRecord, TokenizeItem, TokenizeReceipt
from beam_jobs.merge_stage import merge_item
from beam_jobs.runs import BUCKET_BITS, RunBuffer
from beam_jobs.shard_plan import GroupPlan, group_path, merge_items, plan_groups
from pileshard.errors import BuildError
from pileshard.format.identity import document_keys
from pileshard.format.manifest import Options
from pileshard.format.storage import Storage
from tests.built import DEMO_INPUTS, document, run_build, shard_hashes, write_input

SIZE = 1 << BUCKET_BITS


def make_job(root: Path) -> Job:
    options = Options(
        seed=1,
        shard_bytes=2000,
        validation=0,
        dedup="none",
        special_tokens="text",
        text_key="text",
        source_key="source",
    )
    inputs = [InputFile(url="x", size=1, version="")]
    return Job(
        record=JobRecord(inputs=inputs, tokenizer_sha256="", eod=None, options=options),
        fingerprint="f",
        output=str(root),
        temp_url=str(root),
        engine="auto",
        on_bad_input="fail",
        run_bytes=1 << 20,
        storage_options={},
    )


def make_receipts(storage: Storage, runs_by_input: list[int], sources: int, seed: int) -> list[TokenizeReceipt]:
    """Inputs with some runs each, of a few documents of any source."""
    rng = np.random.default_rng(seed)
    receipts = []
    for number, runs in enumerate(runs_by_input):
        buffer = RunBuffer(np.dtype("<u2"), limit=1 << 20)
        entries = []
        line = 1
        for _ in range(runs):
            count = int(rng.integers(1, 30))
            lines = np.arange(line, line + count)
            line += count
            tokens = rng.integers(0, 9, count)
            groups = [buffer.group_number(f"s{rng.integers(sources)}", "train") for _ in range(count)]
            buffer.add(
                rng.integers(1, 60_000, tokens.sum()).astype("<u2"),
                np.cumsum(tokens),
                np.array(groups),
                document_keys(1, number, lines),
                lines,
                tokens * 3,
                np.zeros(count, dtype=np.uint64),
            )
            entries.append(buffer.write(storage, f"{number}"))
        receipts.append(
            TokenizeReceipt(
                item=TokenizeItem(input=number, part=0, parts=1, engine="fast"),
                input_size=1,
                input_sha256="",
                runs=entries,
            )
        )
    return receipts


def merge_all(job: Job, groups: list[GroupPlan]) -> dict[str, Any]:
    storage = job.storage()
    for number, group in enumerate(groups):
        storage.write_bytes(group_path(number), msgspec.json.encode(group.runs))
    receipts = [merge_item(job, item, 2, 0) for item in merge_items(groups, 2000)]
    return {receipt.item.name: (receipt.shard["sha256"], receipt.shard["index_sha256"]) for receipt in receipts}


@settings(max_examples=25)
@given(
    runs=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    sources=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
)
def test_gathered_runs_give_the_same_shards(
    runs: list[int], sources: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    job = make_job(tmp_path_factory.mktemp("gather"))
    storage = job.storage()
    receipts = make_receipts(storage, runs, sources, seed)
    groups = plan_groups(receipts, storage, 2)
    wanted = merge_all(job, groups)
    plan = plan_gather(receipts, groups, most_runs=1)
    if plan is None:
        assert max(len(group.runs) for group in groups) == 1
        return
    plan.write(storage)
    made = gathered(groups, plan, [gather_item(job, item, 2) for item in plan.items])
    assert sum(part.group.documents for group in made for part in group.runs) == sum(g.documents for g in groups)
    assert merge_all(job, made) == wanted
    # A shard reads from one run a batch, and one more where a block ends within it.
    for item in merge_items(made, 2000):
        touched = [part for part in made[item.group].runs if part.touches(item.key_first, item.key_last)]
        blocks = {(part.key_first, part.key_last) for part in touched}
        assert len(touched) <= len(plan.batches) * len(blocks)


@given(
    weights=st.lists(st.tuples(st.integers(0, SIZE - 1), st.integers(0, 2), st.integers(1, 10**13)), min_size=1),
    count=st.integers(1, 50),
)
def test_blocks_hold_every_key_that_has_a_document_once(weights: list[tuple[int, int, int]], count: int) -> None:
    groups = [GroupPlan((name, "train")) for name in "abc"]
    for bucket, group, weight in weights:
        groups[group].weights[bucket] += weight
    blocks = cut_blocks(groups, count)
    assert len(blocks) <= count
    assert all(len({(span.source, span.split) for span in block}) == len(block) for block in blocks)
    for group in groups:
        spans = [(span.key_first, span.key_last) for block in blocks for span in block if span.source == group.name[0]]
        assert spans == sorted(spans)
        assert all(last < first for (_, last), (first, _) in pairwise(spans))
        for bucket in np.flatnonzero(group.weights).tolist():
            first, last = bucket << 54, ((bucket + 1) << 54) - 1
            assert sum(low <= first and last <= high for low, high in spans) == 1


def test_no_block_is_larger_than_its_share_and_a_bucket() -> None:
    rng = np.random.default_rng(3)
    groups = [GroupPlan((name, "train"), weights=rng.integers(1, 1000, SIZE).tolist()) for name in "abc"]
    total = sum(sum(group.weights) for group in groups)
    for block in cut_blocks(groups, 40):
        weight = sum(
            sum(group.weights[span.key_first >> 54 : (span.key_last >> 54) + 1])
            for span in block
            for group in groups
            if group.name[0] == span.source
        )
        assert weight <= total / 40 + 1000


@pytest.mark.parametrize(
    "options", [{}, {"dedup": "exact", "validation": 0.2}, {"temp_url": "memory://runs-to-gather"}], ids=str
)
def test_a_build_of_many_runs_gathers_them_and_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    inputs = [*DEMO_INPUTS]
    if "dedup" in options:
        lines = [document(f"one of many texts, number {at % 40}", f"s{at % 3}") for at in range(400)]
        inputs += [write_input(tmp_path / f"{name}.jsonl.zst", lines) for name in "xy"]
    run_build(tmp_path / "plain", inputs, **options)
    monkeypatch.setattr(gather_plan, "MOST_RUNS", 2)
    result = run_build(tmp_path / "gathered", inputs, run_bytes=1 << 16, **options)
    assert "gather" in result.seconds
    assert shard_hashes(tmp_path / "gathered") == shard_hashes(tmp_path / "plain")
    assert sorted(path.name for path in (tmp_path / "gathered" / "_build").iterdir()) == ["job.json"]


def test_a_gathered_run_that_vanished_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_build(tmp_path / "plain")
    monkeypatch.setattr(gather_plan, "MOST_RUNS", 2)
    output = tmp_path / "gathered"

    def stop(*_: Any) -> None:
        raise BuildError("stopped before the merge")

    with monkeypatch.context() as patch:
        patch.setattr(driver, "gathered", stop)
        with pytest.raises(BuildError, match="before the merge"):
            run_build(output, run_bytes=1 << 16)
    made = sorted((output / "_build").glob("runs-*/gather-*.run"))
    assert len(made) > 2
    made[0].unlink()
    made[1].write_bytes(made[1].read_bytes()[:-1])
    run_build(output, run_bytes=1 << 16)
    assert shard_hashes(output) == shard_hashes(tmp_path / "plain")
