"""The driver of a build: tokenize, plan, merge, finish.

    python -m beam_jobs.build --input 'corpus/*.jsonl.zst' --output /shared/pile --tokenizer tokenizer.json

is the same as `pileshard build`; options after `--` go to Apache Beam.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import logging
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from beam_jobs import finish
from beam_jobs.changes import settled_changes
from beam_jobs.engine_workers import engine_workers
from beam_jobs.forecast import Forecast, make_forecast
from beam_jobs.gather_plan import gathered, plan_gather
from beam_jobs.inputs import check_not_empty, expand
from beam_jobs.items import os_sentence, take_failures
from beam_jobs.job import (
    JOB,
    JOB_TOKENIZER,
    GatherReceipt,
    Job,
    JobRecord,
    MergeReceipt,
    TokenizeReceipt,
    write_json,
)
from beam_jobs.lease import Lease
from beam_jobs.leftovers import live_command
from beam_jobs.lent_tokenizers import lent_tokenizer
from beam_jobs.memory import run_bytes
from beam_jobs.options import BuildOptions
from beam_jobs.resume import check_same_job
from beam_jobs.shard_plan import GROUP_COUNT, GroupPlan, group_path, merge_items, plan_groups
from beam_jobs.space import check_space
from beam_jobs.spread import Spread, parts_plan
from beam_jobs.stages import Stages
from beam_jobs.work_share import StageTime
from pileshard.errors import BuildError, OptionError, PileshardError, StorageError
from pileshard.format.manifest import Manifest, Options
from pileshard.format.paths import MANIFEST
from pileshard.format.retry import Retry
from pileshard.format.storage import open_filesystem, open_url
from pileshard.tokenize import Tokenizer

_log = logging.getLogger("pileshard.build")


@dataclass(frozen=True)
class BuildResult:
    """What a build gave.

    Attributes:
      manifest: of the dataset.
      seconds: by stage; empty where the dataset was complete already.
      times: how the stages of items spent their workers' time.
    """

    manifest: Manifest
    seconds: dict[str, float] = field(default_factory=dict)
    times: dict[str, StageTime] = field(default_factory=dict)


def build(options: BuildOptions) -> BuildResult:
    """Builds a dataset, or continues one.

    Args:
      options: what to build, from what, how.

    Returns:
      The manifest, which is also on disk.

    Raises:
      OptionError: an option makes no sense.
      BuildError: the output holds another build; too many lines were rejected; an item failed.
      InputError: an input is damaged (as text of a BuildError where it is met by a worker).
    """
    options.check()
    try:
        driver = _Driver(options)
        try:
            return driver.run()
        except (BuildError, StorageError, OSError):
            if (manifest := driver.finished_elsewhere()) is None:
                raise
            _log.warning("another command finished this build in the meantime")
            driver.clean()
            return BuildResult(manifest)
    except OSError as error:
        raise BuildError(os_sentence(error, options.output)) from error
    except StorageError as error:
        raise BuildError(f"{error}; mend it and run the same command again, which continues the build") from error


def forecast(options: BuildOptions) -> Forecast:
    """What a build would do and take; writes nothing, and raises what such a build would raise at its start."""
    options.check()
    driver = _Driver(options)
    check_same_job(driver.storage, driver.job, options)
    check_not_empty(driver.job)
    return make_forecast(driver.job, options, driver.tokenizer_bytes, driver.tokenizer.dtype.itemsize)


class _Driver:
    def __init__(self, options: BuildOptions) -> None:
        self.options = options
        self.began = False
        self.seconds: dict[str, float] = {}
        self.times: dict[str, StageTime] = {}
        inputs = expand(options.inputs, options.storage_options, Retry.within(options.retry_seconds))
        self.tokenizer_bytes = _read_tokenizer(options)
        self.workers, self.workers_known = engine_workers(options.workers, options.beam_args)
        # Where this process does the work too, it is the one that the work is done with.
        alone = self.workers == 1 and not options.beam_args
        engine = options.engine if alone else "reference"
        with lent_tokenizer(self.tokenizer_bytes, options.eod, options.special_tokens, engine) as tokenizer:
            self.tokenizer: Tokenizer = tokenizer  # the driver asks it for its vocabulary, and encodes nothing
        record = JobRecord(
            inputs=inputs,
            tokenizer_sha256=hashlib.sha256(self.tokenizer_bytes).hexdigest(),
            eod=options.eod,
            options=Options(
                seed=options.seed,
                shard_bytes=options.shard_bytes,
                validation=options.validation,
                dedup=options.dedup,
                special_tokens=options.special_tokens,
                text_key=options.text_key,
                source_key=options.source_key,
            ),
        )
        output = absolute(options.output)
        self.job = Job(
            record=record,
            fingerprint=record.fingerprint(),
            output=output,
            temp_url=absolute(options.temp_url) if options.temp_url else output,
            engine=options.engine,
            on_bad_input=options.on_bad_input,
            run_bytes=options.run_bytes or run_bytes(options.worker_memory),
            worker_memory=options.worker_memory,
            storage_options=options.storage_options,
            retry_seconds=options.retry_seconds,
        )
        self.storage = self.job.storage()

    def run(self) -> BuildResult:
        existing = check_same_job(self.storage, self.job, self.options)
        if existing is None:
            with Lease(self.storage) as lease:
                # Another command may have begun or finished something else here since.
                existing = check_same_job(self.storage, self.job, self.options)
                if existing is None:
                    return self._build(lease)
        self.clean()
        return BuildResult(existing)

    def clean(self) -> None:
        """Removes what commands left on the way to a complete dataset, unless one still works on it."""
        with contextlib.suppress(OSError, PileshardError):
            if live_command(self.storage) is None:
                finish.clean(self.job, self.options.keep_runs)

    def _build(self, lease: Lease) -> BuildResult:
        self.began = True
        check_not_empty(self.job)
        if self.options.space_check:
            check_space(self.job, self.tokenizer)
        if not self.storage.write_new(JOB, msgspec.json.encode(self.job.record, order="deterministic")):
            check_same_job(self.storage, self.job, self.options)
            with settled_changes(self.storage, self.job):
                write_json(self.storage, JOB, self.job.record)
        if not self.storage.exists(JOB_TOKENIZER):
            self.storage.write_bytes(JOB_TOKENIZER, self.tokenizer_bytes)
        take_failures(self.storage)
        with self._stage("tokenize"):
            receipts = self._tokenize()
        accounts = finish.input_accounts(self.job, receipts)
        finish.check_rejected(accounts, self.options.max_rejected, self.storage)
        if not any(entry.accepted for entry in accounts):
            _log.warning("no document was accepted from %d inputs: the dataset is empty", len(accounts))
        receipts = [receipt for receipt in receipts if accounts[receipt.item.input].skipped is None]
        with self._stage("plan"):
            groups = plan_groups(receipts, self.job.temp_storage(), self.tokenizer.dtype.itemsize)
            plan = plan_gather(receipts, groups)
        if plan is not None:
            with self._stage("gather"):
                plan.write(self.storage)
                groups = gathered(groups, plan, self._stages().do("gather", plan.items, GatherReceipt, []))
        with self._stage("merge"):
            for number, group in enumerate(groups):
                write_json(self.storage, group_path(number), group.runs)
            write_json(self.storage, GROUP_COUNT, len(groups))
            merges = self._merge(groups, finish.content_of(accounts))
        with self._stage("finish"):
            accounts = finish.write_rejected(self.storage, receipts, accounts)
            manifest = finish.make_manifest(self.job, self.tokenizer, accounts, merges, self._report(receipts))
            lease.check()
            if check_same_job(self.storage, self.job, self.options) is None:
                finish.remove_surplus(self.storage, manifest)
                finish.publish(self.storage, manifest)
            finish.clean(self.job, self.options.keep_runs)
        return BuildResult(Manifest.read(self.storage), self.seconds, self.times)

    def finished_elsewhere(self) -> Manifest | None:
        """The manifest that another driver of this very build has written since this one began."""
        with contextlib.suppress(PileshardError, OSError):
            if self.began and self.storage.exists(MANIFEST):
                return check_same_job(self.storage, self.job, self.options)
        return None

    @contextlib.contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - began, 2)

    def _tokenize(self) -> list[TokenizeReceipt]:
        """Runs the tokenize items. An input that proved the fast engine wrong is done by the reference in all parts."""
        plan = parts_plan(self.job, self.options.parts_per_input, self.workers, self.storage)
        spread = Spread(plan, self.job, self._stages())
        doubtful: set[int] = set()
        while True:
            receipts = self._stages().do("tokenize", spread.items(doubtful), TokenizeReceipt, [])
            found = {
                receipt.item.input
                for receipt in receipts
                if receipt.mismatch and any(o.engine == "fast" for o in receipts if o.item.input == receipt.item.input)
            }
            for receipt in receipts:
                if receipt.skipped and self.options.on_bad_input == "fail":
                    raise BuildError(
                        f"{receipt.skipped} (an earlier command left this input out, and planned shards without it: "
                        "give --on-bad-input=skip, or build into a new output)"
                    )
                for note in (receipt.mismatch, receipt.skipped):
                    if note:
                        _log.warning("%s", note)
            if found <= doubtful:
                return receipts
            doubtful |= found

    def _stages(self) -> Stages:
        width = self.tokenizer.dtype.itemsize
        return Stages(
            self.job,
            width,
            self.tokenizer.eod_id,
            self.options.beam_args,
            self.workers,
            workers_known=self.workers_known,
            times=self.times,
        )

    def _merge(self, groups: list[GroupPlan], content: str) -> list[MergeReceipt]:
        items = merge_items(groups, self.job.record.options.shard_bytes, content)
        return self._stages().do("merge", items, MergeReceipt, [sum(group.weights) for group in groups])

    def _report(self, receipts: list[TokenizeReceipt]) -> dict[str, Any]:
        engines = Counter(receipt.engine for receipt in receipts if not receipt.skipped)
        notes = sorted({note for receipt in receipts for note in (receipt.fallback, receipt.mismatch) if note})
        versions = {}
        for package in ("apache-beam", "tokenizers", "gigatoken"):
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                versions[package] = importlib.metadata.version(package)
        return {
            "seconds": self.seconds,
            "workers": self.workers,
            "stages": {name: msgspec.to_builtins(time) for name, time in self.times.items()},
            "engines": dict(sorted(engines.items())),
            "notes": notes,
            "versions": versions,
        }


def _read_tokenizer(options: BuildOptions) -> bytes:
    try:
        retry = Retry.within(options.retry_seconds)
        with open_url(options.tokenizer, options.storage_options, retry=retry) as file:
            return bytes(file.read())
    except (OSError, StorageError, ValueError, ImportError) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else str(error)
        raise OptionError(f"--tokenizer {options.tokenizer}: {reason}") from None


def absolute(url: str) -> str:
    """A local path as an absolute one: workers may start in another directory."""
    return url if "://" in url else open_filesystem(url)[1]


if __name__ == "__main__":
    import sys

    from pileshard.cli import entry

    sys.argv.insert(1, "build")
    entry()
