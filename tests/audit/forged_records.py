"""Forged records: documents, tokens, framing and parts."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pileshard.audit.report import FaultKind as K
from pileshard.format.record import example_head, masked_crc
from tests.audit.checking import Expected
from tests.audit.forge import Forgery, framed
from tests.audit.forgeries import case, largest_shard, long_document

# Documents


@case()
def document_twice(d: Forgery) -> Expected:
    shard, records = largest_shard(d)
    d.write(shard, [*records[:2], records[1], *records[2:]])
    return Expected(K.KEY_ORDER, shard["path"], d.offset(shard, 2))


@case()
def documents_out_of_order(d: Forgery) -> Expected:
    shard, records = largest_shard(d)
    d.write(shard, [records[0], records[2], records[1], *records[3:]])
    return Expected(K.KEY_ORDER, shard["path"], d.offset(shard, 2))


@case()
def first_document_twice_and_the_second_missing(d: Forgery) -> Expected:
    shard, records = largest_shard(d)
    d.write(shard, [records[0], replace(records[0], key=records[1].key), *records[2:]])
    return Expected(K.KEY_ORDER, shard["path"], d.offset(shard, 1))


@case()
def document_missing_and_the_account_of_inputs_unchanged(d: Forgery) -> Expected:
    shard, records = largest_shard(d)
    d.write(shard, records[:-1], close=False)
    return Expected(K.ACCOUNT, "manifest.json")


@case()
def document_missing_and_the_sum_of_identities_unchanged(d: Forgery) -> Expected:
    shard, records = largest_shard(d)
    before = shard["identity_sum"]
    d.write(shard, records[:-1])
    shard["identity_sum"] = before
    d.seal()
    return Expected(K.IDENTITY, shard["path"])


@case()
def document_of_another_line(d: Forgery) -> Expected:
    shard, records = largest_shard(d)
    before = shard["identity_sum"]
    other = d.renumbered(records[1], line=6 if records[1].line != 6 else 5)
    d.write(shard, sorted([records[0], other, *records[2:]], key=lambda r: r.key))
    shard["identity_sum"] = before
    d.seal()
    return Expected(K.IDENTITY, shard["path"])


@case(traces=(K.KEY_RANGE,))
def line_that_the_input_does_not_have(d: Forgery) -> Expected:
    shard, records = largest_shard(d)
    d.write(shard, [d.renumbered(records[0], line=500), *records[1:]])
    return Expected(K.IDENTITY, shard["path"], 0)


@case()
def line_zero(d: Forgery) -> Expected:
    shard, records = largest_shard(d)
    d.write(shard, [*records[:-1], d.renumbered(records[-1], line=0)])
    return Expected(K.IDENTITY, shard["path"], d.offset(shard, len(records) - 1))


@case()
def input_that_there_is_not(d: Forgery) -> Expected:
    shard, records = largest_shard(d)
    d.write(shard, [d.renumbered(records[0], input=2), *records[1:]])
    return Expected(K.IDENTITY, shard["path"], 0)


@case()
def numbers_of_64_bits(d: Forgery) -> Expected:
    shard, records = largest_shard(d)
    d.write(shard, [d.renumbered(records[0], line=2**64 - 1), *records[1:]])
    return Expected(K.RECORD, shard["path"], 0)


@case()
def largest_numbers_that_are_parsed(d: Forgery) -> Expected:
    shard, records = largest_shard(d)
    d.write(shard, [replace(records[0], input=2**63 - 1, line=2**63 - 1), *records[1:]])
    return Expected(K.IDENTITY, shard["path"], 0)


@case()
def document_in_the_wrong_shard(d: Forgery) -> Expected:
    one, other = (d.shard_of("Prose", number=number) for number in (0, 1))
    ones, others = d.records(one), d.records(other)
    d.write(one, ones[:-1])
    d.write(other, [ones[-1], *others])
    return Expected(K.KEY_RANGE, other["path"], 0)


@case()
def keys_of_another_seed(d: Forgery) -> Expected:
    d.manifest["options"]["seed"] += 1
    d.sign()
    return Expected(K.INDEX, d.largest()["index_path"])


# Tokens


@case()
def id_out_of_range(d: Forgery) -> Expected:
    shard, records = largest_shard(d)
    ids = d.ids(records[1])
    ids[-2] = d.manifest["vocab_size"]
    d.write(shard, [records[0], d.with_ids(records[1], ids), *records[2:]])
    return Expected(K.TOKEN_RANGE, shard["path"], d.offset(shard, 2) - 4 - 2 * d.width)


@case("wide_dataset")
def wide_id_out_of_range(d: Forgery) -> Expected:
    shard, records = largest_shard(d)
    ids = d.ids(records[1])
    ids[0] = 2**32 - 1
    d.write(shard, [records[0], d.with_ids(records[1], ids), *records[2:]])
    return Expected(K.TOKEN_RANGE, shard["path"], d.offset(shard, 2) - 4 - len(ids) * d.width)


@case()
def end_of_document_missing(d: Forgery) -> Expected:
    shard, records = largest_shard(d)
    d.write(shard, [records[0], d.with_ids(records[1], d.ids(records[1])[:-1]), *records[2:]])
    return Expected(K.END_OF_DOCUMENT, shard["path"], d.offset(shard, 1))


@case()
def end_of_the_last_document_missing(d: Forgery) -> Expected:
    shard, records = largest_shard(d)
    d.write(shard, [*records[:-1], d.with_ids(records[-1], d.ids(records[-1])[:-1])])
    return Expected(K.END_OF_DOCUMENT, shard["path"], d.offset(shard, len(records) - 1))


@case()
def end_of_document_within(d: Forgery) -> Expected:
    shard, records = largest_shard(d)
    ids = d.ids(records[1])
    ids[0] = d.manifest["eod_id"]
    d.write(shard, [records[0], d.with_ids(records[1], ids), *records[2:]])
    return Expected(K.END_OF_DOCUMENT, shard["path"], d.offset(shard, 2) - 4 - len(ids) * d.width)


@case()
def end_of_document_twice(d: Forgery) -> Expected:
    shard, records = largest_shard(d)
    ids = [*d.ids(records[1]), d.manifest["eod_id"]]
    d.write(shard, [records[0], d.with_ids(records[1], ids), *records[2:]])
    return Expected(K.END_OF_DOCUMENT, shard["path"], d.offset(shard, 2) - 4 - 2 * d.width)


# Records


@case()
def record_without_tokens(d: Forgery) -> Expected:
    shard, records = largest_shard(d)
    d.write(shard, [records[0], replace(records[1], tokens=b""), *records[2:]])
    return Expected(K.RECORD, shard["path"], d.offset(shard, 1))


@case()
def half_a_token(d: Forgery) -> Expected:
    shard, records = largest_shard(d)
    d.write(shard, [records[0], replace(records[1], tokens=records[1].tokens + b"\0"), *records[2:]])
    return Expected(K.RECORD, shard["path"], d.offset(shard, 1))


def _with_example(d: Forgery, change: Callable[[bytes], bytes]) -> Expected:
    shard, records = largest_shard(d)
    record = records[1]
    example = example_head(record.input, record.line, record.part, len(record.tokens)) + record.tokens
    d.write(shard, [records[0], replace(record, raw=framed(change(example))), *records[2:]])
    return Expected(K.RECORD, shard["path"], d.offset(shard, 1))


@case()
def example_of_no_bytes(d: Forgery) -> Expected:
    return _with_example(d, lambda _: b"")


@case()
def example_of_other_features(d: Forgery) -> Expected:
    return _with_example(d, lambda example: example.replace(b"tokens", b"tocens"))


@case()
def example_of_one_byte_more(d: Forgery) -> Expected:
    return _with_example(d, lambda example: example + b"\0")


@case()
def example_with_a_long_varint(d: Forgery) -> Expected:
    return _with_example(d, lambda example: example.replace(b"\x1a\x03\x0a\x01\x00", b"\x1a\x04\x0a\x02\x80\x00"))


@case()
def example_of_anything(d: Forgery) -> Expected:
    return _with_example(d, lambda example: bytes(reversed(example)))


def _with_length(d: Forgery, length: int) -> Expected:
    shard, records = largest_shard(d)
    raw = struct.pack("<Q", length)
    raw += struct.pack("<I", masked_crc(raw)) + records[1].framed()[12:]
    d.write(shard, [records[0], replace(records[1], raw=raw), *records[2:]])
    return Expected(K.FRAMING, shard["path"], d.offset(shard, 1))


@case()
def length_beyond_all_files(d: Forgery) -> Expected:
    return _with_length(d, 2**60)


@case()
def largest_length(d: Forgery) -> Expected:
    return _with_length(d, 2**64 - 1)


@case()
def length_beyond_the_file(d: Forgery) -> Expected:
    return _with_length(d, 50_000)


@case()
def zeros(d: Forgery) -> Expected:
    shard, records = largest_shard(d)
    d.write(shard, [replace(records[0], raw=bytes(400_000)), *records[1:]])
    return Expected(K.FRAMING, shard["path"], 0)


# Parts


@case()
def part_of_a_document_that_has_none(d: Forgery) -> Expected:
    shard, records = largest_shard(d)
    d.write(shard, [records[0], replace(records[1], part=1, text_bytes=0), *records[2:]])
    return Expected(K.PARTS, shard["path"], d.offset(shard, 1))


@case("parts_dataset")
def first_part_missing(d: Forgery) -> Expected:
    shard, records, at = long_document(d)
    d.write(shard, [*records[:at], *records[at + 1 :]])
    return Expected(K.PARTS, shard["path"], d.offset(shard, at))


@case("parts_dataset")
def middle_part_missing(d: Forgery) -> Expected:
    shard, records, at = long_document(d)
    d.write(shard, [*records[: at + 1], *records[at + 2 :]])
    return Expected(K.PARTS, shard["path"], d.offset(shard, at + 1))


@case("parts_dataset")
def last_part_missing(d: Forgery) -> Expected:
    shard, records, at = long_document(d)
    d.write(shard, [*records[: at + 2], *records[at + 3 :]])
    return Expected(K.PARTS, shard["path"], d.offset(shard, at + 1))


@case("parts_dataset")
def last_part_of_the_shard_missing(d: Forgery) -> Expected:
    shard, records, at = long_document(d)
    d.write(shard, records[: at + 2])
    return Expected(K.PARTS, shard["path"], d.offset(shard, at + 1))


@case("parts_dataset")
def part_twice(d: Forgery) -> Expected:
    shard, records, at = long_document(d)
    d.write(shard, [*records[: at + 2], records[at + 1], *records[at + 2 :]])
    return Expected(K.PARTS, shard["path"], d.offset(shard, at + 2))


@case("parts_dataset")
def first_part_twice(d: Forgery) -> Expected:
    shard, records, at = long_document(d)
    d.write(shard, [*records[: at + 1], *records[at:]])
    return Expected(K.KEY_ORDER, shard["path"], d.offset(shard, at + 1))


@case("parts_dataset")
def parts_swapped(d: Forgery) -> Expected:
    shard, records, at = long_document(d)
    d.write(shard, [*records[: at + 1], records[at + 2], records[at + 1], *records[at + 3 :]])
    return Expected(K.PARTS, shard["path"], d.offset(shard, at + 1))


@case("parts_dataset")
def parts_of_two_documents_mixed(d: Forgery) -> Expected:
    shard, records, at = long_document(d)
    two = next(n for n, record in enumerate(records) if record.part == 1 and n != at + 1)
    one, other = records[at + 2], records[two]
    records[at + 2] = replace(one, input=other.input, line=other.line, key=other.key)
    d.write(shard, records)
    return Expected(K.PARTS, shard["path"], d.offset(shard, at + 2))


@case("parts_dataset")
def parts_cut_at_another_place(d: Forgery) -> Expected:
    shard, records, at = long_document(d)
    joined = np.concatenate([d.ids(records[at + 1]), d.ids(records[at + 2])])
    records[at + 1] = d.with_ids(records[at + 1], joined[:-20])
    records[at + 2] = d.with_ids(records[at + 2], joined[-20:])
    d.write(shard, records)
    return Expected(K.PARTS, shard["path"], d.offset(shard, at + 1))


@case("parts_dataset")
def part_of_more_than_the_most_tokens(d: Forgery) -> Expected:
    shard, records, at = long_document(d)
    joined = np.concatenate([d.ids(records[at + 1]), d.ids(records[at + 2])])
    d.write(shard, [*records[: at + 1], d.with_ids(records[at + 1], joined), *records[at + 3 :]])
    return Expected(K.PARTS, shard["path"], d.offset(shard, at + 1))


@case("parts_dataset")
def end_of_document_at_the_end_of_a_part_within(d: Forgery) -> Expected:
    shard, records, at = long_document(d)
    ids = d.ids(records[at])
    ids[-1] = d.manifest["eod_id"]
    records[at] = d.with_ids(records[at], ids)
    d.write(shard, records)
    return Expected(K.END_OF_DOCUMENT, shard["path"], d.offset(shard, at))


# Where texts may hold the end-of-document id, and where keys are of texts


@case("token_dataset")
def token_end_of_document_missing(d: Forgery) -> Expected:
    shard, records = largest_shard(d)
    d.write(shard, [d.with_ids(records[0], [5, 6]), *records[1:]])
    return Expected(K.END_OF_DOCUMENT, shard["path"], 0)


@case("token_dataset")
def token_last_part_missing(d: Forgery) -> Expected:
    """The part before it ends in the id, as it may: only the length of the text tells, through the account."""
    shard, records = largest_shard(d)
    at = next(n for n, record in enumerate(records) if record.part == 1)
    d.write(shard, [*records[:at], *records[at + 1 :]], close=False)
    return Expected(K.ACCOUNT, "manifest.json")


@case("token_dataset")
def token_short_part_within(d: Forgery) -> Expected:
    shard, records = largest_shard(d)
    at = next(n for n, record in enumerate(records) if record.part == 1)
    records[at - 1] = d.with_ids(records[at - 1], d.ids(records[at - 1])[1:])
    d.write(shard, records)
    return Expected(K.PARTS, shard["path"], d.offset(shard, at - 1))


@case("exact_dataset")
def exact_document_twice(d: Forgery) -> Expected:
    shard, records = largest_shard(d)
    d.write(shard, [*records[:3], records[2], *records[3:]])
    return Expected(K.KEY_ORDER, shard["path"], d.offset(shard, 3))


@case("exact_dataset")
def exact_documents_out_of_order(d: Forgery) -> Expected:
    shard, records = largest_shard(d)
    d.write(shard, [records[1], records[0], *records[2:]])
    return Expected(K.KEY_ORDER, shard["path"], d.offset(shard, 1))


@case("exact_dataset")
def exact_key_out_of_range(d: Forgery) -> Expected:
    one, other = d.shards[:2]
    assert one["source"] == other["source"]
    ones, others = d.records(one), d.records(other)
    d.write(one, ones[:-1])
    d.write(other, [ones[-1], *others])
    return Expected(K.KEY_RANGE, other["path"], 0)


@case("exact_dataset")
def exact_document_missing(d: Forgery) -> Expected:
    shard, records = largest_shard(d)
    d.write(shard, records[1:], close=False)
    return Expected(K.ACCOUNT, "manifest.json")
