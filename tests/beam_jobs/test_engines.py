"""The same bytes on every engine, and one sentence where one fails."""

from __future__ import annotations

import shutil
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from beam_jobs import engine_run
from beam_jobs.engines import RUNNERS, choose_engine, warn_once
from pileshard.errors import BuildError, MissingExtraError, OptionError
from tests.beam_jobs.engine_builds import account, await_receipts, command, only_sentence, run, start
from tests.built import run_build, shard_hashes, write_input
from tests.servers.engines import NAMES, RunningEngine, kill, running

EngineOf = Callable[[str], RunningEngine]


@pytest.mark.parametrize("name", NAMES[1:])  # several processes of this machine: test_build.py
def test_the_bytes_are_the_same_on_every_engine(name: str, engine_of: EngineOf, plain: Path, tmp_path: Path) -> None:
    options = {"run_bytes": 100_000, "parts_per_input": 4, "workers": 2}
    run_build(tmp_path / "dataset", beam_args=engine_of(name).beam_args, **options)
    assert shard_hashes(tmp_path / "dataset") == shard_hashes(plain)
    assert account(tmp_path / "dataset") == account(plain)


@pytest.mark.parametrize("name", ["dask", "prism-loopback"])
def test_a_damaged_input_ends_in_one_sentence(
    name: str, engine_of: EngineOf, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    good = write_input(tmp_path / "good.jsonl.zst", [{"text": f"text {n}"} for n in range(50)])
    (tmp_path / "bad.jsonl.zst").write_bytes(Path(good).read_bytes()[:-10])
    inputs = [good, str(tmp_path / "bad.jsonl.zst")]
    with pytest.raises(BuildError, match=r"bad\.jsonl\.zst: truncated") as caught:
        run_build(tmp_path / "dataset", inputs, beam_args=engine_of(name).beam_args, workers=2)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""
    assert not (tmp_path / "dataset" / "manifest.json").exists()


def test_dask_goes_on_without_a_worker_that_was_killed(engine_of: EngineOf, plain: Path, tmp_path: Path) -> None:
    engine = engine_of("dask")
    driver = start(command(engine, tmp_path / "dataset"))
    await_receipts(driver, tmp_path / "dataset", 2)
    kill(engine.workers(driver.pid)[0])
    _, said = driver.communicate(timeout=300)
    assert driver.returncode == 0, said
    assert shard_hashes(tmp_path / "dataset") == shard_hashes(plain)
    assert engine.start_worker is not None
    engine.start_worker()


def test_a_build_that_lost_its_worker_on_prism_says_so_and_continues(
    engine_of: EngineOf, plain: Path, tmp_path: Path
) -> None:
    engine = engine_of("prism-external")
    arguments = command(engine, tmp_path / "dataset")
    driver = start(arguments)
    await_receipts(driver, tmp_path / "dataset", 2)
    for pid in engine.workers(driver.pid):
        kill(pid)
    _, said = driver.communicate(timeout=300)
    if driver.returncode:
        assert "the same command again" in only_sentence(said)
    done = run(arguments)
    assert done.returncode == 0, done.stderr
    assert shard_hashes(tmp_path / "dataset") == shard_hashes(plain)


@pytest.mark.parametrize(("name", "server"), [("dask", "scheduler"), ("prism-loopback", "prism")])
def test_a_server_that_dies_stops_the_build_which_another_engine_continues(
    name: str, server: str, engine_of: EngineOf, plain: Path, tmp_path: Path
) -> None:
    engine_of(name)  # skips where it cannot be had
    output = tmp_path / "dataset"
    with running(name, tmp_path / "engine") as engine:
        if name == "dask":
            engine.beam_args += ("--dask_connection_timeout=5",)
        driver = start(command(engine, output))
        await_receipts(driver, output, 2)
        kill(engine.processes[server].pid)
        _, said = driver.communicate(timeout=300)
    if driver.returncode:
        assert "the same command again" in only_sentence(said)
    run_build(output, run_bytes=100_000, parts_per_input=4)
    assert shard_hashes(output) == shard_hashes(plain)


def test_a_dataset_is_verified_and_repaired_on_an_engine_too(engine_of: EngineOf, plain: Path, tmp_path: Path) -> None:
    output = tmp_path / "dataset"
    shutil.copytree(plain, output)
    shard = next((output / "shards").rglob("*.tfrecord"))
    shard.write_bytes(shard.read_bytes()[:-1])
    beam_args = ["--workers", "2", "--", *engine_of("dask").beam_args]
    base = [sys.executable, "-m", "pileshard"]
    assert shard.name in run([*base, "verify", str(output), *beam_args]).stdout
    done = run([*base, "repair", str(output), *beam_args])
    assert done.returncode == 0, done.stdout + done.stderr
    assert shard_hashes(output) == shard_hashes(plain)


@pytest.fixture
def silent() -> object:
    """A port that takes connections and says nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture
def closed() -> int:
    """A port that takes no connection."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("port", ["silent", "closed"])
@pytest.mark.parametrize(
    "option", ["--runner=DaskRunner --dask_client_address=tcp://", "--runner=PrismRunner --job_endpoint="]
)
def test_a_server_that_does_not_answer_is_told_in_time(
    port: str, option: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_run, "ANSWER_SECONDS", 2)
    address = f"127.0.0.1:{request.getfixturevalue(port)}"
    began = time.monotonic()
    with pytest.raises(BuildError, match=f"nothing answers at {address}"):
        run_build(tmp_path / "dataset", beam_args=(*option.split()[:-1], option.split()[-1] + address), workers=None)
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--runner=SpurkRunner", "no such runner; choose DirectRunner, .*DataflowRunner"),
        ("--runner", "expected one argument"),
        ("--runner=PortableRunner", "needs --job_endpoint=HOST:PORT"),
        ("--runner=PrismRunner --job_endpoint=here", "--job_endpoint=here is not of the form HOST:PORT"),
        ("--runner=DaskRunner --dask_client_adress=tcp://h:1", "knows no option --dask_client_adress=tcp://h:1"),
        ("--runner=DirectRunner --workers=3", "local runner knows no option --workers=3"),
        ("--runner=FlinkRunner --flink_version=0.1", "argument --flink_version: invalid choice"),
        ("--runner=DataflowRunner --no_wait_until_finish", "--no_wait_until_finish"),
        ("--runner=SparkRunner --output_executable_path=a.jar", "--output_executable_path"),
    ],
)
def test_what_no_runner_takes_is_refused_before_anything_is_written(options: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=named) as caught:
        run_build(tmp_path / "dataset", beam_args=tuple(options.split()), workers=2)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "dataset").exists()


@pytest.mark.parametrize("given", ["DaskRunner", "dask", "apache_beam.runners.dask.dask_runner.DaskRunner"])
def test_dask_gets_its_class_and_one_item_a_task(given: str) -> None:
    pytest.importorskip("distributed")
    engine = choose_engine([f"--runner={given}", "--dask_client_address=tcp://h:1"], 3)
    options = engine.options.get_all_options()
    assert options["runner"] == "apache_beam.runners.dask.dask_runner.DaskRunner"
    assert (options["partition_size"], options["npartitions"], options["address"]) == (1, None, "tcp://h:1")


def test_a_users_own_partitions_stay_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("distributed")
    for option, kept in (("--dask_partition_size=7", (7, None)), ("--dask_npartitions=5", (None, 5))):
        caplog.clear()
        warn_once.cache_clear()
        options = choose_engine(["--runner", "DaskRunner", option], 3).options.get_all_options()
        assert (options["partition_size"], options["npartitions"]) == kept
        assert "one after another on one worker" in caplog.text


def test_dask_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'pileshard\[dask\]'"):
        choose_engine(["--runner=DaskRunner"], 1)


def test_runners_of_the_local_machine_are_one() -> None:
    for args in ([], ["--runner=DirectRunner"], ["--runner=direct"], ["--runner=FnApiRunner"]):
        assert choose_engine(args, 4).name == engine_run.LOCAL
    assert set(RUNNERS) >= {"DaskRunner", "PrismRunner", "PortableRunner", "FlinkRunner", "SparkRunner"}


def test_a_job_is_followed_for_longer_than_beam_would() -> None:
    from apache_beam.options.pipeline_options import PortableOptions

    def seconds(*more: str) -> int:
        engine = choose_engine(["--runner=PrismRunner", "--job_endpoint=h:1", *more], 1)
        return int(engine.options.view_as(PortableOptions).job_server_timeout)

    assert seconds() > 7 * 24 * 3600
    assert seconds("--job_server_timeout=5") == 5
