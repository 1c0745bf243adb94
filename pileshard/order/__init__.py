"""The order of training: which sample stands at which position, for whom. Pure numpy, no I/O.

Shards are cut into chunks of K samples (`chunks`). For each epoch a keyed permutation (`permutation`, `epochs`) gives
the chunks' order. They are dealt S at a time into windows, and each window is read across (`plan`):

                    slot 0     slot 1     slot 2   ...  slot S-1          a window of S chunks, each of K samples
                  +----------+----------+----------+---+----------+
    sample 0      |    0     |    1     |    2     |...|   S-1    |       positions in the window: the first sample
    sample 1      |    S     |   S+1    |   S+2    |...|   2S-1   |       of each chunk, then the second of each, ...
       ...        |          |          |          |   |          |
    sample K-1    |  (K-1)S  | (K-1)S+1 | (K-1)S+2 |...|   KS-1   |
                  +----------+----------+----------+---+----------+
                   order[mS]  order[mS+1]                                 m: number of the window in the epoch

Neighbours in a batch come from different chunks of the whole corpus, so no shuffle buffer exists. Rank r of W reads
the positions p % W == r (`schedule`): where W divides S that is whole columns, so each chunk is read by one rank, once,
from front to back. The order knows neither W nor the batch size, so both may change at any step. An epoch's last window
is as wide as there are chunks left. `topology` says which r and W are this process's.

What a sample is, `packing` says: tokens as they stand, documents packed whole (`even`, `best_fit`), or one document.
`fim` rearranges documents so that a model learns to fill in the middle.

    >>> plan = Plan("id", [5000, 3000], seed=7, seq_len=10, slots=4)
    >>> plan.samples_per_epoch, plan.chunk_samples
    (798, 1)
    >>> plan.rows([0, 1]).shard.shape
    (2,)
"""

from pileshard.order.chunks import Chunks, cut
from pileshard.order.epochs import ChunkOrder, ShuffledEpochs
from pileshard.order.permutation import derive_key, permute
from pileshard.order.plan import DEFAULT_SLOTS, ORDER_FORMAT, Plan, Rows, Window
from pileshard.order.schedule import Schedule, global_batch
from pileshard.order.skip import Skip
from pileshard.order.topology import Ranks, Topology, from_environment, resolve

__all__ = [
    "DEFAULT_SLOTS",
    "ORDER_FORMAT",
    "ChunkOrder",
    "Chunks",
    "Plan",
    "Ranks",
    "Rows",
    "Schedule",
    "ShuffledEpochs",
    "Skip",
    "Topology",
    "Window",
    "cut",
    "derive_key",
    "from_environment",
    "global_batch",
    "permute",
    "resolve",
]
