"""Every engine on every store: the shared corpus to the same bytes, and no secret where one could be seen."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.beam_jobs.engine_builds import SMALL, command, run
from tests.built import DEMO_INPUTS, shard_hashes
from tests.paths import SHARED, needs_shared
from tests.servers import stores
from tests.servers.engines import NAMES, SECRETS, RunningEngine
from tests.servers.stores import Store
from tests.servers.tools import NotInstallableError

EngineOf = Callable[[str], RunningEngine]
CORPUS = [str(path) for path in sorted((SHARED / "corpus").glob("0[0-3].jsonl.zst"))] if SHARED else []
_PACKAGES = {"s3": "s3fs", "gcs": "gcsfs", "azure": "adlfs"}


@pytest.fixture(scope="module")
def store_of() -> Iterator[Callable[[str], Store]]:
    """Gives a running store by its kind."""
    found: dict[str, Store] = {}
    with contextlib.ExitStack() as stack:

        def get(kind: str) -> Store:
            pytest.importorskip(_PACKAGES[kind])
            if kind not in found:
                try:
                    found[kind] = stack.enter_context(stores.running(kind))
                except NotInstallableError as error:
                    pytest.skip(str(error))
            return found[kind]

        yield get


def storage_options(store: Store) -> list[str]:
    """A store's options as a user gives them."""
    options = store.options()
    return [
        part
        for name, value in options.items()
        for part in ("--storage-option", f"{name}={value if isinstance(value, str) else json.dumps(value)}")
    ]


def build_on(
    engine: RunningEngine, store: Store, inputs: list[str], options: list[str], last: Sequence[str] = ()
) -> str:
    """Builds on a store from inputs that lie there too; returns the dataset's URL."""
    files, below = store.filesystem(), store.url()
    urls = []
    for path in inputs:
        urls.append(f"{below}/in/{Path(path).name}")
        files.put_file(path, urls[-1])
    done = run(command(engine, f"{below}/out", urls, [*options, *storage_options(store), *last]))
    assert done.returncode == 0, done.stderr
    return f"{below}/out"


def stored_hashes(store: Store, url: str) -> dict[str, str]:
    """sha256 of every shard and index, by path below the root, read by another client."""
    files = store.filesystem()
    root = files._strip_protocol(url)
    paths = files.find(f"{root}/shards")
    return {path[len(root) + 1 :]: hashlib.sha256(files.cat_file(path)).hexdigest() for path in sorted(paths)}


@pytest.mark.parametrize("name", ["dask", "prism-external"])
def test_storage_options_reach_the_workers_and_no_log(
    name: str, engine_of: EngineOf, store_of: Callable[[str], Store], plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, store = engine_of(name), store_of("s3")
    options, last = [*SMALL, "--keep-runs"], list[str]()
    if name == "prism-external":  # the last one of a name counts: here the workers find the secret by themselves
        last = ["--storage-option", "secret=env:PILESHARD_TEST_SECRET"]
        monkeypatch.setenv("PILESHARD_TEST_SECRET", SECRETS["PILESHARD_TEST_SECRET"])
    url = build_on(engine, store, DEMO_INPUTS, options, last)
    assert stored_hashes(store, url) == shard_hashes(plain)
    secret = str(store.options()["secret"])
    for what in engine.processes:
        assert secret not in engine.log(what), what
    files = store.filesystem()
    kept = [path for path in files.find(files._strip_protocol(url)) if path.endswith(".json")]
    assert any("receipts" in path for path in kept)
    assert [path for path in kept if secret.encode() in files.cat_file(path)] == []


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Hashes of the shared corpus as one process builds it."""
    output = tmp_path_factory.mktemp("whole") / "dataset"
    arguments = command(RunningEngine("local", (), output), output, CORPUS, corpus_options())
    done = run([argument if argument != "2" else "1" for argument in arguments])
    assert done.returncode == 0, done.stderr
    return shard_hashes(output)


def corpus_options() -> list[str]:
    assert SHARED
    return ["--tokenizer", str(SHARED / "tokenizers" / "gpt2.json"), "--shard-bytes", "16MB", "--run-bytes", "32MiB"]


@needs_shared
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["local", "s3", "gcs", "azure"])
@pytest.mark.parametrize("name", NAMES)
def test_the_shared_corpus_is_the_same_on_every_engine_and_store(
    name: str, kind: str, engine_of: EngineOf, store_of: Callable[[str], Store], whole: dict[str, str], tmp_path: Path
) -> None:
    engine = engine_of(name)
    if kind == "local":
        done = run(command(engine, tmp_path / "dataset", CORPUS, corpus_options()))
        assert done.returncode == 0, done.stderr
        found = shard_hashes(tmp_path / "dataset")
    else:
        store = store_of(kind)
        found = stored_hashes(store, build_on(engine, store, CORPUS, corpus_options()))
    assert len(found) > 50
    assert found == whole
