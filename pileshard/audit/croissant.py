"""A dataset's Croissant description (JSON-LD, version 1.0), from its manifest.

Croissant names no format like TFRecord, so its readers can fetch and check the shards, not decode them; what they can
read are the tables of the manifest. Source: https://docs.mlcommons.org/croissant/docs/croissant-spec-1.0.html
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from pileshard.format.manifest import Manifest
from pileshard.format.paths import MANIFEST

CONFORMS_TO = "http://mlcommons.org/croissant/1.0"

#: With more shards, they are named by a pattern: the manifest, whose hash is here, has the hash of each.
MOST_LISTED = 1000

_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileProperty": "cr:fileProperty",
    "fileObject": "cr:fileObject",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}

_TFRECORD = "application/x-tfrecord"
_BYTES = "application/octet-stream"
_JSON = "application/json"

#: Tables of the manifest: its list, what it is, and the fields with their types.
_TABLES = (
    (
        "sources",
        "Totals of each source and split.",
        {
            "name": "sc:Text",
            "split": "sc:Text",
            "documents": "cr:Int64",
            "tokens": "cr:Int64",
            "text_bytes": "cr:Int64",
        },
    ),
    (
        "shards",
        "Each shard: its file, hash and totals.",
        {
            **{"path": "sc:Text", "source": "sc:Text", "split": "sc:Text", "size": "cr:Int64", "sha256": "sc:Text"},
            **{"index_path": "sc:Text", "index_sha256": "sc:Text"},
            **{"records": "cr:Int64", "documents": "cr:Int64", "tokens": "cr:Int64", "text_bytes": "cr:Int64"},
        },
    ),
)


def croissant(manifest: Manifest, name: str, manifest_sha256: str, manifest_size: int, tokenizer_size: int) -> bytes:
    """The file `croissant.json`, to lie beside the manifest; licence and authors are for the owner to add.

    Args:
      manifest: of the dataset.
      name: of the dataset.
      manifest_sha256: of the manifest's file, whole.
      manifest_size: of that file in bytes.
      tokenizer_size: of the tokenizer's file in bytes.
    """
    sources = len({entry.name for entry in manifest.sources})
    description = (
        f"{manifest.documents} documents of {sources} sources, tokenized: {manifest.tokens} tokens ({manifest.dtype}) "
        f"of {manifest.text_bytes} bytes of text, in {len(manifest.shards)} TFRecord shards. Dataset "
        f"{manifest.dataset_id}, pileshard format {manifest.format_version}."
    )
    tables = _TABLES if manifest.shards else ()
    made = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": CONFORMS_TO,
        "name": name,
        "description": description,
        "keywords": ["pretraining", "tokenized text", "tfrecord"],
        "distribution": [
            _file("manifest", MANIFEST, _JSON, manifest_sha256, manifest_size),
            # mlcroissant reads one file as one table only, so each table has an entry of its own.
            *(_file(f"manifest-{table}", MANIFEST, _JSON, manifest_sha256, manifest_size) for table, *_ in tables),
            _file("tokenizer", manifest.tokenizer_path, _JSON, manifest.tokenizer_sha256, tokenizer_size),
            *_shards(manifest),
        ],
        "recordSet": [_record_set(*table) for table in tables],
    }
    return msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n"


def _file(at: str, path: str, encoding: str, sha256: str, size: int) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": at,
        "name": at,
        "contentUrl": path,
        "contentSize": f"{size} B",
        "encodingFormat": encoding,
        "sha256": sha256,
    }


def _shards(manifest: Manifest) -> Iterator[dict[str, Any]]:
    if len(manifest.shards) <= MOST_LISTED:
        for shard in manifest.shards:
            yield _file(shard.path, shard.path, _TFRECORD, shard.sha256, shard.size)
            yield _file(shard.index_path, shard.index_path, _BYTES, shard.index_sha256, shard.index_size)
        return
    kinds = (("shard-files", "shards/*/*.tfrecord", _TFRECORD), ("index-files", "shards/*/*.index.npy", _BYTES))
    for at, pattern, encoding in kinds:
        yield {
            "@type": "cr:FileSet",
            "@id": at,
            "name": at,
            "description": f"{len(manifest.shards)} files; {MANIFEST} has the size and sha256 of each.",
            "encodingFormat": encoding,
            "includes": pattern,
        }


def _record_set(table: str, description: str, fields: dict[str, str]) -> dict[str, Any]:
    return {
        "@type": "cr:RecordSet",
        "@id": table,
        "name": table,
        "description": description,
        "field": [
            {
                "@type": "cr:Field",
                "@id": f"{table}/{name}",
                "name": name,
                "dataType": kind,
                "source": {"fileObject": {"@id": f"manifest-{table}"}, "extract": {"jsonPath": f"$.{table}[*].{name}"}},
            }
            for name, kind in fields.items()
        ],
    }
