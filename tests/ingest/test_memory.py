"""Memory: one long line costs a small multiple of its size, a line that is too long costs nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.ingest.samples import zstd_frame

ROOT = Path(__file__).resolve().parents[2]
MB = 1 << 20

needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")

READ = """
import sys
from pathlib import Path
from pileshard.ingest import line_blocks, lines, parse_lines
def peak():
    # Not ru_maxrss, which a process inherits from the one that started it.
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) << 10
lines.MAX_LINE_BYTES = int(sys.argv[2])
before = peak()
texts = rejected = 0
with open(sys.argv[1], "rb") as raw:
    for block in line_blocks(raw, sys.argv[1]):
        parsed = parse_lines(block, ("text",), ("meta", "pile_set_name"))
        texts += sum(map(len, parsed.texts))
        rejected += len(parsed.rejections)
        del block, parsed
print(texts, rejected, peak() - before)
"""


def peak_of(path, max_line_bytes=256 * MB):
    command = [sys.executable, "-c", READ, str(path), str(max_line_bytes)]
    return map(int, subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split())


@needs_proc
@pytest.mark.parametrize("character", ["a", "日", "😀", "\\n"])
def test_a_long_line_costs_about_three_times_its_size(tmp_path, character):
    size = 32 * MB
    line = b'{"text": "' + character.encode() * (size // len(character.encode())) + b'"}\n'
    (tmp_path / "input.zst").write_bytes(zstd_frame(line * 2))
    texts, rejected, peak = peak_of(tmp_path / "input.zst")
    assert texts > size // 3
    assert rejected == 0
    assert peak < 3.3 * size + 24 * MB


@needs_proc
def test_a_line_that_is_too_long_is_never_held(tmp_path):
    line = b'{"text": "' + b"a" * (200 * MB) + b'"}\n{"text": "next"}\n'
    (tmp_path / "input.zst").write_bytes(zstd_frame(line))
    texts, rejected, peak = peak_of(tmp_path / "input.zst", 8 * MB)
    assert (texts, rejected) == (4, 1)
    assert peak < 48 * MB
