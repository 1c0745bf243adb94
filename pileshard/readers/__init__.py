"""Readers that execute the order of `pileshard.order`: numpy, `tf.data` and PyTorch, sample for sample the same.

chunk          tokens [a, b) of a shard: one range read, records checked, framing dropped
open_shards    files that are open, a few at a time
checks         whether records are as they were written, all those of a range at once
salvage        what can be had of a range where something is damaged
left_out       what is left out because of damage, counted and logged
relief         what stands in for it
pieces         where tokens lie between frames, and how they are copied together
remote_shards  the same from remote storage: index blocks, read-ahead, retries
remote_index   what a read needs of remote indexes
ahead          threads that fetch what is needed next
cache          blocks of remote files on a local disk
resident       a whole small split in memory
rows           a rank's rows from a position on: chunks of a window side by side, read across
boundaries     where documents begin in a shard
packed         packed rows: their parts, and how they are kept until they become features
best_fit_rows  rows of whole documents
document_rows  rows of one document each
blocks         rows as blocks of batches
features       what a step takes, made from rows: inputs and labels, segments, positions, a loss mask
numpy_reader   blocks as an iterator of numpy batches
tf_reader      blocks as a tf.data.Dataset
torch_reader   what makes a PyTorch dataset
torch_batches  that dataset
"""
