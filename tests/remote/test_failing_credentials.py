"""A command that fails for its credentials shows none of them: not on the terminal, in a log, or in a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.built import DEMO_INPUTS, TOKENIZER, run_build
from tests.remote.reading import upload
from tests.servers.faults import proxied
from tests.servers.stores import Store

SECRET = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY"


def _run(command: str, url: str, options: dict[str, Any], scratch: Path, *more: str) -> tuple[int, str]:
    """Runs a command; gives its exit code and all that it printed."""
    arguments = [command, *(["--output", url] if command == "build" else [url]), *more]
    for name, value in options.items():
        text = value if isinstance(value, str) else json.dumps(value)
        arguments += ["--storage-option", f"{name}={text}"]
    if command == "build":
        arguments += ["--tokenizer", str(TOKENIZER), "--retry-seconds", "0.5", "--workers", "2", "--input"]
        arguments += DEMO_INPUTS[:2]
    done = subprocess.run(
        [sys.executable, "-c", _ENTRY, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    return done.returncode, done.stdout + done.stderr


_ENTRY = "from pileshard.cli import entry; entry()"


def _files_with(text: str, *folders: Path) -> list[Path]:
    return [
        path
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and text.encode() in path.read_bytes()
    ]


@pytest.mark.parametrize("command", ["build", "verify", "status", "clean", "inspect"])
def test_wrong_secret_is_not_shown(s3: Store, tmp_path: Path, command: str) -> None:
    more = ["--position", "0"] if command == "inspect" else []
    code, printed = _run(command, s3.url(), s3.options(secret=SECRET), tmp_path, *more)
    assert code in (1, 2), printed
    assert "s3://" in printed
    assert "Traceback" not in printed
    assert SECRET not in printed
    assert _files_with(SECRET, tmp_path) == []


def test_connection_string_is_not_shown(azure: Store, tmp_path: Path) -> None:
    right = azure.options()["connection_string"]
    key = right.split("AccountKey=")[1].split(";")[0]
    wrong = right.replace(key, SECRET + "=")
    for options, secret in (
        ({"connection_string": wrong}, SECRET),
        ({"connection_string": wrong.replace("AccountName", "AccountNaem")}, SECRET),
        ({"connection_string": right.replace("BlobEndpoint=http", "BlobEndpoint")}, key),
    ):
        code, printed = _run("build", azure.url(), options, tmp_path)
        assert code in (1, 2), printed
        assert "Traceback" not in printed, printed
        assert secret not in printed
        assert _files_with(secret, tmp_path) == []


def test_token_is_not_shown(gcs: Store, tmp_path: Path) -> None:
    for token in (SECRET, json.dumps({"type": "service_account", "private_key": SECRET, "client_email": "a@b"})):
        code, printed = _run("build", gcs.url(), {**gcs.options(), "token": token}, tmp_path)
        assert code in (1, 2), printed
        assert "Traceback" not in printed, printed
        assert SECRET not in printed


@pytest.mark.parametrize("fault", ["500"])
def test_failing_requests_leave_no_secret_in_files_or_logs(s3: Store, tmp_path: Path, fault: str) -> None:
    """The secret is right, and the store fails in the middle: what workers and driver leave is looked through."""
    inputs = upload(s3, str(Path(DEMO_INPUTS[0]).parent))
    output = tmp_path / "dataset"
    secret = s3.options()["secret"]
    with proxied(s3.port) as proxy:
        options = s3.options(proxy.port)
        seen = [0]

        def late(method: str, path: str, ranged: str) -> str:
            seen[0] += method == "GET" and "jsonl" in path
            return fault if seen[0] > 2 and "jsonl" in path else ""

        proxy.fault = late
        arguments = ["build", "--output", str(output), "--tokenizer", str(TOKENIZER), "--retry-seconds", "0.2"]
        for name, value in options.items():
            text = value if isinstance(value, str) else json.dumps(value)
            arguments += ["--storage-option", f"{name}={text}"]
        arguments += ["--max-rejected", "1", "--workers", "1", "--input", f"{inputs}/*.zst"]
        done = subprocess.run([sys.executable, "-c", _ENTRY, *arguments], capture_output=True, text=True, timeout=300)
        printed = done.stdout + done.stderr
        assert done.returncode == 1, printed
        assert secret not in printed
        assert "run the same command again" in printed
        assert _files_with(secret, output) == []
        proxy.fault = lambda method, path, ranged: ""
        done = subprocess.run([sys.executable, "-c", _ENTRY, *arguments], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    assert secret not in done.stdout + done.stderr
    assert (output / "manifest.json").exists()
    assert _files_with(secret, output) == []


@pytest.mark.parametrize(
    ("option", "url"),
    [
        ("--output", f"s3://user:{SECRET}@bucket/x"),
        ("--temp-url", f"abfs://c@a/x?sig={SECRET}"),
        ("--tokenizer", f"https://h/tokenizer.json?X-Amz-Signature={SECRET}"),
    ],
)
def test_url_that_holds_a_secret_is_refused_without_showing_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str, url: str
) -> None:
    from pileshard.cli import main

    given = {"--output": str(tmp_path / "out"), "--tokenizer": str(TOKENIZER), "--input": DEMO_INPUTS[0], option: url}
    assert main(["build", *(part for pair in given.items() for part in pair)]) == 2
    said = capsys.readouterr().err
    assert f"pileshard build: {option} " in said
    assert "--storage-option or the environment" in said
    assert SECRET not in said
    assert not (tmp_path / "out").exists()


def test_dataset_built_with_secrets_holds_none(tmp_path: Path) -> None:
    """On a local file system too, where options are given for the inputs' sake."""
    run_build(tmp_path / "dataset", storage_options={"skip_instance_cache": True, "auto_mkdir": SECRET}, keep_runs=True)
    assert _files_with(SECRET, tmp_path) == []
