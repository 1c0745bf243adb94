"""pileshard: terabytes of text to the tensors of a training step, exactly.

    dataset(rank, seed, path=...)          a seeded, rank-aware tf.data.Dataset of (inputs, labels)
    numpy_dataset(rank, seed, path=...)    the same batches as numpy arrays
    torch_dataset(rank, seed, path=...)    the same batches as a torch.utils.data.IterableDataset
    open(path)                             a Corpus: manifest, sources, tokens, and plan(seed, ...), the order itself
    verify(path, level="full")             a Report: the dataset proved from its bytes, or every fault named

A reader never gives a wrong token: it compares every record with its checksum, and stops at damage with a `DamageError`
that names file, offset and the command that repairs it, or with on_damage="skip" leaves out the rows that touch it.

Nothing heavy is imported before it is used; only `dataset` needs TensorFlow, and only `torch_dataset` PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pileshard.errors import (
    BuildError,
    DatasetError,
    InputError,
    MissingExtraError,
    OptionError,
    PileshardError,
    TokenizerError,
)
from pileshard.version import __version__

if TYPE_CHECKING:
    from pileshard.audit.verify import verify
    from pileshard.corpus import Corpus
    from pileshard.corpus import open_corpus as open
    from pileshard.format.damage import DamageError
    from pileshard.order.topology import Topology
    from pileshard.readers.numpy_reader import numpy_dataset
    from pileshard.readers.tf_reader import dataset
    from pileshard.readers.torch_reader import torch_dataset

# Public name: the module and the name it has there.
_LAZY = {
    "Corpus": ("pileshard.corpus", "Corpus"),
    "DamageError": ("pileshard.format.damage", "DamageError"),
    "Topology": ("pileshard.order.topology", "Topology"),
    "dataset": ("pileshard.readers.tf_reader", "dataset"),
    "numpy_dataset": ("pileshard.readers.numpy_reader", "numpy_dataset"),
    "open": ("pileshard.corpus", "open_corpus"),
    "torch_dataset": ("pileshard.readers.torch_reader", "torch_dataset"),
    "verify": ("pileshard.audit.verify", "verify"),
}

__all__ = [
    "BuildError",
    "Corpus",
    "DamageError",
    "DatasetError",
    "InputError",
    "MissingExtraError",
    "OptionError",
    "PileshardError",
    "TokenizerError",
    "Topology",
    "__version__",
    "dataset",
    "numpy_dataset",
    "open",
    "torch_dataset",
    "verify",
]


def __getattr__(name: str) -> Any:
    try:
        module, attribute = _LAZY[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
