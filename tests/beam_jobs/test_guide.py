"""The guide's commands are commands: each parses by the program that it is for, and each file that it names exists."""

from __future__ import annotations

import re
import shlex

import pytest

from beam_jobs.engines import RUNNERS, choose_engine
from pileshard.cli import _parser
from tests.servers.engines import ROOT

GUIDE = (ROOT / "beam_jobs" / "GUIDE.md").read_text()
BLOCKS = re.findall(r"^```\n(.*?)^```$", GUIDE, re.M | re.S)
COMMANDS = [
    line.split("  #")[0].strip() for block in BLOCKS for line in block.replace("\\\n", " ").splitlines() if line.strip()
]
REQUIRED = "--input in --output out --tokenizer t.json"


def commands(begin: str) -> list[list[str]]:
    found = [shlex.split(line.replace("build ...", f"build {REQUIRED}")) for line in COMMANDS if line.startswith(begin)]
    assert found
    return found


@pytest.mark.parametrize("arguments", commands("pileshard build"), ids=lambda a: a[-1])
def test_builds_of_the_guide_parse(arguments: list[str]) -> None:
    at = arguments.index("--")
    assert _parser().parse_args(arguments[1:at]).command == "build"
    beam_args = [
        value if value != "--job_endpoint=HOST:8099" else "--job_endpoint=h:1" for value in arguments[at + 1 :]
    ]
    if any("Dask" in value for value in beam_args):
        pytest.importorskip("distributed")
    assert choose_engine(beam_args, 1).name in RUNNERS


@pytest.mark.parametrize("arguments", commands("dask "), ids=lambda a: a[1])
def test_dask_commands_of_the_guide_parse(arguments: list[str]) -> None:
    pytest.importorskip("distributed")
    from distributed.cli import dask_scheduler, dask_worker

    program = {"scheduler": dask_scheduler.main, "worker": dask_worker.main}[arguments[1]]
    program.make_context(arguments[1], arguments[2:])


def test_every_other_command_of_pileshard_parses() -> None:
    for arguments in commands("pileshard "):
        if arguments[1] != "build":
            _parser().parse_args(arguments[1:])


def test_files_and_sections_that_the_guide_names_exist() -> None:
    for path in re.findall(r"`?((?:beam_jobs|tests)/[\w./-]+\.\w+)`?", GUIDE):
        assert (ROOT / path).exists(), path
    for module in re.findall(r"python -m (tests[\w.]+)", GUIDE):
        assert (ROOT / f"{module.replace('.', '/')}.py").exists(), module
    titles = {re.sub(r"[^\w -]", "", t).lower().replace(" ", "-") for t in re.findall(r"^## (.*)$", GUIDE, re.M)}
    assert set(re.findall(r"\]\(#([\w-]+)\)", GUIDE)) <= titles


def test_every_runner_of_the_code_is_in_the_guide() -> None:
    for name, told in RUNNERS.items():
        assert told is None or f"--runner={name}" in GUIDE, name


def test_what_the_guide_quotes_of_errors_is_what_the_code_says() -> None:
    code = "".join((ROOT / "beam_jobs" / name).read_text() for name in ("engines.py", "engine_run.py", "pipeline.py"))
    quoted = re.findall(r"^\| `([^`]*)`", GUIDE.split("## When something is wrong")[1], re.M)
    beginnings = [re.split(r"\.\.\.|HOST", text)[0].strip() for text in quoted if not text.startswith("tokenize:")]
    assert len(beginnings) == 6
    assert [text for text in beginnings if text not in code] == []
