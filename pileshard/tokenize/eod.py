"""Which token ends a document."""

from __future__ import annotations

from collections.abc import Callable

from pileshard.errors import TokenizerError
from pileshard.tokenize.definition import Definition

#: Names under which published tokenizers keep the token that ends a document.
WELL_KNOWN = (
    "<|endoftext|>",
    "</s>",
    "<|end_of_text|>",
    "<｜end▁of▁sentence｜>",
    "<|endofdoc|>",
    "<eos>",
    "<|eos|>",
    "[EOS]",
)


def resolve_eod(definition: Definition, eod: str | None, token_to_id: Callable[[str], int | None]) -> tuple[str, int]:
    """The end-of-document token and its id.

    Without `eod`, the tokenizer's special tokens must hold exactly one of `WELL_KNOWN`. A tokenizer made for pairs of
    sentences (BERT's [CLS] and [SEP]) has no such token, and which one to use is for the user to say.

    Args:
      definition: the parsed tokenizer file.
      eod: the token's string, or None for the tokenizer's own.
      token_to_id: the vocabulary, added tokens included.

    Raises:
      TokenizerError: the token is absent, or the tokenizer has none or several of its own.
    """
    special = [token.content for token in definition.added if token.special]
    if eod is not None:
        found = token_to_id(eod)
        if found is None:
            raise TokenizerError(
                f"the tokenizer has no token {eod!r} to end documents with; {_candidates(special)}: pass one to --eod"
            )
        return eod, found
    own = [name for name in WELL_KNOWN if name in special]
    if len(own) == 1 and (found := token_to_id(own[0])) is not None:
        return own[0], found
    if own:
        raise TokenizerError(f"the tokenizer has several tokens that may end a document ({_list(own)}): pass --eod")
    raise TokenizerError(
        f"the tokenizer has no end-of-document token of a known name; {_candidates(special)}: pass one to --eod"
    )


def _candidates(special: list[str]) -> str:
    return f"its special tokens are {_list(special)}" if special else "it has no special tokens"


def _list(names: list[str], limit: int = 8) -> str:
    shown = ", ".join(names[:limit])
    return f"{shown} and {len(names) - limit} more" if len(names) > limit else shown
