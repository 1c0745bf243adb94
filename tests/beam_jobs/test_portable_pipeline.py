"""What is sent to an engine: its portable form, for runners too that are not at hand here."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import apache_beam as beam
import msgspec
import pytest
from apache_beam.internal import pickler
from apache_beam.options.pipeline_options import WorkerOptions
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.transforms.display import DisplayData

from beam_jobs.build import _Driver
from beam_jobs.engines import choose_engine
from beam_jobs.job import JOB_TOKENIZER, TokenizeItem, TokenizeReceipt
from beam_jobs.local_runner import local_runner
from beam_jobs.options import BuildOptions
from beam_jobs.pipeline import ItemFn, item_transforms, release
from pileshard.errors import BuildError
from tests.built import DEMO_INPUTS, TOKENIZER
from tests.servers.engines import ROOT

IMAGE = "registry.example/pileshard-beam:1"
ITEM = TokenizeItem(input=0, part=0, parts=1, engine="auto")

#: Command lines of the guide, of runners that are not at hand here.
ELSEWHERE = {
    "flink": f"--runner=FlinkRunner --flink_master=flink:8081 --flink_version=1.20 --parallelism=200 "
    f"--environment_type=DOCKER --environment_config={IMAGE}",
    "flink-pool": "--runner=FlinkRunner --flink_master=flink:8081 --flink_version=1.20 --parallelism=200 "
    "--environment_type=EXTERNAL --environment_config=localhost:50000",
    "spark": f"--runner=SparkRunner --spark_master_url=spark://master:7077 --environment_type=DOCKER "
    f"--environment_config={IMAGE}",
    "portable": f"--runner=PortableRunner --job_endpoint=jobs:8099 --environment_type=DOCKER "
    f"--environment_config={IMAGE}",
    "process": "--runner=PortableRunner --job_endpoint=jobs:8099 --environment_type=PROCESS "
    '--environment_config={"command":"/opt/apache/beam/boot"}',
    "dataflow": f"--runner=DataflowRunner --project=p --region=europe-west4 --temp_location=gs://b/tmp "
    f"--sdk_container_image={IMAGE} --max_num_workers=50 --experiments=use_runner_v2",
}


def portable(options: str, do: ItemFn) -> tuple[beam.Pipeline, beam_runner_api_pb2.Pipeline]:
    """A pipeline of one item, and the form of it that a runner is sent."""
    engine = choose_engine(options.split(), 1)
    pipeline = beam.Pipeline(runner="PortableRunner", options=engine.options)
    shutil.rmtree(pipeline.local_tempdir)  # Beam removes it after a run, and this one is not run
    item_transforms(pipeline, "Do", [msgspec.json.encode(ITEM)], do)
    return pipeline, PortableRunner.get_proto_pipeline(pipeline, engine.options)


def do_payload(proto: beam_runner_api_pb2.Pipeline) -> bytes:
    """The serialized function of the step that does the work."""
    [step] = [t for t in proto.components.transforms.values() if t.unique_name.endswith("Do")]
    if step.spec.urn != common_urns.primitives.PAR_DO.urn:
        [step] = [proto.components.transforms[name] for name in step.subtransforms]
    payload = beam_runner_api_pb2.ParDoPayload.FromString(step.spec.payload)
    return bytes(payload.do_fn.payload)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_options_of_other_runners_parse_and_the_pipeline_serializes(name: str) -> None:
    options = ELSEWHERE[name]
    _, proto = portable(options, ItemFn(b"{}", 2, 0))
    environments = {env.urn: env for env in proto.components.environments.values()}
    [kind] = [urn.split(":")[-2] for urn in environments]
    [environment] = environments.values()
    if "EXTERNAL" in options:
        assert kind == "external"
        assert b"localhost:50000" in environment.payload
    elif "PROCESS" in options:
        assert kind == "process"
        assert b"/opt/apache/beam/boot" in environment.payload
    elif name != "dataflow":  # it makes an environment of its own from --sdk_container_image
        assert kind == "docker"
        assert beam_runner_api_pb2.DockerPayload.FromString(environment.payload).container_image == IMAGE
    assert beam_runner_api_pb2.Pipeline.FromString(proto.SerializeToString()) == proto


def test_dataflow_takes_its_workers_image_from_the_options() -> None:
    options = choose_engine(ELSEWHERE["dataflow"].split(), 1).options.view_as(WorkerOptions)
    assert (options.sdk_container_image, options.max_num_workers) == (IMAGE, 50)


@pytest.mark.parametrize(("more", "threads"), [("", 1), (" --number_of_worker_harness_threads=4", 4)])
def test_a_process_of_dataflow_does_one_item_at_a_time_unless_told_otherwise(more: str, threads: int) -> None:
    options = choose_engine((ELSEWHERE["dataflow"] + more).split(), 1).options.get_all_options()
    assert options["number_of_worker_harness_threads"] == threads


def test_a_worker_needs_the_installed_package_and_nothing_of_the_submitting_process(tmp_path: Path) -> None:
    _, proto = portable(ELSEWHERE["portable"], ItemFn(b'{"a": 1}', 2, 7))
    (tmp_path / "payload").write_bytes(do_payload(proto))
    script = (
        "import json, sys\n"
        "from apache_beam.internal import pickler\n"
        "fn = pickler.loads(open('payload', 'rb').read())[0]\n"
        "mine = sorted(m for m in sys.modules if m.split('.')[0] in ('tests', 'pytest', 'conftest'))\n"
        "print(json.dumps([type(fn).__module__, fn._job.decode(), fn._eod_id, fn._release, mine]))\n"
    )
    # Another directory and another main program: what was pickled by value or from here would not be found.
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == ["beam_jobs.pipeline", '{"a": 1}', 7, release(), []]


def test_secrets_are_in_the_functions_payload_and_nowhere_that_an_engine_shows() -> None:
    secret = "hunter2-and-some-more"
    do = ItemFn(json.dumps({"storage_options": {"secret": secret}}).encode(), 2, 0)
    pipeline, proto = portable(ELSEWHERE["flink"], do)
    assert secret.encode() in pickler.loads(do_payload(proto))[0]._job
    assert secret.encode() not in proto.SerializeToString()
    assert secret not in str(proto)
    assert secret not in str(pipeline._options.get_all_options())
    assert secret not in repr(do)
    shown: list[Any] = [DisplayData.create_from(do).items, DisplayData.create_from(beam.ParDo(do)).items]
    assert secret not in repr([vars(item) for items in shown for item in items])


def job_bytes(output: Path) -> bytes:
    """What a build of the demo's corpus tells its workers; its files are laid out as the driver does it."""
    options = BuildOptions(inputs=tuple(DEMO_INPUTS), output=str(output), tokenizer=str(TOKENIZER), workers=1)
    driver = _Driver(options)
    driver.storage.write_bytes(JOB_TOKENIZER, driver.tokenizer_bytes)
    return msgspec.json.encode(driver.job)


def test_a_worker_of_another_release_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    do = ItemFn(job_bytes(tmp_path), 2, 0)
    monkeypatch.setattr("beam_jobs.pipeline.__version__", "0.0.1")
    with pytest.raises(BuildError, match=r"has pileshard 0\.0\.1, .*the driver pileshard .*install the same on both"):
        do.process(msgspec.json.encode(ITEM))
    assert len([*tmp_path.glob("_build/failures/*")]) == 1


def test_the_engines_own_metrics_count_what_items_do(tmp_path: Path) -> None:
    pipeline = beam.Pipeline(runner=local_runner(1))
    item_transforms(pipeline, "Do", [msgspec.json.encode(ITEM)], ItemFn(job_bytes(tmp_path), 2, 0))
    result = pipeline.run()
    result.wait_until_finish()
    counted = {entry.key.metric.name: entry.committed for entry in result.metrics().query()["counters"]}
    [path] = tmp_path.glob("_build/receipts/*.json")
    receipt = msgspec.json.decode(path.read_bytes(), type=TokenizeReceipt)
    expected = {"documents": receipt.accepted, "tokens": receipt.tokens, "text_bytes": receipt.text_bytes}
    assert receipt.accepted > 0
    assert {name: counted[name] for name in expected} == expected
    assert (counted["items"], counted["retries"]) == (1, 0)
