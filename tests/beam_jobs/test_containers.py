"""The files for clusters: that what they name is there, and that their commands are commands."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from beam_jobs.engines import choose_engine
from tests.servers.engines import ROOT

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib  # type: ignore[import-not-found,no-redef]

FOLDER = ROOT / "beam_jobs" / "containers"
DOCKERFILES = sorted(FOLDER.glob("*.Dockerfile"))
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
#: Instructions of the Dockerfile reference that these files may use.
INSTRUCTIONS = {"ARG", "FROM", "COPY", "RUN", "USER", "WORKDIR", "EXPOSE", "CMD"}


def instructions(path: Path) -> list[tuple[str, str]]:
    """Instructions of a Dockerfile with their arguments, continued lines joined."""
    text = re.sub(r"\\\n", " ", "\n".join(line for line in path.read_text().splitlines() if not line.startswith("#")))
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()]


def documents() -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all((FOLDER / "dask.yaml").read_text()))


def commands_of(kind: str, name: str) -> list[str]:
    """The command of the one container of an object."""
    [found] = [o for o in documents() if o["kind"] == kind and o["metadata"]["name"] == name]
    [container] = found["spec"]["template"]["spec"]["containers"]
    return [str(part) for part in container["command"]]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_a_container_file_copies_what_is_there_and_asks_for_extras_that_exist(path: Path) -> None:
    found = instructions(path)
    assert {name for name, _ in found} <= INSTRUCTIONS
    copied = [source for name, text in found if name == "COPY" for source in shlex.split(text)[:-1]]
    assert {"pyproject.toml", "pileshard", "beam_jobs"} <= set(copied)
    assert [source for source in copied if not (ROOT / source).exists()] == []
    [asked] = re.findall(r"/opt/pileshard\[([a-z0-9,]+)\]", path.read_text())
    assert set(asked.split(",")) <= EXTRAS
    assert {"beam", "dask"} & set(asked.split(","))


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_what_a_container_file_copies_makes_a_package(path: Path, tmp_path: Path) -> None:
    """The wheel of the copied files alone holds every module, as `pip install /opt/pileshard` makes it."""
    import shutil

    for source in [s for name, text in instructions(path) if name == "COPY" for s in shlex.split(text)[:-1]]:
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, tmp_path / source, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, tmp_path / source)
    script = "import setuptools.build_meta as b, sys; print(b.build_wheel(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    import zipfile

    [wheel] = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {str(p.relative_to(ROOT)) for folder in ("beam_jobs", "pileshard") for p in (ROOT / folder).rglob("*.py")}
    assert modules <= names
    assert {"pileshard/py.typed", "beam_jobs/GUIDE.md", "beam_jobs/containers/dask.sbatch"} <= names


def test_the_base_image_is_of_the_tested_beam() -> None:
    [version] = re.findall(r"apache-beam==(\S+)", (ROOT / "tests" / "constraints.txt").read_text())
    assert f"ARG BEAM_VERSION={version}" in (FOLDER / "beam-worker.Dockerfile").read_text()


def test_the_cluster_of_kubernetes_holds_together() -> None:
    objects = {(o["kind"], o["metadata"]["name"]): o for o in documents()}
    service = objects["Service", "pileshard-scheduler"]["spec"]
    for kind, name in (("Deployment", "pileshard-scheduler"), ("Deployment", "pileshard-worker")):
        spec = objects[kind, name]["spec"]
        assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    scheduler = objects["Deployment", "pileshard-scheduler"]["spec"]["template"]
    assert service["selector"].items() <= scheduler["metadata"]["labels"].items()
    address = f"tcp://pileshard-scheduler:{service['ports'][0]['port']}"
    assert address in commands_of("Deployment", "pileshard-worker")
    for found in objects.values():
        pod = found["spec"].get("template", {}).get("spec", {})
        claims = {volume["name"] for volume in pod.get("volumes", [])}
        for container in pod.get("containers", []):
            assert {mount["name"] for mount in container.get("volumeMounts", [])} <= claims


def test_commands_of_the_cluster_parse() -> None:
    from click.testing import CliRunner

    pytest.importorskip("distributed")
    from distributed.cli import dask_scheduler, dask_worker

    for command, name in ((dask_scheduler.main, "pileshard-scheduler"), (dask_worker.main, "pileshard-worker")):
        arguments = commands_of("Deployment", name)
        command.make_context("dask", arguments[2:])
        assert CliRunner().invoke(command, ["--help"]).exit_code == 0
    build = commands_of("Job", "pileshard-build")
    from pileshard.cli import _parser

    at = build.index("--")
    assert _parser().parse_args(build[1:at]).output == "/corpus/pile"
    engine = choose_engine(build[at + 1 :], 1)
    assert engine.name == "DaskRunner"
    assert engine.options.get_all_options()["address"] == "tcp://pileshard-scheduler:8786"
