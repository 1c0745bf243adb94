"""`pileshard verify` as a Beam job: one item a shard and an input, the same checks, the same report.

python -m beam_jobs.verify URL --level deep -- --runner=FlinkRunner
"""

from __future__ import annotations

if __name__ == "__main__":
    import sys

    from pileshard.cli import entry

    sys.argv[1:1] = ["verify", "--beam"]
    entry()
