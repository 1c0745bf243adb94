"""Sorts the injected faults into kinds that a person tells apart, for the table in the README."""

from __future__ import annotations

import re

#: Title of each kind, and what the names of its faults match: the first one that does.
DAMAGE = {
    "shard, index or folder missing": "missing_(shard|index|folder)",
    "file that the manifest does not name": "surplus",
    "shards or indexes renamed or swapped": "(renamed|swapped)_(shard|index)",
    "shard or index cut off, also exactly at the end of a record": "(truncated_(shard|index)|shard_truncated)",
    "shard or index extended, also by a whole record": "(extended_(shard|index)|shard_extended|index_extended)",
    "shard or index emptied": "empty_(shard|index)",
    "folder in place of a file, file in place of a folder": "(folders?|file)_in_place",
    "flipped bit in a shard: length, CRC, head, token": "flipped_bit_in_(a_length|the_crc|the_head_of|a_token)",
    "flipped bit in an index": "flipped_bit_in_(an_index|the_header_of_an_index)",
    "record overwritten": "record_put",
    "index of another shard; shard of another build or dataset": "(index_of_another|shard_of_another|shard_and_index)",
    "manifest missing, cut, emptied, flipped, rewritten, of another dataset": (
        "(missing_manifest|cut_manifest|empty_manifest|extended_manifest|flipped_bit_in_the_manifest|manifest_written"
        "|manifest_of_another_dataset)"
    ),
    "manifest of another format; unfinished build": "(manifest_of|manifest_without|unfinished_build)",
    "tokenizer missing, flipped, emptied, of another dataset": (
        "(missing_tokenizer|flipped_bit_in_the_tokenizer|empty_tokenizer|tokenizer_of)"
    ),
    "list of rejected lines missing": "missing_rejected",
}
FORGED = {
    "index that does not describe its shard": "(index_|text_bytes_that_agree)",
    "width of tokens, vocabulary, end-of-document id, tokenizer": (
        "(another_(width|size|end|tokenizer)|end_of_document_outside|no_tokenizer|tokenizer_in)"
    ),
    "account: totals of inputs, sources, shards": "(wrong_|totals_|lines_unaccounted|input_left_out|source_without)",
    "list of shards, ranges of keys, names": "(another_dataset_id|gap_|highest_keys|range_of|shards?_|names_that)",
    "lists of rejected lines": "rejected_line",
    "documents twice, missing, out of order, of another line or shard": (
        "(document_|documents_|first_document|line_|input_that|numbers_of|largest_numbers|keys_of)"
    ),
    "ids out of range; end of document missing or within": "(id_out|end_of_|record_without|half_a)",
    "records that are no Example; lengths that lie": "(example_|length_|largest_length|zeros|part_of)",
}
DEEP = {
    "token changed and every hash made anew (level deep)": "token_changed",
    "input gone or changed since (level deep)": "input_",
}
KINDS = {"damage": DAMAGE, "forged": FORGED, "deep": DEEP}


def group_of(kind: str, name: str) -> str:
    """The title of a fault's kind.

    Raises:
      LookupError: it is in none.
    """
    for title, pattern in KINDS[kind].items():
        if re.match(pattern, name):
            return title
    raise LookupError(f"no kind of fault is given for {name!r}: add one to {__name__}")
