"""What this machine can do: an honest probe for each of the two, and the mark that skips what it cannot."""

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
    """Why this machine cannot mount through FUSE; "" where it can, proved by a mount."""
    if not sys.platform.startswith("linux"):
        return "needs Linux"
    if os.geteuid():
        return "needs root"
    if not os.path.exists("/dev/fuse"):
        return "needs /dev/fuse"
    with tempfile.TemporaryDirectory() as place:
        try:
            descriptor = kernel.mount(place)
        except OSError as error:
            return f"needs the right to mount through FUSE ({error.strerror})"
        kernel.unmount(place)
        os.close(descriptor)
    return ""


@lru_cache(maxsize=1)
def no_hosts() -> str:
    """Why this machine cannot hold hosts as namespaces; "" where it can, proved by one."""
    if why := no_mounts():
        return why
    for command in ("ip", "unshare", "nsenter"):
        if not shutil.which(command):
            return f"needs {command} (Debian: iproute2, util-linux)"
    spaces = ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
    links = ("add port1 type veth peer name port2", "add bridge type bridge", "set port1 master bridge")
    script = " && ".join(f"ip link {link}" for link in links)
    tried = subprocess.run([*spaces, "sh", "-c", script], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"needs network namespaces with veth and a bridge ({tried.stderr.strip() or tried.returncode})"
    return ""


needs_mounts = pytest.mark.skipif(bool(no_mounts()), reason=f"this machine {no_mounts()}")
needs_hosts = pytest.mark.skipif(bool(no_hosts()), reason=f"this machine {no_hosts()}")
