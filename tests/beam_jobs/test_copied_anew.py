"""An input that was cut off or damaged, and is copied anew with another size: the same build goes on."""

from __future__ import annotations

import gzip
import itertools
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from backports import zstd

from pileshard.audit.verify import verify
from pileshard.errors import BuildError, PileshardError
from tests.built import document, run_build, shard_hashes, write_input


def write_frames(path: Path, documents: int, frames: int) -> str:
    """Writes lines as several zstd frames with checksums."""
    options = {zstd.CompressionParameter.checksum_flag: 1}
    lines = [json.dumps(document(f"text {n} " * 20, f"S{n % 3}")).encode() + b"\n" for n in range(documents)]
    cuts = [documents * at // frames for at in range(frames + 1)]
    data = [b"".join(lines[a:b]) for a, b in itertools.pairwise(cuts)]
    path.write_bytes(b"".join(zstd.compress(part, options=options) for part in data))
    return str(path)


@pytest.fixture
def inputs(tmp_path: Path) -> list[str]:
    """A small input, one of several frames and one of a single frame, all whole."""
    return [
        write_frames(tmp_path / "0.jsonl.zst", 700, 1),
        write_frames(tmp_path / "1.jsonl.zst", 900, 9),
        write_input(tmp_path / "2.jsonl.zst", [document(f"other {n} " * 9, "S1") for n in range(800)]),
    ]


def done_already(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if "done already" in record.message]


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("number", [1, 2])
def test_the_build_goes_on_and_ends_in_the_same_bytes(
    tmp_path: Path, inputs: list[str], parts: int, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    whole = Path(inputs[number]).read_bytes()
    run_build(tmp_path / "undisturbed", inputs, parts_per_input=parts)
    Path(inputs[number]).write_bytes(whole[: int(len(whole) * 0.6)])
    with pytest.raises(PileshardError, match=Path(inputs[number]).name):
        run_build(tmp_path / "dataset", inputs, parts_per_input=parts)
    Path(inputs[number]).write_bytes(whole)
    with caplog.at_level(logging.INFO, "pileshard.build"):
        run_build(tmp_path / "dataset", inputs, parts_per_input=parts)
    assert shard_hashes(tmp_path / "dataset") == shard_hashes(tmp_path / "undisturbed")
    assert verify(str(tmp_path / "dataset"), level="deep").sound
    assert any(f"now {len(whole):,}: it is read from its begin" in record.message for record in caplog.records)
    assert not list((tmp_path / "dataset" / "_build").rglob("*.run"))


def test_inputs_that_were_read_before_are_not_read_again(
    tmp_path: Path, inputs: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The largest input is read first, so the others are read only by a build that leaves it out for now."""
    whole = Path(inputs[1]).read_bytes()
    Path(inputs[1]).write_bytes(whole[:-20])
    stop_at("build.plan_groups", tmp_path / "dataset", inputs, on_bad_input="skip", parts_per_input=3)
    Path(inputs[1]).write_bytes(whole)
    with caplog.at_level(logging.INFO, "pileshard.build"):
        manifest = run_build(tmp_path / "dataset", inputs, parts_per_input=3).manifest
    assert any("tokenize: 6 of 9 items" in message for message in done_already(caplog)), done_already(caplog)
    assert manifest.documents == 2400
    assert all(entry.skipped is None for entry in manifest.inputs)


def stopped(*_: Any) -> None:
    raise BuildError("stopped")


def stop_at(stage: str, output: Path, inputs: list[str], **options: Any) -> None:
    """Runs a build up to a function of the driver."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"beam_jobs.{stage}", stopped)
        with pytest.raises(BuildError, match="stopped"):
            run_build(output, inputs, **options)


def with_damage(data: bytes) -> bytes:
    """The same, with a byte near its end flipped."""
    return data[:-30] + bytes([data[-30] ^ 0xFF]) + data[-29:]


def copy_anew(path: str, data: bytes, *, seconds: int = 5) -> None:
    """Writes a file with a time of change that differs from what it had."""
    before = os.stat(path).st_mtime_ns
    Path(path).write_bytes(data)
    os.utime(path, ns=(before, before + seconds * 10**9))


def test_an_input_that_was_read_whole_must_not_change(tmp_path: Path, inputs: list[str]) -> None:
    stop_at("build.plan_groups", tmp_path / "dataset", inputs, parts_per_input=3)
    write_frames(Path(inputs[1]), 901, 9)
    with pytest.raises(BuildError, match=r"1\.jsonl\.zst had .* bytes, now"):
        run_build(tmp_path / "dataset", inputs, parts_per_input=3)


def test_an_input_that_was_left_out_of_planned_shards_must_not_change(tmp_path: Path, inputs: list[str]) -> None:
    whole = Path(inputs[1]).read_bytes()
    Path(inputs[1]).write_bytes(whole[:-20])
    stop_at("build.merge_items", tmp_path / "dataset", inputs, on_bad_input="skip")
    Path(inputs[1]).write_bytes(whole)
    with pytest.raises(BuildError, match=r"1\.jsonl\.zst had .* bytes, now"):
        run_build(tmp_path / "dataset", inputs, on_bad_input="skip")


def test_a_damaged_input_of_the_same_size_is_read_again_after_it_is_mended(tmp_path: Path, inputs: list[str]) -> None:
    """Of four parts the first are whole, and their receipts hold the hash of all bytes, damaged ones too."""
    whole = Path(inputs[1]).read_bytes()
    run_build(tmp_path / "undisturbed", inputs, parts_per_input=4)
    damaged = with_damage(whole)
    Path(inputs[1]).write_bytes(damaged)
    with pytest.raises(PileshardError, match=r"1\.jsonl\.zst"):
        run_build(tmp_path / "dataset", inputs, parts_per_input=4)
    Path(inputs[1]).write_bytes(whole)
    run_build(tmp_path / "dataset", inputs, parts_per_input=4)
    assert shard_hashes(tmp_path / "dataset") == shard_hashes(tmp_path / "undisturbed")


@pytest.mark.parametrize("touched", [True, False])
def test_damage_in_the_line_at_a_cut_leaves_nothing_behind(tmp_path: Path, touched: bool) -> None:
    """The part before the cut takes the damaged tail of that line, and only the last part sees that all is damaged."""
    lines = [json.dumps(document(f"{n} " * 40 + "word " * (n % 50), f"S{n % 2}")).encode() for n in range(6000)]
    path = tmp_path / "0.jsonl.gz"
    whole = gzip.compress(b"\n".join(lines) + b"\n", compresslevel=0, mtime=0)
    path.write_bytes(whole)
    times = os.stat(path).st_mtime_ns
    run_build(tmp_path / "undisturbed", [str(path)], parts_per_input=3)
    cuts = json.loads(parts_of(tmp_path, path))["inputs"][0]["cuts"]
    damaged = bytearray(whole)
    damaged[cuts[1] + 3] ^= 1
    assert b"\n" not in whole[cuts[1] - 2 : cuts[1] + 5]
    path.write_bytes(damaged)
    os.utime(path, ns=(times, times))
    output = tmp_path / "dataset"
    with pytest.raises(PileshardError, match=r"0\.jsonl\.gz"):
        run_build(output, [str(path)], parts_per_input=3)
    assert list((output / "_build" / "receipts").glob("tokenize-00000-000-*"))
    for receipt in (output / "_build" / "receipts").glob("tokenize-00000-001-*"):
        receipt.unlink()  # as if it had failed first: its bytes up to the next cut would tell, too
    path.write_bytes(whole)
    os.utime(path, ns=(times, times + touched * 10**9))
    if not touched:  # nothing tells that it is another file, but the two sides of the cut
        with pytest.raises(BuildError, match="changed while it was read"):
            run_build(output, [str(path)], parts_per_input=3)
    run_build(output, [str(path)], parts_per_input=3)
    assert shard_hashes(output) == shard_hashes(tmp_path / "undisturbed")


def parts_of(tmp_path: Path, path: Path) -> bytes:
    """The plan of parts that a build of an input in three parts makes."""
    stop_at("build.plan_groups", tmp_path / "planned", [str(path)], parts_per_input=3)
    return (tmp_path / "planned" / "_build" / "parts.json").read_bytes()


@pytest.mark.parametrize("policy", ["skip", "fail"])
def test_an_input_that_was_left_out_for_now_is_taken_once_it_is_mended(
    tmp_path: Path, inputs: list[str], policy: str
) -> None:
    whole = Path(inputs[1]).read_bytes()
    damaged = with_damage(whole)
    copy_anew(inputs[1], damaged)
    stop_at("build.plan_groups", tmp_path / "dataset", inputs, on_bad_input="skip")
    copy_anew(inputs[1], whole)
    manifest = run_build(tmp_path / "dataset", inputs, on_bad_input=policy).manifest
    assert manifest.documents == 2400


def test_what_was_left_out_is_tried_again_where_that_is_asked(tmp_path: Path, inputs: list[str]) -> None:
    """A mount that cut it off for a moment leaves no sign in the file."""
    whole, times = Path(inputs[1]).read_bytes(), os.stat(inputs[1]).st_mtime_ns
    damaged = with_damage(whole)
    for content in (damaged, whole):
        Path(inputs[1]).write_bytes(content)
        os.utime(inputs[1], ns=(times, times))
        if content is damaged:
            stop_at("build.plan_groups", tmp_path / "dataset", inputs, on_bad_input="skip", parts_per_input=3)
            with pytest.raises(PileshardError, match=r"1\.jsonl\.zst: damaged"):
                run_build(tmp_path / "dataset", inputs, parts_per_input=3)
    assert run_build(tmp_path / "dataset", inputs, parts_per_input=3).manifest.documents == 2400


def test_an_input_that_was_left_out_is_refused_once_shards_are_planned_or_made(
    tmp_path: Path, inputs: list[str]
) -> None:
    whole = Path(inputs[1]).read_bytes()
    damaged = with_damage(whole)
    copy_anew(inputs[1], damaged)
    stop_at("build.merge_items", tmp_path / "dataset", inputs, on_bad_input="skip")
    copy_anew(inputs[1], whole)
    for parts in (1, 3):
        with pytest.raises(BuildError, match="has changed or was touched since"):
            run_build(tmp_path / "dataset", inputs, on_bad_input="skip", parts_per_input=parts)
    copy_anew(inputs[1], damaged)
    run_build(tmp_path / "complete", inputs, on_bad_input="skip")
    copy_anew(inputs[1], whole)
    with pytest.raises(BuildError, match="has changed or was touched since"):
        run_build(tmp_path / "complete", inputs, on_bad_input="skip")


def test_counts_of_a_file_that_was_replaced_do_not_hold(tmp_path: Path) -> None:
    path = tmp_path / "0.jsonl"
    texts = [[json.dumps(document(f"{word} {n}", "S")) + "\n" for n in range(1000)] for word in ("one", "two")]
    path.write_text("".join(texts[0]))
    stop_at("spread.entries", tmp_path / "dataset", [str(path)], parts_per_input=3)
    assert list((tmp_path / "dataset" / "_build" / "receipts").glob("count-*"))
    copy_anew(str(path), "".join(texts[1]).encode())
    run_build(tmp_path / "dataset", [str(path)], parts_per_input=3)
    run_build(tmp_path / "undisturbed", [str(path)], parts_per_input=3)
    assert shard_hashes(tmp_path / "dataset") == shard_hashes(tmp_path / "undisturbed")


def test_a_file_of_the_same_size_may_be_in_another_container(tmp_path: Path) -> None:
    text = "".join(json.dumps(document(f"one {n}", "S")) + "\n" for n in range(1000)).encode()
    packed = zstd.compress(text.replace(b"one", b"two"))
    rest = len(text) - len(packed) - 8
    path = tmp_path / "0.jsonl"
    path.write_bytes(text)
    stop_at("spread.entries", tmp_path / "dataset", [str(path)], parts_per_input=3)
    copy_anew(str(path), packed + b"\x50\x2a\x4d\x18" + rest.to_bytes(4, "little") + bytes(rest))
    manifest = run_build(tmp_path / "dataset", [str(path)], parts_per_input=3).manifest
    assert (manifest.documents, manifest.inputs[0].rejected) == (1000, {})


@pytest.mark.parametrize("stage", ["build.plan_groups", "build.merge_items"])
@pytest.mark.parametrize("killed_at", ["nothing", "changes.receipt_path", "build.write_json"])
def test_what_is_touched_or_copied_is_not_read_again(
    tmp_path: Path, inputs: list[str], caplog: pytest.LogCaptureFixture, stage: str, killed_at: str
) -> None:
    """Before shards are planned and after it, and where the command that settles it is killed on the way."""
    stop_at(stage, tmp_path / "dataset", inputs, parts_per_input=3)
    for path in inputs:
        copy_anew(path, Path(path).read_bytes())
    if killed_at != "nothing":
        stop_at(killed_at, tmp_path / "dataset", inputs, parts_per_input=3)
    with caplog.at_level(logging.INFO, "pileshard.build"):
        run_build(tmp_path / "dataset", inputs, parts_per_input=3)
    assert any("tokenize: 9 of 9 items" in message for message in done_already(caplog)), done_already(caplog)


def test_shards_are_made_again_where_an_input_changed_and_nothing_tells(tmp_path: Path, inputs: list[str]) -> None:
    """Another file of the same size and time is read by a command that cuts inputs in another way."""
    output, times = tmp_path / "dataset", os.stat(inputs[2]).st_mtime_ns
    merged: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        from beam_jobs import items

        merge = items.merge_item

        def some(*args: Any) -> Any:
            if len(merged) == 3:
                raise BuildError("stopped")
            merged.append(merge(*args))
            return merged[-1]

        patch.setattr(items, "merge_item", some)
        with pytest.raises(BuildError, match="stopped"):
            run_build(output, inputs)
    lines = [document(f"again {n} " * 9, "S1") for n in range(800)]
    other = Path(write_input(tmp_path / "other.zst", lines)).read_bytes()
    size = os.stat(inputs[2]).st_size
    skippable = size - len(other) - 8
    assert skippable >= 0 or pytest.skip("the other file is larger")
    Path(inputs[2]).write_bytes(other + b"\x50\x2a\x4d\x18" + skippable.to_bytes(4, "little") + bytes(skippable))
    os.utime(inputs[2], ns=(times, times))
    run_build(output, inputs, parts_per_input=2)
    run_build(tmp_path / "undisturbed", inputs)
    assert shard_hashes(output) == shard_hashes(tmp_path / "undisturbed")
    assert verify(str(output), level="deep").sound


def test_a_receipt_that_comes_late_is_not_taken_for_another_file(tmp_path: Path, inputs: list[str]) -> None:
    """A worker of a killed driver may write it after the file was replaced."""
    output, aside = tmp_path / "dataset", tmp_path / "aside"
    stop_at("build.plan_groups", output, inputs)
    [receipt] = (output / "_build" / "receipts").glob("tokenize-00001-*")
    shutil.move(receipt, aside)
    write_frames(Path(inputs[1]), 1200, 9)
    shutil.move(aside, receipt)
    with pytest.raises(BuildError, match="bytes, now"):  # for all that this command can know, it was read whole
        run_build(output, inputs)
    shutil.move(receipt, aside)
    stop_at("build.plan_groups", output, inputs)
    shutil.move(aside, receipt)
    assert run_build(output, inputs).manifest.documents == 2700
    run_build(tmp_path / "undisturbed", inputs)
    assert shard_hashes(output) == shard_hashes(tmp_path / "undisturbed")
