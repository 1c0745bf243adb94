"""`pileshard.verify`, as a training script calls it."""

from pathlib import Path

import pileshard

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "golden" / "dataset"


def test_verify_is_public_and_tells_a_sound_dataset() -> None:
    for level in ("quick", "full"):
        report = pileshard.verify(str(GOLDEN), level=level)
        assert report.sound
        assert not report.faults
