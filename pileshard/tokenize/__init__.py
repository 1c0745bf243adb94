"""Texts to token ids: two engines behind one interface, with the same ids.

    load(tokenizer.json) -> Tokenizer
                              |  encode_batch(texts, ordinals) -> ids, ends
          long texts: cut where a cut cannot change an id             cuts
          texts with code points not proved equal -> reference        codepoints, fragments
          first documents and a sample: both engines, compared        proof
          the rest -> fast engine (gigatoken)                         engine_fast, support
                                           reference (tokenizers)     engine_reference

`tokenizers` is the reference: its ids, without post-processing, truncation and padding, are the truth. `gigatoken` is
30 to 100 times faster and used only as far as it is proved equal: on ASCII when a tokenizer is loaded; on every other
code point when a text first holds it (their tables of Unicode are of different versions); and on real documents, the
first ones of a worker and about one in two thousand of the rest. A difference there raises `EngineMismatch`, and the
input is to be done again with engine="reference".

    tokenizer = load(Path("tokenizer.json").read_bytes(), eod=None, special_tokens="text", engine="auto")
    ids, ends = tokenizer.encode_batch([b"one text", b"another"], ordinals=[17, 18])
"""

from pileshard.tokenize.engine_fast import EngineMismatch
from pileshard.tokenize.tokenizer import Tokenizer, load

__all__ = ["EngineMismatch", "Tokenizer", "load"]
