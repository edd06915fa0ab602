"""The Debian package under a real systemd: sandbox and system call filter of the unit, on a broker that works."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.packages.booted import booted
from tests.system.packages.installations import debian, inside, plain_wheel, run
from tests.system.packages.test_pages import contained
from tests.waiting import until

CLIENT = """
import millstream
with millstream.connect("127.0.0.1:9092") as client:
    if "orders" not in client.list_topics():
        client.create_topic("orders", partitions=2)
    for number in range(200):
        client.publish("orders", {"id": number})
    print(len(list(client.consume("orders", follow=False))))
"""


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with Debian in which the package is installed."""
    if "VERSION_CODENAME=bookworm" not in Path("/etc/os-release").read_text():
        pytest.skip("the package is for the Debian of this machine, and the folder has Debian 12")
    directory = tmp_path_factory.mktemp("machine")
    wheel = plain_wheel(directory / "dist")
    built = run(sys.executable, "-m", "tools.debian_package", wheel, "--output", directory / "deb")
    with debian("bookworm", ("python3", "systemd"), directory) as root:
        run("cp", built.strip().splitlines()[-1], root / "millstream.deb")
        inside(root, "dpkg", "--install", "/millstream.deb")
        yield root


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_page_on_three_machines(installed: Path) -> None:
    output = contained("booted", str(installed))
    assert "\nhello\n" in output and "partitions: 0 offline" in output


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_service_in_its_sandbox(installed: Path, tmp_path: Path) -> None:
    # The watchdog of the unit is a minute: the test does not wait for so long.
    root = installed
    changed = root / "etc/systemd/system/millstream.service.d/test.conf"
    changed.parent.mkdir(parents=True)
    changed.write_text("[Service]\nWatchdogSec=5s\n")
    with booted(root, tmp_path / "console.log") as machine:
        machine.run("systemctl", "start", "millstream")  # it returns when the node has sent READY=1
        assert machine.show("millstream", "ActiveState") == "active"

        def write_and_read() -> int:
            return int(machine.run(sys.executable, "-c", CLIENT, only_network=True))

        assert write_and_read() == 200
        assert "kafka=" in machine.show("millstream", "StatusText")
        inner = machine.show("millstream", "MainPID")
        pid = main_process(machine.init, int(inner))
        found = status(pid)
        assert found["Seccomp"] == "2" and int(found["Seccomp_filters"]) >= 5
        assert found["NoNewPrivs"] == "1" and int(found["CapEff"], 16) == int(found["CapBnd"], 16) == 0
        assert found["Uid"].split()[0] != "0"
        for place in ("/usr/x", "/etc/x", "/home/x", "/boot/x"):
            enter = ["nsenter", f"--target={pid}", "--mount", "touch", place]
            refused = subprocess.run(enter, capture_output=True, text=True)
            assert refused.returncode != 0, place
            assert re.search("Read-only|No such|denied", refused.stderr), refused.stderr
        # A restart, a reload, and a hanging process, which the watchdog ends and systemd starts again.
        machine.run("systemctl", "restart", "millstream")
        assert write_and_read() == 400
        machine.run("systemctl", "reload", "millstream")
        hanging = main_process(machine.init, int(machine.show("millstream", "MainPID")))
        os.kill(hanging, signal.SIGSTOP)
        until(lambda: machine.show("millstream", "NRestarts") == "1", "systemd has started the node again")
        until(lambda: machine.show("millstream", "ActiveState") == "active")
        assert write_and_read() == 600
        machine.run("systemctl", "stop", "millstream")
        assert machine.show("millstream", "Result") == "success"
    assert (root / "var/lib/millstream/data/orders-0").is_dir()


def main_process(init: int, inner: int) -> int:
    """The process id outside of the folder's namespace."""
    for each in Path("/proc").glob("[0-9]*/status"):
        try:
            found = status(int(each.parent.name)).get("NSpid", "").split()
            same = os.readlink(each.parent / "ns" / "pid") == os.readlink(f"/proc/{init}/ns/pid")
        except OSError:  # it has ended, or is not ours to look at
            continue
        if same and found[-1:] == [str(inner)]:
            return int(each.parent.name)
    raise AssertionError(f"no process is {inner} inside")
