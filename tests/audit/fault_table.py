"""Injects each kind of fault, verifies, repairs, and prints what came of it: `make faults`.

    python tests/audit/fault_table.py

Damage (lost, cut, exchanged, flipped) is to be detected and repaired to the same bytes; a forgery, whose hashes all
fit, is to be detected and refused with every file left as it was. Exits with 1 where one of these fails.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from beam_jobs.repair import RepairOptions, repair  # noqa: E402
from pileshard.audit.report import FaultKind as K  # noqa: E402
from pileshard.audit.tables import table  # noqa: E402
from pileshard.audit.verify import verify  # noqa: E402
from tests.audit import forged_files, forged_records  # noqa: E402, F401  (they register their cases)
from tests.audit.checking import Expected  # noqa: E402
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


def _row(kind: str, name: str, expected: list[Expected], golden: Path, root: Path) -> tuple[list[str], bool]:
    """Verifies and repairs; a row of the table, and whether all is as it should be."""
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
    return [kind, name, kinds if not missed else f"MISSED {missed[0]}", state], right and not missed


def main() -> int:
    """Prints the table; 1 where a fault is missed or a repair gives other bytes."""
    logging.disable(logging.WARNING)
    rows, wrong = [], 0
    with tempfile.TemporaryDirectory(prefix="pileshard-faults-") as temp:
        golden = build_golden_here(Path(temp) / "golden")
        other = build_golden_here(Path(temp) / "other", seed=1)
        todo: list[tuple[str, str, Callable[[Path], list[Expected]]]] = []
        todo += [("damage", name, lambda root, name=name: damage(name, golden, other, root)) for name in DAMAGE]  # type: ignore[misc]
        todo += [
            ("forged", name, lambda root, forge=forge: [forge(Forgery(golden, root))])  # type: ignore[misc]
            for name, (source, forge, _) in FORGERIES.items()
            if source == "golden"
        ]
        todo += [
            ("deep", name, lambda root, forge=forge: [forge(Forgery(golden, root))]) for name, forge in DEEP.items()
        ]  # type: ignore[misc]
        for number, (kind, name, inject) in enumerate(todo):
            root = Path(temp) / str(number)
            expected = inject(root)
            row, right = _row(kind, name, expected, golden, root)
            rows.append([*row, "" if right else "WRONG"])
            wrong += not right
            if kind == "deep":
                shutil.copytree(HERE / "inputs", golden.parent / "inputs", dirs_exist_ok=True)
            print(f"\r{number + 1} of {len(todo)}", end="", file=sys.stderr, flush=True)
            shutil.rmtree(root)
    print(file=sys.stderr)
    print(table(["kind", "injected", "detected", "repair", ""], rows))
    print(f"{len(rows)} faults injected, {wrong} not as they should be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
