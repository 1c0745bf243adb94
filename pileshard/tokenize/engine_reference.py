"""The reference engine: HuggingFace `tokenizers`, whose ids are the truth."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import numpy as np

from pileshard.tokenize.definition import Definition
from pileshard.tokenize.panics import engine_errors

# One worker is one core; the variable is read when an engine first runs, and a user's own setting stays.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import tokenizers

#: Text of one call, so that the engine's own objects (about 150 bytes a token) stay near 100 MB.
CALL_BYTES = 2 << 20


class ReferenceEngine:
    """Encodes by `tokenizers`, without post-processing, truncation or padding.

    Raises:
      TokenizerError: the library cannot load the file.
    """

    def __init__(self, tokenizer_json: bytes, definition: Definition) -> None:
        with engine_errors("tokenizers cannot load the tokenizer file"):
            self._tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json.decode())
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
            self._tokenizer.encode_special_tokens = definition.policy != "token"
            vocab = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size: int = max(vocab.values(), default=-1) + 1

    def encode(self, texts: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
        """Encode UTF-8 texts.

        Returns:
          The ids, uint32 [tokens], and the number of ids of each text, int64 [len(texts)].
        """
        parts: list[np.ndarray] = []
        counts = np.zeros(len(texts), np.int64)
        done = 0
        with engine_errors("the reference tokenizer failed"):
            for group in _groups(texts):
                strings = [text.decode() for text in group]
                for encoding in self._tokenizer.encode_batch_fast(strings, add_special_tokens=False):
                    ids = np.array(encoding.ids, np.uint32)
                    counts[done] = len(ids)
                    parts.append(ids)
                    done += 1
        return (np.concatenate(parts) if parts else np.zeros(0, np.uint32)), counts

    def token_to_id(self, token: str) -> int | None:
        """The id of a token's string, added tokens included."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, special tokens shown."""
        with engine_errors("the ids cannot be decoded"):
            text: str = self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=False)
        return text


def _groups(texts: Sequence[bytes]) -> Iterable[Sequence[bytes]]:
    begin = size = 0
    for i, text in enumerate(texts):
        if size and size + len(text) > CALL_BYTES:
            yield texts[begin:i]
            begin, size = i, 0
        size += len(text)
    if begin < len(texts):
        yield texts[begin:]
