"""The tokenize stage: an input, or a part of it -> runs and a receipt."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

import msgspec
import numpy as np

from beam_jobs.job import (
    JOB_TOKENIZER,
    Job,
    RunEntry,
    TokenizeItem,
    TokenizeReceipt,
    check_not_overtaken,
    forget_counts,
)
from beam_jobs.key_ranges import places_within
from beam_jobs.lent_tokenizers import lent_tokenizer
from beam_jobs.memory import cache_bytes, give_back, is_tight
from beam_jobs.progress import Heartbeat
from beam_jobs.reads import one_ahead
from beam_jobs.rejected_writer import RejectedWriter
from beam_jobs.runs import RunBuffer, run_prefix
from pileshard.errors import BuildError, InputError
from pileshard.format.identity import (
    MAX_LINE,
    U64,
    document_keys,
    identity_hashes,
    split_hashes,
    sum64,
    text_keys,
)
from pileshard.format.retry import Retries
from pileshard.format.storage import Storage, WholeFile, open_url
from pileshard.ingest import LineBlock, ParsedBlock, Reason, Rejection, parse_lines
from pileshard.ingest.lines import BLOCK_BYTES
from pileshard.ingest.parts import CountedOtherwiseError, PartReader
from pileshard.tokenize import EngineMismatch, Tokenizer

_LEAST_RUN_BYTES = 8 << 20  # short of memory or not, runs are not smaller


def tokenize_item(job: Job, item: TokenizeItem, retries: Retries | None = None) -> TokenizeReceipt:
    """Tokenizes an item and returns its receipt; the caller publishes it.

    Where the fast engine proves different from the reference, the item is done again by the reference alone.

    Args:
      job: the job.
      item: an input, or a part of one.
      retries: counts what was tried again.

    Raises:
      InputError: the input is damaged, and `--on-bad-input` is fail.
      BuildError: the input changed since the build began.
    """
    began = time.monotonic()
    storage = job.storage(retries)
    data = storage.read_bytes(JOB_TOKENIZER)
    options = job.record.options
    mismatch: str | None = None
    engine: str = item.engine
    while True:
        try:
            with lent_tokenizer(data, job.record.eod, options.special_tokens, engine) as tokenizer:
                receipt = _Pass(job, item, storage, tokenizer).run()
        except EngineMismatch as error:
            if engine == "reference":
                raise
            mismatch = str(error)
            engine = "reference"
            continue
        except CountedOtherwiseError as error:
            forget_counts(storage, item.input)
            raise BuildError(f"{error}. The same command counts it anew") from None
        except InputError as error:
            if job.on_bad_input != "skip":
                raise
            receipt = TokenizeReceipt(
                item=item,
                input_size=job.record.inputs[item.input].size,
                input_sha256="",
                skipped=str(error),
            )
        return msgspec.structs.replace(
            receipt,
            engine=tokenizer.engine_name,
            fallback=tokenizer.fallback,
            mismatch=mismatch,
            seconds=round(time.monotonic() - began, 3),
        )


@dataclass
class _Pass:
    """One reading of one input by one engine."""

    job: Job
    item: TokenizeItem
    storage: Storage
    tokenizer: Tokenizer
    account: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    identity_sum: int = 0
    runs: list[RunEntry] = field(default_factory=list)

    def run(self) -> TokenizeReceipt:
        job, item = self.job, self.item
        entry = job.record.inputs[item.input]
        options = job.record.options
        text_path = tuple(options.text_key.split("."))
        source_path = tuple(options.source_key.split("."))
        buffer = RunBuffer(self.tokenizer.dtype, job.run_bytes)
        self.tokenizer.limit_cache(cache_bytes(job.worker_memory))
        whole = item.end is None and item.entry is None  # read from the input's first byte to its last
        digest = hashlib.sha256()
        stored = item.entry.at if item.entry else 0

        with (
            Heartbeat(self.storage, item.name, job.beat_seconds) as heartbeat,
            contextlib.closing(_open_input(job, entry.url, self.storage)) as raw,
            RejectedWriter(self.storage, item) as rejected,
            contextlib.ExitStack() as stack,
        ):

            def on_bytes(chunk: bytes) -> None:
                nonlocal stored
                stored += len(chunk)
                if whole:
                    digest.update(chunk)
                heartbeat.beat(max(0, stored - item.begin), self.account["accepted"], self.account["tokens"])

            if item.entry is not None:
                raw.seek(item.entry.at)
            reader = PartReader(
                cast(BinaryIO, raw),
                entry.url,
                begin=item.begin,
                end=item.end,
                entry=item.entry,
                on_bytes=on_bytes,
            )
            blocks = stack.enter_context(contextlib.closing(one_ahead(reader.blocks(), _is_large)))
            for block in blocks:
                if block.first_line + len(block.lines) > MAX_LINE:
                    raise BuildError(f"{entry.url}: has more than {MAX_LINE:,} lines")
                self._keep_within(block, buffer)
                parsed = parse_lines(block, text_path, source_path)
                offsets = block.offsets() if options.special_tokens == "reject" else []
                first_line = block.first_line
                del block  # a line may be large; its text is in `parsed`
                self._take(parsed, buffer, rejected, [first_line, *offsets])
                if buffer.full:
                    self._flush(buffer)
            if not buffer.empty:
                self._flush(buffer)
            raw.check_unchanged()
            rejected.publish()
        if whole and stored != entry.size:
            raise BuildError(
                f"{entry.url}: has {stored:,} bytes where there were {entry.size:,} when the build began; "
                "an input must not change during a build"
            )
        return TokenizeReceipt(
            item=item,
            input_size=entry.size,
            input_sha256=digest.hexdigest() if whole else item.input_sha256,
            begin=reader.begin,
            end=reader.end,
            lines=self.account["lines"],
            accepted=self.account["accepted"],
            blank=self.account["blank"],
            rejected=dict(sorted(self.rejected.items())),
            tokens=self.account["tokens"],
            text_bytes=self.account["text_bytes"],
            identity_sum=self.identity_sum,
            runs=self.runs,
            # The tables of a single run say it all.
            spread=buffer.write_spread(self._temp(), self._run_prefix()) if len(self.runs) > 1 else None,
            rejected_path=rejected.path if self.rejected else None,
        )

    def _keep_within(self, block: LineBlock, buffer: RunBuffer) -> None:
        """Makes room where the process would hold too much with this block in work."""
        memory, size = self.job.worker_memory, sum(map(len, block.lines))
        if not is_tight(memory, size):
            return
        self.tokenizer.drop_cache()
        if is_tight(memory, size) and buffer.held >= min(_LEAST_RUN_BYTES, buffer.limit):
            self._flush(buffer)

    def _flush(self, buffer: RunBuffer) -> None:
        check_not_overtaken(self.storage, self.item)
        self.runs.append(buffer.write(self._temp(), self._run_prefix()))
        give_back(self.job.worker_memory)

    def _temp(self) -> Storage:
        return self.job.temp_storage(self.storage.retries)

    def _run_prefix(self) -> str:
        return run_prefix(self.job.fingerprint, self.item.name)

    def _take(self, parsed: ParsedBlock, buffer: RunBuffer, rejected: RejectedWriter, offsets: list[int]) -> None:
        """Tokenizes the documents of a block and puts them into the buffer.

        Args:
          parsed: the block's documents and rejections.
          buffer: takes the documents.
          rejected: takes the rejections.
          offsets: the block's first line number, then each line's byte offset (asked for by the reject policy alone).
        """
        self.account["lines"] += parsed.total
        self.account["blank"] += parsed.blank
        texts, sources, lines = parsed.texts, parsed.sources, parsed.lines
        rejections = list(parsed.rejections)
        if self.job.record.options.special_tokens == "reject":
            texts, sources, lines, refused = self._refuse_special(texts, sources, lines, offsets)
            rejections = sorted(rejections + refused, key=lambda rejection: rejection.line)
        for rejection in rejections:
            self.rejected[rejection.reason.value] += 1
            rejected.write(rejection)
        if not texts:
            return
        numbers = np.array(lines, dtype=np.int64)
        identities = identity_hashes(self.item.input, numbers)
        text_bytes = np.array([len(text) for text in texts], dtype=np.int64)
        self.account["accepted"] += len(texts)
        self.account["text_bytes"] += int(text_bytes.sum())
        self.identity_sum = (self.identity_sum + sum64(identities)) & (2**64 - 1)
        keys, twins = self._keys(texts, numbers)
        splits = self._splits(texts)
        if self.job.only is not None:
            options = self.job.record.options
            kept = places_within(self.job.only, sources, splits, keys, options.dedup == "exact")
            if not kept:
                return
            texts, sources, splits = [texts[at] for at in kept], [sources[at] for at in kept], splits[kept]
            identities, numbers, keys, twins = identities[kept], numbers[kept], keys[kept], twins[kept]
            text_bytes = text_bytes[kept]
        tokens, ends = self.tokenizer.encode_batch(texts, identities)
        self._check_no_eod(tokens, ends, numbers.tolist())
        groups = self._groups(sources, splits, buffer)
        buffer.add(tokens, ends, groups, keys, numbers, text_bytes, twins)
        self.account["tokens"] += len(tokens) + len(texts)  # an end-of-document id each

    def _keys(self, texts: list[bytes], lines: np.ndarray[Any, Any]) -> tuple[U64, U64]:
        options = self.job.record.options
        if options.dedup == "exact":
            return text_keys(options.seed, texts)
        return document_keys(options.seed, self.item.input, lines), np.zeros(len(lines), dtype=np.uint64)

    def _splits(self, texts: list[bytes]) -> np.ndarray[Any, Any]:
        """Which of the texts are held out: bool [n]."""
        share = self.job.record.options.validation
        if share <= 0:
            return np.zeros(len(texts), dtype=bool)
        return split_hashes(texts) < np.uint64(min(int(share * 2**64), 2**64 - 1))

    def _groups(self, sources: list[str], held_out: np.ndarray[Any, Any], buffer: RunBuffer) -> np.ndarray[Any, Any]:
        train = {name: buffer.group_number(name, "train") for name in set(sources)}
        groups = np.array([train[name] for name in sources], dtype=np.int64)
        for at in np.flatnonzero(held_out).tolist():
            groups[at] = buffer.group_number(sources[at], "validation")
        return groups

    def _refuse_special(
        self, texts: list[bytes], sources: list[str], lines: list[int], offsets: list[int]
    ) -> tuple[list[bytes], list[str], list[int], list[Rejection]]:
        special = [self.tokenizer.contains_special(text) for text in texts]
        if not any(special):
            return texts, sources, lines, []
        first_line, *at_bytes = offsets
        refused = [
            Rejection(
                line,
                at_bytes[line - first_line],
                Reason.SPECIAL_TOKEN,
                "the text holds a special token",
                text[:200].decode(errors="replace"),
            )
            for text, line, bad in zip(texts, lines, special, strict=True)
            if bad
        ]
        kept = [at for at, bad in enumerate(special) if not bad]
        return [texts[at] for at in kept], [sources[at] for at in kept], [lines[at] for at in kept], refused

    def _check_no_eod(self, tokens: np.ndarray[Any, Any], ends: np.ndarray[Any, Any], lines: list[int]) -> None:
        """A text that gives the end-of-document id would end its document early; only the token policy wants that."""
        if self.job.record.options.special_tokens == "token":
            return
        found = np.flatnonzero(tokens == self.tokenizer.eod_id)
        if len(found):
            line = lines[int(np.searchsorted(ends, found[0], "right"))]
            url = self.job.record.inputs[self.item.input].url
            raise BuildError(
                f"{url}: line {line:,}: its text gives the end-of-document id {self.tokenizer.eod_id} "
                f"({self.tokenizer.eod_token!r}); choose another with --eod, or --special-tokens=token"
            )


def _is_large(block: LineBlock) -> bool:
    """Whether a block has a long line, which takes memory of its own while it is in work."""
    return sum(map(len, block.lines)) > 2 * BLOCK_BYTES


def _open_input(job: Job, url: str, storage: Storage) -> WholeFile:
    try:
        return open_url(url, job.storage_options, retry=job.retry, retries=storage.retries)
    except FileNotFoundError as error:
        raise InputError(url, 0, "the input is not there") from error
