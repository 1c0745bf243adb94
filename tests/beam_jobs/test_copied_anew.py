"""An input that was cut off or damaged, and is copied anew with another size: the same build goes on."""

from __future__ import annotations

import itertools
import json
import logging
from pathlib import Path

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
@pytest.mark.parametrize("kept", [0.4, 0.97])
def test_the_build_goes_on_and_ends_in_the_same_bytes(
    tmp_path: Path, inputs: list[str], parts: int, number: int, kept: float, caplog: pytest.LogCaptureFixture
) -> None:
    whole = Path(inputs[number]).read_bytes()
    run_build(tmp_path / "undisturbed", inputs, parts_per_input=parts)
    Path(inputs[number]).write_bytes(whole[: int(len(whole) * kept)])
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("beam_jobs.build.plan_groups", lambda *_: (_ for _ in ()).throw(BuildError("stopped")))
        with pytest.raises(BuildError, match="stopped"):
            run_build(tmp_path / "dataset", inputs, on_bad_input="skip", parts_per_input=3)
    Path(inputs[1]).write_bytes(whole)
    with caplog.at_level(logging.INFO, "pileshard.build"):
        manifest = run_build(tmp_path / "dataset", inputs, parts_per_input=3).manifest
    assert any("tokenize: 6 of 9 items" in message for message in done_already(caplog)), done_already(caplog)
    assert manifest.documents == 2400
    assert all(entry.skipped is None for entry in manifest.inputs)


def test_an_input_that_was_read_whole_must_not_change(tmp_path: Path, inputs: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("beam_jobs.build.plan_groups", lambda *_: (_ for _ in ()).throw(BuildError("stopped")))
        with pytest.raises(BuildError, match="stopped"):
            run_build(tmp_path / "dataset", inputs, parts_per_input=3)
    write_frames(Path(inputs[1]), 901, 9)
    with pytest.raises(BuildError, match=r"1\.jsonl\.zst had .* bytes, now"):
        run_build(tmp_path / "dataset", inputs, parts_per_input=3)


def test_an_input_that_was_left_out_of_planned_shards_must_not_change(tmp_path: Path, inputs: list[str]) -> None:
    whole = Path(inputs[1]).read_bytes()
    Path(inputs[1]).write_bytes(whole[:-20])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("beam_jobs.build.merge_items", lambda *_: (_ for _ in ()).throw(BuildError("stopped")))
        with pytest.raises(BuildError, match="stopped"):
            run_build(tmp_path / "dataset", inputs, on_bad_input="skip")
    Path(inputs[1]).write_bytes(whole)
    with pytest.raises(BuildError, match=r"1\.jsonl\.zst had .* bytes, now"):
        run_build(tmp_path / "dataset", inputs, on_bad_input="skip")


def test_a_damaged_input_of_the_same_size_is_read_again_after_it_is_mended(tmp_path: Path, inputs: list[str]) -> None:
    """Of four parts the first are whole, and their receipts hold the hash of all bytes, damaged ones too."""
    whole = Path(inputs[1]).read_bytes()
    run_build(tmp_path / "undisturbed", inputs, parts_per_input=4)
    damaged = bytearray(whole)
    damaged[-30] ^= 0xFF
    Path(inputs[1]).write_bytes(damaged)
    with pytest.raises(PileshardError, match=r"1\.jsonl\.zst"):
        run_build(tmp_path / "dataset", inputs, parts_per_input=4)
    Path(inputs[1]).write_bytes(whole)
    run_build(tmp_path / "dataset", inputs, parts_per_input=4)
    assert shard_hashes(tmp_path / "dataset") == shard_hashes(tmp_path / "undisturbed")
