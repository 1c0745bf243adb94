"""Injects each kind of fault, verifies, repairs, and prints what came of it: `make faults`.

    python tests/audit/fault_table.py [--each]

Damage (lost, cut, exchanged, flipped) is to be detected and repaired to the same bytes; a forgery, whose hashes all
fit, is to be detected and refused with every file left as it was. Then single bits are flipped and files cut at random.
Prints Markdown: a row for each kind of fault, or with --each one for each fault. Exits with 1 where anything is not as
it should be.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from beam_jobs.repair import RepairOptions, repair  # noqa: E402
from pileshard.audit.report import FaultKind as K  # noqa: E402
from pileshard.audit.verify import verify  # noqa: E402
from tests.audit import forged_files, forged_records, random_damage  # noqa: E402, F401  (two register their cases)
from tests.audit.checking import Expected  # noqa: E402
from tests.audit.fault_groups import KINDS, group_of  # noqa: E402
from tests.audit.forge import Forgery  # noqa: E402
from tests.audit.forgeries import CASES as FORGERIES  # noqa: E402
from tests.audit.test_damage import CASES as DAMAGE  # noqa: E402
from tests.built import run_build  # noqa: E402
from tests.data.golden.make_golden import HERE  # noqa: E402

#: Damage that is to be refused: something lies where no program may remove it, or what is due cannot be known.
REFUSED = {
    "folder_in_place_of_a_shard",
    "folder_in_place_of_an_index",
    "folders_in_place_of_the_small_files",
    "folder_in_place_of_the_manifest",
    "manifest_of_a_newer_format",
    "manifest_of_another_dataset",
    "unfinished_build",
}


def build_golden_here(folder: Path, seed: int = 2026) -> Path:
    """The golden dataset, with its inputs beside it and the record of its build."""
    shutil.copytree(HERE / "inputs", folder / "inputs")
    inputs = [str(path) for path in sorted((folder / "inputs").iterdir())]
    run_build(
        folder / "dataset",
        inputs,
        tokenizer=str(HERE / "tokenizer.json"),
        seed=seed,
        shard_bytes=1024,
        validation=0.2,
    )
    return folder / "dataset"


def files(root: Path) -> dict[str, bytes]:
    """Every file of a dataset, but for what a build leaves to itself and the times in the manifest."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_file() and not name.startswith("_build/"):
            found[name] = path.read_bytes()
    return found


def content(root: Path) -> dict[str, Any]:
    """Files as above; of the manifest what does not tell when and by how many workers it was built."""
    found: dict[str, Any] = files(root)
    manifest = json.loads(found["manifest.json"])
    found["manifest.json"] = {name: manifest[name] for name in manifest if name not in ("build", "manifest_sha256")}
    return found


def damage(name: str, golden: Path, other: Path, root: Path) -> list[Expected]:
    """Makes a damaged copy; returns the faults that are to be found."""
    dataset = Forgery(golden, root)
    if name == "unfinished_build":
        shutil.rmtree(root / "_build")
    return DAMAGE[name](dataset, other)


def _changed_token(d: Forgery) -> Expected:
    shard = d.largest()
    records = d.records(shard)
    ids = d.ids(records[0])
    ids[0] = ids[0] + 1 if ids[0] + 1 != d.manifest["eod_id"] else ids[0] + 2
    d.write(shard, [d.with_ids(records[0], ids), *records[1:]])
    return Expected(K.TOKENS, shard["path"])


def _input(d: Forgery, change: Callable[[Path], Any]) -> Expected:
    url = d.manifest["inputs"][1]["url"]
    change(Path(url))
    return Expected(K.INPUT, url)


DEEP: dict[str, Callable[[Forgery], Expected]] = {
    "token_changed_and_every_hash_fits": _changed_token,
    "input_gone": lambda d: _input(d, Path.unlink),
    "input_of_another_size": lambda d: _input(d, lambda path: path.write_bytes(path.read_bytes() + b"\n")),
    "input_with_other_bytes": lambda d: _input(d, lambda path: path.write_bytes(path.read_bytes().swapcase())),
}


class Row(NamedTuple):
    """What came of one fault.

    Attributes:
      kind: `damage`, `forged` or `deep`.
      name: of the fault.
      found: kinds of the faults that verify named; what was missed, where something was.
      state: `repaired`, `refused`, `nothing to repair`, or what went wrong.
      right: whether all is as it should be.
      detected: whether all that was expected was found.
    """

    kind: str
    name: str
    found: str
    state: str
    right: bool
    detected: bool


def _row(kind: str, name: str, expected: list[Expected], golden: Path, root: Path) -> Row:
    """Verifies and repairs."""
    before = files(root)
    report = verify(str(root), level="deep" if kind == "deep" else "full", sample="all")
    found = {(fault.kind, fault.path) for fault in report.faults}
    missed = [fault for fault in expected if (fault.kind, fault.path) not in found]
    kinds = ", ".join(dict.fromkeys(fault.kind.value for fault in report.faults))
    options = RepairOptions(url=str(root), workers=1, remove_surplus=True, tokenizer=str(HERE / "tokenizer.json"))
    mended = repair(options)
    if not mended.files:
        state, right = "nothing to repair", kind == "deep"
    elif mended.sound and content(root) == content(golden):
        state, right = "repaired", name not in REFUSED
    elif files(root) == before:
        state, right = "refused", kind == "forged" or name in REFUSED
    else:
        state, right = "OTHER BYTES", False
    return Row(kind, name, kinds if not missed else f"MISSED {missed[0]}", state, right and not missed, not missed)


def _inject_all(temp: Path) -> tuple[list[Row], int, int]:
    """A row for each fault; and how often sound datasets were verified, and found to be none."""
    rows, alarms = [], 0
    golden = build_golden_here(temp / "golden")
    other = build_golden_here(temp / "other", seed=1)
    todo: list[tuple[str, str, Callable[[Path], list[Expected]]]] = []
    todo += [("damage", name, lambda root, name=name: damage(name, golden, other, root)) for name in DAMAGE]  # type: ignore[misc]
    todo += [
        ("forged", name, lambda root, forge=forge: [forge(Forgery(golden, root))])  # type: ignore[misc]
        for name, (source, forge, _) in FORGERIES.items()
        if source == "golden"
    ]
    todo += [("deep", name, lambda root, forge=forge: [forge(Forgery(golden, root))]) for name, forge in DEEP.items()]  # type: ignore[misc]
    for number, (kind, name, inject) in enumerate(todo):
        root = temp / str(number)
        alarms += not verify(str(golden), level="deep" if kind == "deep" else "full", sample="all").sound
        expected = inject(root)
        rows.append(_row(kind, name, expected, golden, root))
        if kind == "deep":
            shutil.copytree(HERE / "inputs", golden.parent / "inputs", dirs_exist_ok=True)
        print(f"\r{number + 1} of {len(todo)}", end="", file=sys.stderr, flush=True)
        shutil.rmtree(root)
    print(file=sys.stderr)
    return rows, len(todo), alarms


def _markdown(head: list[str], rows: list[list[object]]) -> str:
    def line(cells: Sequence[object]) -> str:
        return "| " + " | ".join(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells) + " |"

    numbers = [bool(rows) and all(isinstance(row[at], int) for row in rows) for at in range(len(head))]
    return "\n".join([line(head), line(["---:" if number else "---" for number in numbers]), *map(line, rows)])


def by_kind(rows: list[Row]) -> list[list[object]]:
    """For each kind of fault: injected, detected, repaired to the same bytes, refused with nothing touched."""
    out: list[list[object]] = []
    grouped: dict[str, list[Row]] = {title: [] for kinds in KINDS.values() for title in kinds}
    for row in rows:
        grouped[group_of(row.kind, row.name)].append(row)
    for title, members in [*grouped.items(), ("**all**", rows)]:
        states = Counter(row.state for row in members)
        detected = sum(row.detected for row in members)
        out.append([title, len(members), detected, states["repaired"], states["refused"], states["nothing to repair"]])
    return out


def by_file(outcome: random_damage.Outcome) -> list[list[object]]:
    """For each file: bits flipped, cuts, and how many of both were found in that file."""
    out: list[list[object]] = []
    wrong = Counter(damage.file for damage, _ in outcome.wrong)
    for file in random_damage.FILES:
        flips = outcome.tried[file, "flip"]
        cuts = sum(count for (name, how), count in outcome.tried.items() if name == file and how != "flip")
        out.append([file, flips, cuts, flips + cuts - wrong[file]])
    columns = [sum(int(str(row[at])) for row in out) for at in (1, 2, 3)]
    return [*out, ["**all**", *columns]]


def main() -> int:
    """Prints the tables; 1 where a fault is missed, imagined, or a repair gives other bytes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--each", action="store_true", help="a row for each fault")
    each = parser.parse_args().each
    logging.disable(logging.WARNING)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pileshard-faults-") as temp:
        rows, sound, alarms = _inject_all(Path(temp))
    if each:
        heads = ["", "injected", "detected as", "repair"]
        print(_markdown(heads, [[row.kind, row.name, row.found, row.state] for row in rows]), end="\n\n")
    heads = ["fault", "injected", "detected", "repaired to the same bytes", "refused, nothing touched"]
    heads.append("nothing to repair")
    print(_markdown(heads, by_kind(rows)))
    dataset = random_damage.small_dataset()
    todo = random_damage.damages(dataset)
    print(f"{len(todo):,} flips and cuts", file=sys.stderr, flush=True)
    outcome = random_damage.run(dataset, todo)
    print()
    print(_markdown(["file", "single bits flipped", "cuts", "found in that file"], by_file(outcome)))
    wrong = [row for row in rows if not row.right]
    print(
        f"\n{sound + outcome.sound:,} audits of sound datasets: {alarms + outcome.alarms} false alarms; "
        f"{len(wrong) + len(outcome.wrong)} faults not as they should be; {time.monotonic() - began:.0f} s"
    )
    for row in wrong:
        print(f"WRONG {row}")
    for found, why in outcome.wrong[:20]:
        print(f"WRONG {found}: {why}")
    return 1 if wrong or outcome.wrong or alarms or outcome.alarms else 0


if __name__ == "__main__":
    sys.exit(main())
