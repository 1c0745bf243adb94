"""Makes the small corpus and tokenizer of `make demo` (tests/data/demo) from this repository's own text.

    python tests/demo/make_corpus.py

Run by hand when it is to change; what it makes is committed.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from backports import zstd
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "tests" / "data" / "demo"
INPUTS = 3


def code() -> list[str]:
    """Modules of the package, each one a document."""
    paths = sorted([*ROOT.glob("pileshard/**/*.py"), *ROOT.glob("beam_jobs/**/*.py")])
    return [path.read_text() for path in paths if path.stat().st_size > 400]


def prose() -> list[str]:
    """Sections of the documentation."""
    out = []
    for path in sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *ROOT.glob("schemas/*.md")]):
        out += [part.strip() for part in path.read_text().split("\n## ") if len(part) > 80]
    return out


def arithmetic(count: int) -> list[str]:
    """Small sums, worked out."""
    rng = random.Random(1)
    out = []
    for _ in range(count):
        lines = []
        for _ in range(rng.randint(2, 12)):
            a, b = rng.randint(1, 999), rng.randint(1, 99)
            sign, result = rng.choice([("plus", a + b), ("minus", a - b), ("times", a * b)])
            lines.append(f"What is {a} {sign} {b}? {a} {sign} {b} is {result}.")
        out.append("\n".join(lines))
    return out


def tables(count: int) -> list[str]:
    """Weather tables of towns that do not exist, with characters of several scripts."""
    rng = random.Random(2)
    towns = ["Åsby", "Köln-Süd", "Ломоносовка", "東の町", "Al-Madīna al-Ṣaghīra", "Ñuñoa Alta", "Λευκό Χωριό"]
    out = []
    for _ in range(count):
        rows = [
            f"{rng.choice(towns)}: {rng.randint(-20, 40)} °C, {rng.randint(0, 99)} % ☁"
            for _ in range(rng.randint(1, 9))
        ]
        out.append("Weather report\n" + "\n".join(rows))
    return out


def main() -> None:
    """Writes three inputs and a tokenizer."""
    documents = [("Code", text) for text in code()] + [("Documentation", text) for text in prose()]
    documents += [("Arithmetic", text) for text in arithmetic(400)]
    documents += [("Weather (made up)", text) for text in tables(300)]
    random.Random(0).shuffle(documents)
    TARGET.mkdir(parents=True, exist_ok=True)
    for number in range(INPUTS):
        lines = [json.dumps({"text": t, "meta": {"pile_set_name": s}}) for s, t in documents[number::INPUTS]]
        if number == 1:  # what real inputs have: a line cut off, a blank one, one without text
            lines[10:10] = ['{"text": "cut of', "", '{"meta": {"pile_set_name": "Code"}}']
        data = "\n".join(lines).encode() + b"\n"
        half = len(data) // 2
        options = {zstd.CompressionParameter.checksum_flag: 1, zstd.CompressionParameter.compression_level: 19}
        frames = [data] if number else [data[:half], data[half:]]  # the first input has two frames
        (TARGET / f"{number:02d}.jsonl.zst").write_bytes(
            b"".join(zstd.compress(part, options=options) for part in frames)
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2048,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text for _, text in documents], trainer)
    tokenizer.save(str(TARGET / "tokenizer.json"), pretty=False)


if __name__ == "__main__":
    main()
