"""What is on disk: records, indexes, the manifest, names of files, and how files are published.

    ROOT/manifest.json                                       what it does not name does not exist
    ROOT/tokenizer.json                                      the exact tokenizer
    ROOT/shards/<source>/<split>-00000-of-00012.tfrecord     documents of one source and split, in key order
    ROOT/shards/<source>/<split>-00000-of-00012.index.npy    where each record begins, in bytes and in tokens
    ROOT/rejected/<input>.jsonl                              every rejected line, with its reason
    ROOT/_build/                                             the memory of an unfinished build

`schemas/FORMAT.md` describes the bytes well enough to write another reader or writer. This package imports neither
TensorFlow nor Beam.
"""

from pileshard.format.index import Index, load_index
from pileshard.format.manifest import FORMAT_VERSION, InputEntry, Manifest, ShardEntry, SourceEntry
from pileshard.format.storage import Storage

__all__ = [
    "FORMAT_VERSION",
    "Index",
    "InputEntry",
    "Manifest",
    "ShardEntry",
    "SourceEntry",
    "Storage",
    "load_index",
]
