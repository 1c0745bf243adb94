"""Rules for all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("default")

#: Begins the reason of a skip that no installation could avoid (see `tests/cluster/capability.py`).
MACHINE = "this machine has no "

_skipped: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail") and MACHINE not in str(report.longrepr):
        _skipped.append(report.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Continuous integration has every part: a test skipped there for the lack of one is a test that never runs."""
    if os.environ.get("CI") == "true" and _skipped and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    yield
    if os.environ.get("CI") == "true" and _skipped:
        terminalreporter.write_line(f"CI: skipped tests count as failures: {', '.join(_skipped)}", red=True)
