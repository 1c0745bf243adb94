"""What this machine can do, told by trying it, and the marks that skip what it cannot.

A reason that begins with "this machine has no" is the machine's nature (no root, no /dev/fuse, no namespaces): no
installation helps, and continuous integration goes on. A program that is missing could be installed, and fails there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from functools import lru_cache

import pytest

from tests.cluster import kernel


@lru_cache(maxsize=1)
def no_mounts() -> str:
    """Why nothing can be mounted through FUSE here; "" where it can, proved by a mount."""
    if not sys.platform.startswith("linux"):
        return "this machine has no Linux"
    if os.geteuid():
        return "this machine has no root for these tests"
    if not os.path.exists("/dev/fuse"):
        return "this machine has no /dev/fuse"
    with tempfile.TemporaryDirectory() as place:
        try:
            descriptor = kernel.mount(place)
        except OSError as error:
            return f"this machine has no right to mount through FUSE ({error.strerror})"
        kernel.unmount(place)
        os.close(descriptor)
    return ""


@lru_cache(maxsize=1)
def no_hosts() -> str:
    """Why no hosts can be made of namespaces here; "" where they can, proved by one."""
    if why := no_mounts():
        return why
    for command in ("ip", "unshare", "nsenter"):
        if not shutil.which(command):
            return f"needs {command} (Debian: apt-get install iproute2 util-linux)"
    spaces = ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
    links = ("add port1 type veth peer name port2", "add bridge type bridge", "set port1 master bridge")
    script = " && ".join(["mount -t tmpfs disk /tmp", *(f"ip link {link}" for link in links)])
    tried = subprocess.run([*spaces, "sh", "-c", script], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"this machine has no namespaces with veth and a bridge ({tried.stderr.strip() or tried.returncode})"
    return ""


needs_mounts = pytest.mark.skipif(bool(no_mounts()), reason=no_mounts() or "-")
needs_hosts = pytest.mark.skipif(bool(no_hosts()), reason=no_hosts() or "-")
