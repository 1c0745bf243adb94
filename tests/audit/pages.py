"""Statistics of many kinds of datasets to be drawn, without the datasets."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from pileshard.audit.shard_counts import Counts
from pileshard.audit.statistics import _account, _counted, _input, _size_histogram, _sizes
from pileshard.audit.statistics_report import SourceStatistics, Statistics
from pileshard.audit.vocabulary import VocabularyCount
from pileshard.format.manifest import InputEntry, Manifest, Options, ShardEntry, SourceEntry
from pileshard.format.paths import index_path, shard_path

HOSTILE = [
    "</script><img src=x onerror=\"document.title='owned'\">",
    "<style>*{display:none}</style>",
    "]]><svg onload=alert(1)>",
    "x" * 200,
    "W" * 200,
    "שלום עולם של מקורות ארוכים מאוד",
    "\u202eevil\u202c right to left",
    "👩‍👩‍👧‍👦 🎉🎉🎉 emoji",
    "中文名字很長的來源中文名字很長的來源中文名字很長的來源",
    "&lt;b&gt; &amp; &#0;",
    "a\nb\tc\0d\x7f\x85\u2028",
    "",
    " ",
    "{{7*7}} ${x} %s",
    "'\"`--><!--",
    "datum.value = 1",
    "../../etc/passwd",
    "same name, cut the same way: one",
    "same name, cut the same way: two",
]
PILE = [
    *("Pile-CC", "PubMed Central", "Books3", "OpenWebText2", "ArXiv", "Github", "FreeLaw", "StackExchange"),
    *("USPTO Backgrounds", "PubMed Abstracts", "Gutenberg (PG-19)", "OpenSubtitles", "Wikipedia (en)"),
    *("DM Mathematics", "Ubuntu IRC", "BookCorpus2", "EuroParl", "HackerNews", "YoutubeSubtitles", "PhilPapers"),
    *("NIH ExPorter", "Enron Emails"),
]


class _Tokenizer:
    """As much of a tokenizer as the vocabulary asks for: words of markup."""

    def get_vocab(self, with_added_tokens: bool) -> dict[str, int]:
        return {f"<t{at}>": at for at in range(1000)}

    def id_to_token(self, at: int) -> str:
        return f"<img src=x onerror=alert({at})>"

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return f"</code><script>alert({ids[0]})</script>"


def made_statistics(
    names: list[str],
    *,
    seed: int = 0,
    splits: tuple[str, ...] = ("train", "validation"),
    rejects: bool = True,
    inputs: int = 30,
    vocab: bool = True,
    url: str = "https://me:pw@host.example/data/pile?sig=secret",
) -> Statistics:
    """Random statistics of sources of these names, by the code that counts."""
    rng = np.random.default_rng(seed)
    shards: list[ShardEntry] = []
    groups: list[tuple[str, str, Counts]] = []
    vocabulary = VocabularyCount(_Tokenizer(), 1010, 3)
    for name in sorted(names):
        for split in splits:
            counts = Counts()
            size = int(rng.pareto(0.6) * 40) % 4000 + 1
            lengths = np.minimum(1 + rng.lognormal(rng.uniform(3, 8), 1.2, size), 10**7).astype(np.int64)
            counts.add_documents(lengths, (lengths * rng.uniform(1, 5, size)).astype(np.int64) + 1)
            counts.tokens, counts.text_bytes = int(lengths.sum()), 3 * int(lengths.sum())
            counts.records = counts.documents
            counts.ids = np.bincount(np.minimum(rng.zipf(1.3, 4000), 1009), minlength=1010).astype(np.int64)
            vocabulary.add(name, counts)
            count = int(rng.integers(1, 4))
            for number in range(count):
                shards.append(_shard(name, split, number, count, int(rng.integers(10**8, 10**9))))
            groups.append((name, split, counts))
    random.Random(seed).shuffle(names)
    total = Counts()
    for *_, counts in groups:
        total.add(counts)
    manifest = _manifest(groups, shards, total, inputs, rejects, rng)
    named: dict[str, Counts] = {split: Counts() for *_, split in [(group[1],) for group in groups]}
    for _, split, counts in groups:
        named[split].add(counts)
    from pileshard.audit.redact import public_url

    return Statistics(
        url=public_url(url),
        dataset_id="0" * 32,
        format_version=1,
        writer="pileshard 0.1.0",
        dtype="uint16",
        vocab_size=1010,
        eod_id=0,
        eod_token="<|endoftext|>",
        tokenizer_sha256="0" * 64,
        shard_bytes=10**9,
        counted=_counted(total),
        splits={split: _counted(counts) for split, counts in sorted(named.items())},
        sources=[
            SourceStatistics(
                name=name,
                split=split,  # type: ignore[arg-type]
                token_share=counts.tokens / total.tokens,
                counted=_counted(counts),
                shards=_sizes([shard for shard in shards if (shard.source, shard.split) == (name, split)]),
            )
            for name, split, counts in groups
        ],
        shards=_sizes(shards),
        shard_histogram=_size_histogram(shards),
        account=_account(manifest),
        inputs=[_input(entry, manifest) for entry in manifest.inputs],
        vocabulary=vocabulary.result() if vocab else None,
    )


def _shard(source: str, split: str, number: int, count: int, size: int) -> ShardEntry:
    path = shard_path(source, split, number, count)
    fixed: dict[str, Any] = {"sha256": "0" * 64, "index_sha256": "0" * 64, "identity_sum": "0" * 16}
    fixed |= {"records": 1, "documents": 1, "tokens": 1, "text_bytes": 1, "key_first": "0" * 16, "key_last": "f" * 16}
    where = {"path": path, "index_path": index_path(path), "index_size": 1000, "size": size}
    return ShardEntry(source=source, split=split, number=number, count=count, **where, **fixed)  # type: ignore[arg-type]


def _manifest(
    groups: list[tuple[str, str, Counts]],
    shards: list[ShardEntry],
    total: Counts,
    inputs: int,
    rejects: bool,
    rng: np.random.Generator,
) -> Manifest:
    reasons = ["invalid_json", "no_text", "empty_text", "line_too_long", "lone_surrogate"]
    entries = []
    for number in range(inputs):
        rejected = {reason: int(rng.integers(1, 5000)) for reason in reasons[: number % 5]} if rejects else {}
        accepted = int(rng.integers(10**5, 10**6))
        entries.append(
            InputEntry(
                url=f"https://user:PASSWORD@host.example/{number:02}<i>.jsonl.zst?sig=SECRET",
                size=10**9,
                sha256="0" * 64,
                lines=accepted + sum(rejected.values()) + number,
                accepted=accepted,
                rejected=rejected,
                blank=number,
                tokens=accepted,
                skipped="https://user:PASSWORD@host.example/x <b>damaged</b>" if number == 7 else None,
            )
        )
    return Manifest(
        dtype="uint16",
        vocab_size=1010,
        eod_id=0,
        eod_token="<|endoftext|>",
        tokenizer_sha256="0" * 64,
        options=Options(
            seed=0,
            shard_bytes=10**9,
            validation=0.1,
            dedup="exact",
            special_tokens="text",
            text_key="text",
            source_key="meta.pile_set_name",
        ),
        documents=total.documents,
        tokens=total.tokens,
        text_bytes=total.text_bytes,
        inputs=entries,
        sources=[
            SourceEntry(
                name=name,
                split=split,  # type: ignore[arg-type]
                documents=counts.documents,
                tokens=counts.tokens,
                text_bytes=counts.text_bytes,
                shards=1,
            )
            for name, split, counts in groups
        ],
        shards=shards,
    )
