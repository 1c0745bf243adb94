"""Real object stores, one of each kind for the whole run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.readers.made import Made, make_dataset
from tests.remote.reading import upload
from tests.servers.faults import Proxy, proxied
from tests.servers.stores import Store, running
from tests.servers.tools import NotInstallableError

_PACKAGES = {"s3": "s3fs", "gcs": "gcsfs", "azure": "adlfs"}


def _running(kind: str) -> Iterator[Store]:
    pytest.importorskip(_PACKAGES[kind])
    try:
        with running(kind) as store:
            yield store
    except NotInstallableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def s3() -> Iterator[Store]:
    yield from _running("s3")


@pytest.fixture(scope="session")
def gcs() -> Iterator[Store]:
    yield from _running("gcs")


@pytest.fixture(scope="session")
def azure() -> Iterator[Store]:
    yield from _running("azure")


@pytest.fixture(params=["s3", "gcs", "azure"])
def store(request: pytest.FixtureRequest) -> Store:
    """Each of them."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Store)
    return found


@pytest.fixture
def proxy(s3: Store) -> Iterator[Proxy]:
    """A proxy before S3."""
    with proxied(s3.port) as running_proxy:
        yield running_proxy


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A dataset in a directory: chunks of several samples, documents of many sizes, a source of tiny ones."""
    shards = {
        ("a", "train"): [300_000, 300_000, 200_000],
        ("b", "train"): [100_000],
        ("b", "validation"): [9_000],
    }
    return make_dataset(str(tmp_path_factory.mktemp("made") / "root"), shards, mean_document={"a": 300, "b": 7})


@pytest.fixture(scope="session")
def on_s3(s3: Store, made: Made) -> str:
    """The URL of the same dataset on S3."""
    return upload(s3, made.url)
