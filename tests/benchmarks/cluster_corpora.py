"""The corpora that `cluster_simulation.py` simulates."""

from __future__ import annotations

from dataclasses import dataclass

from beam_jobs.gather_plan import MOST_RUNS
from beam_jobs.memory import DEFAULT_BYTES, run_bytes
from beam_jobs.parts import Kind, choose_counts

GB = 10**9

#: Effective sizes of the Pile's components in GiB (Gao et al. 2020, table 1).
PILE = (
    *(227.12, 180.55, 151.44, 125.54, 112.42, 95.16, 76.73, 64.39, 45.81, 38.53, 27.19),
    *(19.47, 19.13, 15.49, 11.03, 9.45, 9.17, 7.80, 7.47, 4.76, 3.79, 1.76),
)


@dataclass(frozen=True)
class Corpus:
    """What is built.

    Attributes:
      name: for the table.
      inputs: how many.
      text: bytes of text in all.
      stored: bytes of the inputs.
      tokens: in all.
      token_bytes: of one, 2 or 4.
      document_bytes: mean bytes of a text.
      sources: shares of the components; each run holds documents of each.
      shard_bytes: as the option.
      run_bytes: as the option.
      most_runs: runs of a source that are not gathered.
    """

    name: str
    inputs: int
    text: float
    stored: float
    tokens: float
    token_bytes: int
    document_bytes: float
    sources: tuple[float, ...]
    shard_bytes: int = GB
    run_bytes: int = run_bytes(DEFAULT_BYTES)
    most_runs: int = MOST_RUNS


THE_PILE = Corpus(
    "the Pile", 30, sum(PILE) * 2**30, 30 * 15 * GB, 330e9, 2, 5.91 * 1024, tuple(size / sum(PILE) for size in PILE)
)
TEN_T = Corpus("10 T tokens", 3000, 40e12, 14e12, 10e12, 4, 4000, (0.5, 0.2, 0.1, 0.08, 0.05, 0.03, 0.02, 0.01, 0.01))


def shard_bytes_in_all(corpus: Corpus) -> float:
    """Tokens with their end-of-document ids, and 80 bytes a record."""
    documents = corpus.text / corpus.document_bytes
    return (corpus.tokens + documents) * corpus.token_bytes + 80 * documents


def auto_parts(corpus: Corpus, workers: int, frames: bool = False) -> int:
    """Parts of an input as a build chooses them for a number of workers."""
    sizes = [int(corpus.stored / corpus.inputs)] * corpus.inputs
    return choose_counts(sizes, [Kind("zstd", frames)] * corpus.inputs, workers)[0]
