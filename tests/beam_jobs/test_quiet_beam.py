"""Apache Beam is imported without clients of stores that a build does not use, and they are there for who does."""

from __future__ import annotations

import subprocess
import sys

CLIENTS = ["azure", "boto3", "pandas", "pymongo"]


def test_clients_are_left_out_of_the_import_and_can_be_imported_after_it() -> None:
    code = f"""
import gc, importlib.util, logging, sys
there = [name for name in {CLIENTS} if importlib.util.find_spec(name)]
from beam_jobs.quiet_beam import beam, import_clients
assert not [name for name in {CLIENTS} if name in sys.modules], "imported, or left hidden"
assert gc.isenabled() and logging.root.manager.disable == 0
import_clients()
from apache_beam.io.aws import s3io
from apache_beam.io.azure import blobstorageio, blobstoragefilesystem
from apache_beam.io.aws.clients.s3 import boto3_client
assert blobstorageio.AZURE_DEPS_INSTALLED == ("azure" in there)
assert blobstoragefilesystem.blobstorageio is blobstorageio
assert (boto3_client.boto3 is not None) == ("boto3" in there)
for name in there:
    __import__(name)
with beam.Pipeline(runner="FnApiRunner") as pipeline:
    pipeline | beam.Create([1, 2]) | beam.Map(print)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_what_was_imported_before_stays() -> None:
    code = """
import sys
import json as stand_in
sys.modules["pymongo"] = stand_in
import beam_jobs.quiet_beam
assert sys.modules["pymongo"] is stand_in
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
