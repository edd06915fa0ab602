"""A folder with Debian, booted: systemd as the first process, in namespaces of its own.

As systemd-nspawn does it, and without a systemd outside: process, mount, network, host name, IPC and cgroup namespaces;
`/proc/sys` and `/sys` read-only; a cgroup v2 hierarchy below a group of its own. All of it ends with the first process.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.waiting import TIMEOUT_SECONDS, until

_BOOT = """
mount --make-rprivate /
mount --bind "$1" "$1"
mount -t proc proc "$1/proc"
mount --bind "$1/proc/sys" "$1/proc/sys"
mount -o remount,bind,ro "$1/proc/sys"
mount -t sysfs -o ro sysfs "$1/sys"
mount -t cgroup2 cgroup2 "$1/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$1/run"
mount -t tmpfs -o mode=755 tmpfs "$1/dev"
for device in null zero full random urandom tty; do
    touch "$1/dev/$device"
    mount --bind "/dev/$device" "$1/dev/$device"
done
mkdir "$1/dev/pts" "$1/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$1/dev/pts"
ln -s pts/ptmx "$1/dev/ptmx"
ln -s /proc/self/fd "$1/dev/fd"
mount -t tmpfs -o mode=1777 tmpfs "$1/dev/shm"
ip link set lo up
cd "$1"
pivot_root . mnt
umount -l /mnt
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --log-target=console --show-status=no
"""


def cgroup_root() -> Path | None:
    """Where the machine has its cgroup v2 hierarchy."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind == "cgroup2" and os.access(place, os.W_OK):
            return Path(place)
    return None


class Booted:
    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def init(self) -> int:
        """The process id of systemd, as the machine sees it."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return int(children[0])

    def join(self, bridge: str, address: str) -> None:
        """A network card with this address, on a bridge outside."""
        link = f"v{address.rpartition('.')[2]}"
        peer = ("peer", "name", "eth0", "netns", str(self.init))
        subprocess.run(["ip", "link", "add", link, "type", "veth", *peer], check=True)
        subprocess.run(["ip", "link", "set", link, "master", bridge, "up"], check=True)
        self.run("ip", "link", "set", "eth0", "up", only_network=True)
        self.run("ip", "addr", "add", f"{address}/24", "dev", "eth0", only_network=True)

    def run(self, *words: str, only_network: bool = False, accepted: tuple[int, ...] = (0,)) -> str:
        """Runs a command inside; with `only_network` a program of this machine, with the network of the folder."""
        spaces = ["--net"] if only_network else ["--all"]
        done = subprocess.run(
            ["nsenter", f"--target={self.init}", *spaces, *words],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
        )
        assert done.returncode in accepted, (words, done.stdout, done.stderr, self._log.read_text()[-2000:])
        return done.stdout

    def is_up(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        try:
            return bool(self.run("systemctl", "is-system-running", accepted=(0, 1)).strip() in ("running", "degraded"))
        except (IndexError, AssertionError):
            return False

    def show(self, unit: str, name: str) -> str:
        return self.run("systemctl", "show", unit, f"--property={name}", "--value").strip()


@contextmanager
def booted(root: Path, log: Path) -> Iterator[Booted]:
    groups = cgroup_root()
    if groups is None or os.geteuid() != 0:
        pytest.skip("systemd needs root and a cgroup v2 hierarchy")
    group = groups / f"millstream-test-{os.getpid()}-{root.name}"
    group.mkdir()
    enter = (
        f"echo $$ > {group}/cgroup.procs\nexec unshare --pid --mount --net --uts --ipc --cgroup --fork --kill-child "
    )
    shutil.rmtree(root / "mnt", ignore_errors=True)
    (root / "mnt").mkdir()
    with log.open("w") as output:
        process = subprocess.Popen(
            ["sh", "-ec", f'{enter} sh -ec "$0" sh "$1"', _BOOT, str(root)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    machine = Booted(process, log)
    try:
        until(machine.is_up, "systemd is up")
        yield machine
    finally:
        process.send_signal(signal.SIGKILL)  # unshare kills the first process, and with it all others
        process.wait()
        until(lambda: _removed(group), "all processes have ended")


def _removed(group: Path) -> bool:
    """Removes a cgroup with those in it; False while a process is still ending."""
    try:
        for each in sorted((path for path in group.rglob("*") if path.is_dir()), key=lambda path: -len(path.parts)):
            each.rmdir()
        group.rmdir()
    except OSError:
        return False
    return True
