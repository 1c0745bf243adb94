"""Audits of a dataset: what is on disk, held against the manifest and against itself.

verify            the driver, and its three levels
items, pool       work items (a shard, an input), and threads and processes that do them (how many: processes;
                  how far: progress)
manifest_checks   the manifest against itself: hashes, sums, ranges of keys
file_checks       a shard's two files from outside: there, of the right size, index in agreement with the manifest
framing, heads    a shard's bytes -> records -> Examples, many at once
shard_checks      every record, key and identity of a shard, and its index against them; token_checks its ids
rejected_checks   the lists of rejected lines against the account
input_checks      the inputs against the shards: every line's account, tallies add up
document_checks   chosen documents: tokens made again by the reference; lookup finds them in the shards by their key
repair            which files an audit condemns, and an index from its shard
inspect           a row's or a document's text and tokens; browse a shard's records, search documents by their length
                  (places reads parts of an index, excerpts the begin of a text, terminal shows them)
statistics        what a dataset holds in numbers: shard_counts, log_bins and vocabulary count, side_by_side spreads
                  the work, statistics_report and statistics_text tell
page              the numbers as one HTML page; figures and plots draw (card, croissant: a card to publish with)
report, tables    what was found, for a program and for a person
"""
