"""Workers and drivers end at random moments, on every engine; the same command then ends in the same bytes.

Whole hosts end in `tests/cluster`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beam_jobs.engine_builds import await_receipts, command, only_sentence, run, start
from tests.built import shard_hashes
from tests.servers.engines import NAMES, RunningEngine, kill

#: Each is a moment of its own; the first ones take every engine once.
MOMENTS = 30
QUICK = len(NAMES)
#: Items of the small build, of both stages.
ITEMS = 20


@pytest.mark.parametrize(
    "moment", [pytest.param(n, marks=[] if n < QUICK else [pytest.mark.slow]) for n in range(MOMENTS)]
)
def test_a_kill_at_a_random_moment_changes_no_byte(
    moment: int, engine_of: Callable[[str], RunningEngine], plain: Path, tmp_path: Path
) -> None:
    chance = random.Random(moment)
    name = NAMES[moment % len(NAMES)]
    engine, output = engine_of(name), tmp_path / "dataset"
    arguments = command(engine, output)
    done = 0
    for _ in range(1 if moment < QUICK else chance.randint(1, 3)):
        victim = chance.choice(["driver", "worker"])
        driver = start(arguments)
        await_receipts(driver, output, done := min(ITEMS, done + chance.randrange(ITEMS // 2)))
        workers = engine.workers(driver.pid)
        if victim == "driver" or not workers:
            kill(driver.pid)
        else:
            kill(chance.choice(workers))
        _, said = driver.communicate(timeout=300)
        assert "Traceback" not in said, said
        if driver.returncode == 1:
            assert "the same command" in only_sentence(said)
        elif victim == "worker" and name == "dask":
            assert driver.returncode == 0, said
        if victim == "worker" and name == "dask":
            assert engine.start_worker is not None
            engine.start_worker()
    last = run(arguments)
    assert last.returncode == 0, last.stderr
    assert shard_hashes(output) == shard_hashes(plain)
    assert not [*output.glob("_build/tmp/*")]
