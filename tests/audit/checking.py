"""Runs `pileshard verify` as a user does, and holds its report against what is expected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from pileshard.audit.report import FaultKind
from pileshard.cli import main
from tests.format.validating import validator


class Expected(NamedTuple):
    """A fault that must be found; an offset of None says that none is asked for."""

    kind: FaultKind
    path: str
    offset: int | None = None


def run_verify(root: Path | str, level: str = "full") -> tuple[int, dict[str, Any]]:
    """Exit code and report of the command; the report fits its schema and the exit code fits the report."""
    target = Path(str(root) + ".report.json") if isinstance(root, Path) else Path(root)
    code = main(["verify", str(root), "--level", level, "--json", str(target)])
    report = json.loads(target.read_bytes())
    validator("verify-report").validate(report)
    assert report["sound"] == (not report["faults"])
    assert code == (0 if report["sound"] else 1)
    return code, report


def check_found(root: Path, expected: Expected, level: str = "full") -> list[dict[str, Any]]:
    """Verifies, asserts that the expected fault is among those found, and returns them all."""
    code, report = run_verify(root, level)
    assert code == 1, f"{expected} was not found"
    found = [Expected(FaultKind(f["kind"]), f["path"], f.get("offset")) for f in report["faults"]]
    same = [fault for fault in found if fault[:2] == expected[:2]]
    assert same, f"{expected} is not among {report['faults']}"
    if expected.offset is not None:
        assert expected.offset in [fault.offset for fault in same], f"{expected} is not among {report['faults']}"
    assert all("\n" not in fault["message"] for fault in report["faults"])
    assert all(fault.get("remedy") for fault in report["faults"])
    return report["faults"]
