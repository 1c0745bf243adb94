"""Wrong content in whole files: every hash, CRC, size and sum fits, and verify still says what is wrong, and where."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pileshard.audit import framing
from pileshard.audit.report import FaultKind as K
from tests.audit import forged_files, forged_records  # noqa: F401  (they register their cases)
from tests.audit.checking import check_found, run_verify
from tests.audit.forge import Forgery, framed
from tests.audit.forgeries import CASES, largest_shard
from tests.audit.test_damage import CASES as DAMAGE
from tests.data.golden.make_golden import DATASET

#: What a careful forger leaves no trace of.
BYTES = {K.WRONG_SHA256, K.WRONG_SIZE, K.CRC, K.MANIFEST_CHECKSUM, K.MISSING_FILE, K.UNREADABLE, K.MANIFEST}


@pytest.fixture(params=["in one block", "in many blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads shards as they are read, or in blocks of less than a record, so that every check goes across blocks."""
    if request.param == "in many blocks":
        monkeypatch.setattr(framing, "_READ_BYTES", 97)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("name", CASES)
def test_forgery_is_found_by_its_meaning(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    source, forge, traces = CASES[name]
    dataset = Forgery(DATASET if source == "golden" else request.getfixturevalue(source), tmp_path / "dataset")
    expected = forge(dataset)
    faults = check_found(dataset.root, expected)
    kinds = {K(fault["kind"]) for fault in faults}
    assert not kinds & BYTES - traces, faults


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("name", ["golden", "parts_dataset", "exact_dataset", "token_dataset", "wide_dataset"])
def test_forger_who_changes_nothing_is_not_found(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Else the forger's own slips would be what the tests above find."""
    source = DATASET if name == "golden" else request.getfixturevalue(name)
    dataset = Forgery(source, tmp_path / "dataset")
    for shard in dataset.shards:
        dataset.write(shard, dataset.records(shard))
    code, report = run_verify(dataset.root)
    assert (code, report["faults"]) == (0, [])
    for path in source.rglob("*.tfrecord"):
        assert (dataset.root / path.relative_to(source)).read_bytes() == path.read_bytes()


def test_texts_whose_64_bit_keys_are_equal_by_chance_are_no_fault(tmp_path: Path, exact_dataset: Path) -> None:
    dataset = Forgery(exact_dataset, tmp_path / "dataset")
    shard, records = largest_shard(dataset)
    records[1] = replace(records[1], key=records[0].key)
    dataset.write(shard, records)
    assert run_verify(dataset.root)[0] == 0


def test_every_kind_of_fault_is_exercised(tmp_path: Path, other_dataset: Path, request: pytest.FixtureRequest) -> None:
    kinds: set[K] = set()
    for name, damage in DAMAGE.items():
        kinds |= {fault.kind for fault in damage(Forgery(DATASET, tmp_path / f"damage-{name}"), other_dataset)}
    for name, (source, forge, _) in CASES.items():
        if source == "golden":
            kinds.add(forge(Forgery(DATASET, tmp_path / f"forgery-{name}")).kind)
    kinds |= {K.PARTS, K.INPUT, K.TOKENS}  # the last two: test_deep.py
    assert kinds == set(K)


def test_many_faults_of_one_file_are_cut_short_but_for_its_verdict(tmp_path: Path) -> None:
    dataset = Forgery(DATASET, tmp_path / "dataset")
    shard, records = largest_shard(dataset)
    many = [replace(records[0], raw=framed(b"junk"), tokens=b"") for _ in range(1000)]
    dataset.write(shard, many)
    path = dataset.path(shard["path"])
    path.write_bytes(path.read_bytes() + b"x")
    _, report = run_verify(dataset.root)
    mine = [fault for fault in report["faults"] if fault["path"] == shard["path"]]
    assert 100 <= len(mine) < 110
    assert {"wrong_sha256", "wrong_size", "record"} <= {fault["kind"] for fault in mine}
