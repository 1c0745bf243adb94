"""Forged indexes, manifests and lists of rejected lines."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pileshard.audit.report import FaultKind as K
from tests.audit.checking import Expected
from tests.audit.forge import Forgery
from tests.audit.forgeries import CASES, case, largest_shard, long_document

# Indexes


def _with_table(d: Forgery, row: int, column: int, change: int) -> Expected:
    shard = d.largest()
    data = bytearray(d.path(shard["index_path"]).read_bytes())
    columns = shard["records"] + 1
    at = 128 + 8 * (row * columns + column % columns)
    (value,) = struct.unpack_from("<Q", data, at)
    struct.pack_into("<Q", data, at, value + change & 2**64 - 1)
    d.write_index(shard, bytes(data))
    return Expected(K.INDEX, shard["index_path"])


for _row, _name in enumerate(("tokens", "offset", "text_bytes", "key")):
    for _column in (0, 1, -1):
        CASES[f"index_{_name}_{_column}"] = (
            "golden",
            lambda d, row=_row, column=_column: _with_table(d, row, column, 1),  # type: ignore[misc]
            frozenset(),
        )


@case()
def index_with_text_bytes_on_the_wrong_record(d: Forgery) -> Expected:
    shard, records = largest_shard(d)
    one, other, *rest = records
    d.write(shard, [replace(one, text_bytes=0), replace(other, text_bytes=one.text_bytes + other.text_bytes), *rest])
    return Expected(K.INDEX, shard["index_path"])


@case("parts_dataset")
def index_with_text_bytes_on_a_later_part(d: Forgery) -> Expected:
    shard, records, at = long_document(d)
    records[at] = replace(records[at], text_bytes=records[at].text_bytes - 5)
    records[at + 1] = replace(records[at + 1], text_bytes=5)
    d.write(shard, records)
    return Expected(K.INDEX, shard["index_path"])


@case()
def index_of_one_record_less(d: Forgery) -> Expected:
    shard = d.largest()
    d.write_index(shard, d.path(d.shard_of("Prose")["index_path"]).read_bytes())
    return Expected(K.INDEX, shard["index_path"])


@case()
def index_that_is_none(d: Forgery) -> Expected:
    shard = d.largest()
    d.write_index(shard, b"PK\x03\x04" + bytes(156))
    return Expected(K.INDEX, shard["index_path"])


@case()
def index_whose_header_claims_more(d: Forgery) -> Expected:
    shard = d.largest()
    data = d.path(shard["index_path"]).read_bytes()
    d.write_index(shard, data.replace(b"(4, 5), }", b"(4, 5999999999999), }")[: len(data)])
    return Expected(K.INDEX, shard["index_path"])


# The manifest


@case()
def another_width_of_tokens(d: Forgery) -> Expected:
    d.manifest["dtype"] = "uint32"
    d.sign()
    return Expected(K.TOKENIZER, "manifest.json")


@case()
def another_size_of_vocabulary(d: Forgery) -> Expected:
    d.manifest["vocab_size"] += 1
    d.sign()
    return Expected(K.TOKENIZER, "tokenizer.json")


@case()
def another_end_of_document(d: Forgery) -> Expected:
    d.manifest["eod_id"] = 5
    d.sign()
    return Expected(K.END_OF_DOCUMENT, d.largest()["path"], 0)


@case()
def end_of_document_outside_the_vocabulary(d: Forgery) -> Expected:
    d.manifest["eod_id"] = 2**40
    d.sign()
    return Expected(K.TOKENIZER, "manifest.json")


@case()
def another_tokenizer(d: Forgery) -> Expected:
    import hashlib

    from tests.tokenizers_made import tiny_gpt2_json

    d.path("tokenizer.json").write_bytes(tiny_gpt2_json(330))
    d.manifest["tokenizer_sha256"] = hashlib.sha256(tiny_gpt2_json(330)).hexdigest()
    d.sign()
    return Expected(K.TOKENIZER, "tokenizer.json")


@case()
def no_tokenizer_at_all(d: Forgery) -> Expected:
    import hashlib

    d.path("tokenizer.json").write_bytes(b"[]")
    d.manifest["tokenizer_sha256"] = hashlib.sha256(b"[]").hexdigest()
    d.sign()
    return Expected(K.TOKENIZER, "tokenizer.json")


@case()
def tokenizer_in_another_place(d: Forgery) -> Expected:
    d.manifest["tokenizer_path"] = "../../../etc/hostname"
    d.sign()
    return Expected(K.TOKENIZER, "manifest.json")


@case(traces=(K.MANIFEST_CHECKSUM,))
def another_dataset_id(d: Forgery) -> Expected:
    d.manifest["dataset_id"] = "0" * 32
    d.sign_as_it_is()
    return Expected(K.MANIFEST_CHECKSUM, "manifest.json")


@case()
def gap_between_ranges_of_keys(d: Forgery) -> Expected:
    shard = d.shard_of("Prose", number=1)
    shard["key_first"] = f"{int(shard['key_first'], 16) + 1:016x}"
    d.sign()
    return Expected(K.KEY_RANGE, "manifest.json")


@case()
def highest_keys_left_out(d: Forgery) -> Expected:
    shard = d.shard_of("Prose", number=1)
    shard["key_last"] = "f" * 15 + "e"
    d.sign()
    return Expected(K.KEY_RANGE, "manifest.json")


@case()
def range_of_keys_the_wrong_way_round(d: Forgery) -> Expected:
    one, other = (d.shard_of("Prose", number=number) for number in (0, 1))
    one["key_last"], other["key_first"] = "8" * 16, "8" * 15 + "9"
    one["key_first"], one["key_last"] = one["key_last"], one["key_first"]
    d.sign()
    return Expected(K.KEY_RANGE, "manifest.json")


@case(traces=(K.SURPLUS_FILE,))
def shard_left_out_of_the_list(d: Forgery) -> Expected:
    d.shards.remove(d.shard_of("Prose", number=1))
    d.seal()
    return Expected(K.KEY_RANGE, "manifest.json")


@case()
def shards_in_another_order(d: Forgery) -> Expected:
    d.shards.reverse()
    d.sign()
    return Expected(K.ACCOUNT, "manifest.json")


@case()
def shard_listed_twice(d: Forgery) -> Expected:
    d.shards.insert(1, dict(d.shards[0]))
    d.seal()
    return Expected(K.ACCOUNT, "manifest.json")


@case(traces=(K.SURPLUS_FILE,))
def shard_outside_the_root(d: Forgery) -> Expected:
    """The path leads to a device that never ends; it is not opened."""
    d.shards[0]["path"] = "/".join([".."] * 20) + "/dev/zero"
    d.sign()
    return Expected(K.ACCOUNT, "manifest.json")


@case()
def names_that_claim_more_shards(d: Forgery) -> Expected:
    for shard in d.shards:
        if (shard["source"], shard["split"]) == ("Prose", "train"):
            shard["count"] += 1
            for name in ("path", "index_path"):
                renamed = shard[name].replace("-of-00002", "-of-00003")
                d.path(shard[name]).rename(d.path(renamed))
                shard[name] = renamed
    d.sign()
    return Expected(K.ACCOUNT, "manifest.json")


@case()
def source_without_totals(d: Forgery) -> Expected:
    d.manifest["sources"].pop()
    d.sign()
    return Expected(K.ACCOUNT, "manifest.json")


@case()
def lines_unaccounted_for(d: Forgery) -> Expected:
    d.manifest["inputs"][0]["lines"] += 1
    d.sign()
    return Expected(K.ACCOUNT, "manifest.json")


@case()
def input_left_out_that_gave_documents(d: Forgery) -> Expected:
    d.manifest["inputs"][1]["skipped"] = "damaged"
    d.sign()
    return Expected(K.ACCOUNT, "manifest.json")


for _name in ("documents", "tokens", "text_bytes"):
    for _place in ("dataset", "source", "shard", "input"):
        if (_place, _name) == ("input", "documents"):
            continue

        def _wrong_total(d: Forgery, place: str = _place, name: str = _name) -> Expected:
            holder = {
                "dataset": d.manifest,
                "source": d.manifest["sources"][0],
                "shard": d.shards[0],
                "input": d.manifest["inputs"][0],
            }[place]
            holder[name] += 1
            d.sign()
            return Expected(K.ACCOUNT, "manifest.json")

        CASES[f"wrong_{_name}_of_{_place}"] = ("golden", _wrong_total, frozenset())


@case()
def totals_that_agree_and_are_not_the_shard_s(d: Forgery) -> Expected:
    shard = d.largest()
    shard["tokens"] += 7
    d.seal()
    return Expected(K.TOTALS, shard["path"])


@case()
def text_bytes_that_agree_and_are_not_the_index_s(d: Forgery) -> Expected:
    shard = d.largest()
    shard["text_bytes"] += 7
    d.seal()
    return Expected(K.INDEX, shard["index_path"])


# Rejected lines


def _rejected(d: Forgery, change: Callable[[dict[str, Any]], Any]) -> Expected:
    path = d.manifest["inputs"][0]["rejected_path"]
    entry = json.loads(d.path(path).read_bytes())
    changed = change(entry)
    lines = changed if isinstance(changed, list) else [entry]
    data = b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines)
    d.path(path).write_bytes(data)
    d.manifest["inputs"][0]["rejected_sha256"] = hashlib.sha256(data).hexdigest()
    d.sign()
    return Expected(K.REJECTED, path)


@case()
def rejected_line_not_listed(d: Forgery) -> Expected:
    return _rejected(d, lambda entry: [])


@case()
def rejected_line_listed_twice(d: Forgery) -> Expected:
    return _rejected(d, lambda entry: [entry, entry])


@case()
def rejected_line_of_another_reason(d: Forgery) -> Expected:
    return _rejected(d, lambda entry: entry.update(reason="no_text"))


@case()
def rejected_line_of_another_input(d: Forgery) -> Expected:
    return _rejected(d, lambda entry: entry.update(input="elsewhere"))


@case()
def rejected_line_that_the_input_does_not_have(d: Forgery) -> Expected:
    return _rejected(d, lambda entry: entry.update(line=8))


@case()
def rejected_line_in_another_form(d: Forgery) -> Expected:
    return _rejected(d, lambda entry: entry.update(surprise=1))


@case()
def rejected_line_cut_off(d: Forgery) -> Expected:
    return _rejected(d, lambda entry: [json.dumps(entry).encode()])


@case()
def rejected_line_without_end(d: Forgery) -> Expected:
    return _rejected(d, lambda entry: [b"[" * 3_000_000])


@case()
def rejected_lines_in_another_place(d: Forgery) -> Expected:
    d.manifest["inputs"][0]["rejected_path"] = "../../dev/zero"
    d.sign()
    return Expected(K.REJECTED, "manifest.json")


@case(traces=(K.WRONG_SHA256,))
def rejected_lines_of_another_hash(d: Forgery) -> Expected:
    d.manifest["inputs"][0]["rejected_sha256"] = "0" * 64
    d.sign()
    return Expected(K.WRONG_SHA256, d.manifest["inputs"][0]["rejected_path"])
