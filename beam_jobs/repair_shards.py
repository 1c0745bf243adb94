"""Makes shards, indexes and lists of rejected lines again, by the build's own stages."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from beam_jobs import finish
from beam_jobs.inputs import InputFile
from beam_jobs.install import install, refusal
from beam_jobs.items import take_failures
from beam_jobs.job import (
    GROUPS,
    JOB,
    JOB_TOKENIZER,
    RECEIPTS,
    Job,
    JobRecord,
    KeyRange,
    MergeItem,
    MergeReceipt,
    TokenizeItem,
    TokenizeReceipt,
    receipt_path,
    write_json,
)
from beam_jobs.parts import joined
from beam_jobs.runs import Group
from beam_jobs.shard_plan import GROUP_COUNT, GroupPlan, group_path, plan_groups
from beam_jobs.stages import Stages, has_size
from pileshard.audit.repair import Condemned
from pileshard.errors import BuildError, PileshardError
from pileshard.format.identity import hex64
from pileshard.format.manifest import Manifest, ShardEntry
from pileshard.format.storage import Storage, open_filesystem

if TYPE_CHECKING:
    from beam_jobs.repair import RepairOptions

_log = logging.getLogger("pileshard.repair")

#: What a repair in work is about, so that the same command goes on from it.
STAGED = "repair.json"

RUN_BYTES = 256 * 2**20


class Staged(msgspec.Struct, frozen=True, kw_only=True):
    """A repair in work: of which dataset, by which engine, of which shards."""

    dataset_id: str
    engine: str
    shards: list[int]


class ShardRepair:
    """Makes files of one dataset again.

    Args:
      options: of the repair.
      storage: the dataset's root.
      staging: where files are made, below it.
      manifest: says what is due.
      tokenizer: the dataset's, as bytes.
    """

    def __init__(
        self, options: RepairOptions, storage: Storage, staging: str, manifest: Manifest, tokenizer: bytes
    ) -> None:
        self._options = options
        self._storage = storage
        self._staging = Storage(f"{storage.url}/{staging}", options.storage_options)
        self._temp_url = options.temp_url or self._staging.url
        self._manifest = manifest
        self._tokenizer = tokenizer
        inputs = [InputFile(url=entry.url, size=entry.size, version="") for entry in manifest.inputs]
        self._record = JobRecord(
            inputs=inputs,
            tokenizer_sha256=manifest.tokenizer_sha256,
            eod=manifest.eod_token,
            options=manifest.options,
        )

    def run(self, files: Sequence[Condemned]) -> None:
        """Repairs what can be repaired, and says of the rest why it is not."""
        numbers = sorted({file.number for file in files if file.kind in ("shard", "index")})
        shards = [file for file in files if file.kind in ("shard", "index")]
        if numbers and (receipts := self._kept_receipts()) is not None:
            _log.info("repair: %d shards from the runs that the build kept", len(numbers))
            job = self._job("runs", None, self._options.temp_url or self._storage.url)
            try:
                self._install(job, numbers, receipts, shards, "from the build's runs")
            except BuildError as error:
                _log.warning("repair: the runs are of no use (%s); the inputs are read", error)
        rest = [file for file in files if not file.outcome]
        if not rest:
            return
        for file in rest:
            file.why = ""
        try:
            self._from_inputs(rest)
        except PileshardError as error:
            for file in rest:
                if not file.outcome and not file.why:
                    file.why = refusal(error, file.path)

    # From the inputs

    def _from_inputs(self, files: Sequence[Condemned]) -> None:
        shards = [file for file in files if file.kind in ("shard", "index")]
        rejected = sorted({file.number for file in files if file.kind == "rejected"})
        numbers = sorted({file.number for file in shards})
        present = [number for number, entry in enumerate(self._manifest.inputs) if entry.skipped is None]
        inputs = present if numbers else rejected
        self._check_inputs(inputs)
        staged = self._staged(numbers)
        job = self._job(self._options.engine, staged.shards, self._temp_url)
        items = [TokenizeItem(input=number, part=0, parts=1, engine=self._options.engine) for number in inputs]
        size = sum(self._manifest.inputs[number].size for number in inputs)
        _log.info(
            "repair: reading %d inputs (%.1f GB) for %d shards and %d lists of rejected lines",
            *(len(inputs), size / 1e9, len(numbers), len(rejected)),
        )
        receipts: list[TokenizeReceipt] = self._stages(job).do("tokenize", items, TokenizeReceipt, [])
        for receipt in receipts:
            self._check_account(receipt)
        self._lists(files, rejected, receipts)
        if numbers:
            self._install(job, numbers, receipts, shards, "from the inputs", staged.shards)
        if self._temp_url != self._staging.url:
            job.temp_storage().remove_tree(f"_build/runs-{job.fingerprint}")

    def _check_inputs(self, numbers: Sequence[int]) -> None:
        """Refuses where an input is gone or of another size, before anything is read."""
        problems = []
        for number in numbers:
            entry = self._manifest.inputs[number]
            try:
                fs, path = open_filesystem(entry.url, self._options.storage_options)
                size = fs.info(path)["size"]
            except FileNotFoundError:
                problems.append(f"{entry.url} is gone")
            except (OSError, ValueError, ImportError) as error:
                problems.append(f"{entry.url} cannot be read ({error})")
            else:
                if size is not None and size != entry.size:
                    problems.append(f"{entry.url} has {size:,} bytes, the build read {entry.size:,}")
        if problems:
            more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
            raise BuildError(f"it takes the inputs, and {'; '.join(problems[:3])}{more}: restore them as they were")

    def _check_account(self, receipt: TokenizeReceipt) -> None:
        entry = self._manifest.inputs[receipt.item.input]
        if receipt.input_sha256 != entry.sha256:
            raise BuildError(
                f"it takes the inputs, and {entry.url} has other bytes than the build read: restore it as it was"
            )
        counted = (receipt.lines, receipt.accepted, receipt.blank, receipt.rejected)
        account = (*counted, receipt.text_bytes, hex64(receipt.identity_sum))
        wanted = (entry.lines, entry.accepted, entry.blank, entry.rejected, entry.text_bytes, entry.identity_sum)
        if account != wanted:
            raise BuildError(
                f"{entry.url}: this release reads its lines in another way than {self._manifest.writer} did; repair "
                "with that release"
            )

    def _staged(self, numbers: list[int]) -> Staged:
        """The repair in work where it covers these shards, else a new one in its place."""
        wanted = Staged(dataset_id=self._manifest.dataset_id, engine=self._options.engine, shards=numbers)
        before = None
        with contextlib.suppress(OSError, msgspec.DecodeError):
            before = msgspec.json.decode(self._staging.read_bytes(STAGED), type=Staged)
        same = before is not None and (before.dataset_id, before.engine) == (wanted.dataset_id, wanted.engine)
        if before is not None and same and set(numbers) <= set(before.shards):
            return before
        self._staging.remove_tree("")
        self._staging.write_bytes(STAGED, msgspec.json.encode(wanted))
        return wanted

    def _lists(self, files: Sequence[Condemned], numbers: list[int], receipts: list[TokenizeReceipt]) -> None:
        """Makes the lists of rejected lines again."""
        entries = [
            entry if number in numbers else msgspec.structs.replace(entry, rejected_path=None)
            for number, entry in enumerate(self._manifest.inputs)
        ]
        made = finish.write_rejected(self._staging, receipts, entries)
        for file in files:
            if file.kind != "rejected":
                continue
            wanted = self._manifest.inputs[file.number].rejected_sha256
            if wanted is not None and made[file.number].rejected_sha256 != wanted:
                file.why = f"this release lists them in another way than {self._manifest.writer} did"
                continue
            self._put(file, wanted, "from the input")

    # The stages

    def _job(self, engine: str, shards: list[int] | None, temp_url: str) -> Job:
        only = None if shards is None else [_key_range(self._manifest.shards[number]) for number in shards]
        named = msgspec.json.encode((self._record.fingerprint(), self._manifest.dataset_id, engine, only))
        job = Job(
            record=self._record,
            fingerprint=hashlib.sha256(named).hexdigest()[:16],
            output=self._staging.url,
            temp_url=temp_url,
            engine=self._options.engine,
            on_bad_input="fail",
            run_bytes=RUN_BYTES,
            storage_options=self._options.storage_options,
            only=only,
        )
        if not self._staging.exists(JOB_TOKENIZER):
            self._staging.write_bytes(JOB_TOKENIZER, self._tokenizer)
        take_failures(self._staging)
        return job

    def _stages(self, job: Job) -> Stages:
        width = self._manifest.token_dtype.itemsize
        return Stages(job, width, self._manifest.eod_id, self._options.beam_args, self._options.processes)

    def _install(
        self,
        job: Job,
        numbers: list[int],
        receipts: list[TokenizeReceipt],
        files: Sequence[Condemned],
        by: str,
        planned: list[int] | None = None,
    ) -> None:
        """Merges shards and puts what is condemned of them into place."""
        all_shards = self._manifest.shards
        groups = {
            group.name: group
            for group in plan_groups(receipts, job.temp_storage(), self._manifest.token_dtype.itemsize)
        }
        condemned = planned or numbers
        names: list[Group] = sorted({(all_shards[at].source, all_shards[at].split) for at in condemned})
        if self._manifest.options.dedup == "exact":
            names += sorted(groups.keys() - set(names))  # they tell what came before
        self._staging.remove_tree(GROUPS)  # deduplication reads all that are there
        weights = []
        for at, name in enumerate(names):
            write_json(self._staging, group_path(at), groups.get(name, GroupPlan(name)).runs)
            weights.append(sum(shard.size for shard in all_shards if (shard.source, shard.split) == name))
        write_json(self._staging, GROUP_COUNT, len(names))
        items = []
        for number in numbers:
            shard = all_shards[number]
            items.append(
                MergeItem(
                    group=names.index((shard.source, shard.split)),
                    source=shard.source,
                    split=shard.split,
                    number=shard.number,
                    count=shard.count,
                    key_first=int(shard.key_first, 16),
                    key_last=int(shard.key_last, 16),
                )
            )
        merged: list[MergeReceipt] = self._stages(job).do("merge", items, MergeReceipt, weights)
        made = dict(zip(numbers, merged, strict=True))
        for file in files:
            shard, found = all_shards[file.number], made[file.number].shard
            field = "sha256" if file.kind == "shard" else "index_sha256"
            sha256: str = getattr(shard, field)
            if found[field] != sha256:
                file.why = (
                    f"{by} come {found['documents']:,} documents with sha256 {found[field][:12]}..., "
                    f"the manifest names {sha256[:12]}...: another release or engine wrote it (try --engine reference)"
                )
                continue
            self._put(file, sha256, by)

    def _put(self, file: Condemned, sha256: str | None, by: str) -> None:
        try:
            install(self._staging, self._storage, file.path, sha256)
        except (PileshardError, OSError) as error:
            file.why = refusal(error, file.path)
        else:
            file.repaired(by)

    # From the build's runs

    def _kept_receipts(self) -> list[TokenizeReceipt] | None:
        """Receipts of a build with --keep-runs whose runs are all there still, or None."""
        try:
            record = msgspec.json.decode(self._storage.read_bytes(JOB), type=JobRecord)
        except (OSError, msgspec.DecodeError):
            return None
        fingerprint = record.fingerprint()
        by_input: dict[int, dict[tuple[str, int, bool], list[TokenizeReceipt]]] = {}
        for path in self._storage.files(RECEIPTS):
            with contextlib.suppress(OSError, msgspec.DecodeError):
                receipt = msgspec.json.decode(self._storage.read_bytes(path), type=TokenizeReceipt)
                if path == receipt_path(fingerprint, receipt.item):
                    item = receipt.item
                    of_plan = (item.engine, item.parts, item.entry is not None)
                    by_input.setdefault(item.input, {}).setdefault(of_plan, []).append(receipt)
        temp = Storage(self._options.temp_url or self._storage.url, self._options.storage_options)
        found: list[TokenizeReceipt] = []
        for number, entry in enumerate(self._manifest.inputs):
            if entry.skipped is not None:
                continue
            # An input whose fast tokens were refused has receipts of both engines: the reference's count.
            sets = sorted(by_input.get(number, {}).items(), key=lambda pair: pair[0][0] != "reference")
            chains = [joined(receipts) for _, receipts in sets]
            whole = [chain for chain in chains if chain is not None and chain[-1].input_sha256 == entry.sha256]
            if not whole:
                return None
            found += whole[0]
        runs = [run for receipt in found for run in receipt.runs]
        return found if all(has_size(temp, run.path, run.size) for run in runs) else None


def _key_range(shard: ShardEntry) -> KeyRange:
    return KeyRange(
        source=shard.source,
        split=shard.split,
        key_first=int(shard.key_first, 16),
        key_last=int(shard.key_last, 16),
    )
