"""A run lives in network, mount and process namespaces of its own, so that nothing of it can be left behind.

Where the machine allows it, the command runs itself again under `unshare`: network devices, mounts and processes of the
run vanish with it, however it ends. Where not, it runs as it is, and faults that need the namespaces are left out.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

_INSIDE = "MILLSTREAM_CHAOS_CONTAINED"


def unshare() -> list[str]:
    as_somebody_else = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *as_somebody_else, "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


def is_contained() -> bool:
    return os.environ.get(_INSIDE) == "yes"


def is_possible() -> bool:
    """Whether namespaces, a bridge with hosts on it, and small file systems can be had here."""
    if not all(shutil.which(program) for program in ("unshare", "ip", "mount")):
        return False
    attempt = "mount -t tmpfs tmpfs /run && ip link add hub type bridge && ip netns add one"
    return subprocess.run([*unshare(), "sh", "-c", attempt], capture_output=True).returncode == 0


def command(arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The command line that runs a campaign, contained where possible, and its environment."""
    plain = [sys.executable, "-m", "tests.system.chaos", *arguments]
    if not is_possible():
        return plain, {**os.environ, _INSIDE: "no"}
    return [*unshare(), *plain], {**os.environ, _INSIDE: "yes"}


def was_attempted() -> bool:
    return _INSIDE in os.environ
