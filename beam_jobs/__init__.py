"""The Beam jobs: an external merge sort of a corpus over a shared file system.

    inputs --tokenize--> runs (sorted by source, split, key) --plan--> key ranges --merge--> shards --finish--> manifest

The corpus never passes through the runner. The runner carries work items (an input or a part of it; a shard), and
each item leaves its output and a receipt on the file system; that is all the memory a job has. Hence the same command
continues a build that died, and the bytes of the shards depend on the inputs, the options and the seed alone.

    options.py          what a user may choose
    inputs.py           URLs and globs -> inputs
    job.py              what a worker is told; the record of the job; receipts
    runs.py             sorted temporary files of tokenized documents
    parts.py            how each input is cut into parts
    count_stage.py      counts an input's text, so that parts begin at frames
    spread.py           the items of the tokenize stage
    memory.py           what a worker may hold, and how an item keeps to it
    lent_tokenizers.py  tokenizers of a process, each lent to one thread at a time
    tokenize_stage.py   an input -> runs
    rejected_writer.py  an item's rejected lines -> a file
    key_ranges.py       which documents a repair is about
    shard_plan.py       receipts -> key ranges of shards
    gather_plan.py      runs of a large corpus in batches, for a shard to read from fewer
    gather_stage.py     a batch of runs -> runs of fewer keys each
    merge_stage.py      runs -> a shard
    shard_writer.py     records -> a shard and its index
    reads.py            reads side by side and ahead
    duplicates.py       which texts of a shard came before, in whatever source
    items.py            one work item, from its task to its receipt
    finish.py           the account is closed and the manifest written
    pipeline.py         work items on a Beam runner
    quiet_beam.py       Apache Beam, imported quickly and without its warnings
    engines.py          what each runner needs to be told
    engine_run.py       a pipeline on a runner; what its errors mean
    in_turn.py          elements taken in turn by the processes of one machine
    local_runner.py     Beam's own runner on this machine; its processes are local_worker.py
    progress.py         heartbeats of items
    watch.py            what receipts and heartbeats tell of a stage, looked at again and again
    monitor.py          what the driver shows of it, and leaves for others
    status.py           what `pileshard status` tells of a build
    resume.py           what an output holds already, and whether a command may continue it
    changes.py          inputs that are not as an earlier command found them
    lease.py            one driver at a time; who works on an output
    leftovers.py        what dead attempts left (`pileshard clean`)
    space.py            the space that a build needs, and what there is
    sample.py           what the first megabytes of some inputs tell of all
    requests.py         how many requests a build makes of its store
    forecast.py         what a build would do and take (`--plan-only`)
    engine_workers.py   how many items an engine does at once
    work_share.py       how much of the workers' time was spent at work
    stages.py           runs the items of a stage that have no receipt
    arrivals.py         receipts that a shared directory tells of late
    build.py            the driver; `python -m beam_jobs.build`
    repair.py           the driver of a repair; `python -m beam_jobs.repair`
    repair_shards.py    shards, indexes, lists of rejected lines made again by the same stages
    repair_manifest.py  the manifest made again by the same build
    install.py          a staged file into the place of a damaged one
    audit_pipeline.py   the items of `pileshard verify` on a Beam runner; `python -m beam_jobs.verify`
"""
