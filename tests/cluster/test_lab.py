"""Hosts of the lab are hosts: names, addresses and processes of their own, and nothing of them outlives the tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.cluster.capability import needs_hosts
from tests.cluster.hosts import EXPORTED, SHARED, Host, Switch
from tests.cluster.lab import wait_until
from tests.cluster.mount import PATIENCE, ROOT, Export

pytestmark = needs_hosts


def command_lines(host: Host) -> str:
    """Command lines of all processes that a host knows."""
    return str(host.run("sh", "-c", "cat /proc/[0-9]*/cmdline", check=False).stdout)


def test_hosts_have_names_addresses_and_disks_and_share_one_directory(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    switch = Switch()
    hosts: list[Host] = []
    export: Export | None = None
    try:
        hosts += [Host(1, "one", switch, tmp_path, tmp_path / "disk"), Host(2, "two", switch, tmp_path)]
        first, second = hosts
        export = Export(EXPORTED, first.address, prefix=first.prefix)
        export.start()
        for host in hosts:
            host.attach(export)
        assert [host.run("hostname").stdout.strip() for host in hosts] == ["one", "two"]
        for host in hosts:
            host.run("sh", "-c", f"hostname > {SHARED}/$(hostname); hostname > {SHARED.parent}/own")
        assert second.run("cat", SHARED / "one", SHARED.parent / "own").stdout == "one\ntwo\n"
        assert (tmp_path / "disk/two").read_text() == "two\n"
        sleeping = second.start_python("sleep", "-c", "import time; time.sleep(600)")
        wait_until(lambda: "time.sleep(600)" in command_lines(second), sleeping)
        assert "time.sleep(600)" not in command_lines(first)
        second.kill()
        assert not sleeping.running
        with pytest.raises(AssertionError):
            second.run("true")
        second.start()
        second.attach(export)
        assert second.run("cat", SHARED / "one").stdout == "one\n"
    finally:
        if export is not None:
            export.close()
        for host in hosts:
            host.kill()
        switch.kill()


_HOLDS_A_LAB = """
import sys, time
from pathlib import Path
from tests.cluster.lab import laboratory
with laboratory(Path(sys.argv[1])) as lab:
    lab.export.start()
    for host in lab.hosts:
        lab.attach(host)
        host.start_python("sleep", "-c", "import time; time.sleep(600)")
    print("ready", flush=True)
    time.sleep(600)
"""


def test_nothing_is_left_of_a_lab_whose_tests_were_killed(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDS_A_LAB, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True
    )
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"ready\n"
        processes = psutil.Process(holder.pid).children(recursive=True)
        assert len(processes) > 10
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
        holder.wait(PATIENCE)
        holder.stdout.close()
    end = time.monotonic() + PATIENCE
    while alive := [process for process in processes if _runs(process)]:
        assert time.monotonic() < end, alive
        time.sleep(0.1)
    assert str(tmp_path) not in Path("/proc/mounts").read_text()


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
