"""Storage fails at random in a build: it ends with the right bytes, or stops with a sentence and continues."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.capability import needs_mounts
from tests.cluster.storage_faults import MOUNT_KINDS, STORE_KINDS, mount_rows, reference, store_rows, total
from tests.servers.stores import Store, running
from tests.servers.tools import NotInstallableError

#: Of the many kinds, those that stand for the others where time is short.
_SHORT = {
    "any operation: EIO, listings 1 s old",
    "any operation: ESTALE",
    "read and write: half",
    "rename done, said ENOENT",
    "create done, said EEXIST",
    "close: EDQUOT",
    "write: EIO that stays",
}


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return reference(tmp_path_factory.mktemp("reference"))


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    pytest.importorskip("s3fs")
    # The client's own repeats would hide faults from what is tested.
    monkeypatch.setattr("s3fs.S3FileSystem.retries", 1, raising=False)
    try:
        with running("s3") as store:
            yield store
    except NotInstallableError as error:
        pytest.skip(str(error))


@needs_mounts
def test_build_on_a_mount_that_fails_ends_equal_or_stops_and_continues(wanted: dict[str, str], tmp_path: Path) -> None:
    kinds = [kind for kind in MOUNT_KINDS if kind.name in _SHORT]
    assert len(kinds) == len(_SHORT)
    found = total(mount_rows(tmp_path, wanted, kinds, builds=1))
    assert found.injected >= 50
    assert found.stopped >= 3


def test_build_on_a_store_that_fails_ends_equal_or_stops_and_continues(wanted: dict[str, str], s3: Store) -> None:
    found = total(store_rows(s3, wanted, ["store: all of these"], builds=1))
    assert found.injected >= 20


@pytest.mark.slow
@needs_mounts
def test_each_kind_of_fault_of_a_mount(wanted: dict[str, str], tmp_path: Path) -> None:
    rows = list(mount_rows(tmp_path, wanted, MOUNT_KINDS, builds=3))
    assert all(row.injected for row in rows), [str(row) for row in rows]
    assert total(rows).injected >= 200


@pytest.mark.slow
def test_each_kind_of_fault_of_a_store(wanted: dict[str, str], s3: Store) -> None:
    rows = list(store_rows(s3, wanted, list(STORE_KINDS), builds=3))
    assert all(row.injected for row in rows), [str(row) for row in rows]
    assert total(rows).injected >= 200
