"""The service under systemd: the unit file, and the messages of a broker to its service manager."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.repository import REPOSITORY
from tests.sasl import LISTENER, MODULES
from tests.system.packages.service import Service
from tests.waiting import until
from tools.apache_kafka import ToolchainMissingError
from tools.install_test_clients import debian_package

UNIT = REPOSITORY / "deploy" / "systemd" / "millstream.service"
HANGING = """\
import os, signal, time

def hang(*_):
    os.write(2, b"the event loop hangs now\\n")
    time.sleep(3600)

signal.signal(signal.SIGUSR1, hang)
"""
"""A Python handler of a signal runs in the main thread, as the event loop does: other threads go on."""
SASL = (
    "listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms=PLAIN",
    "sasl.mechanism.inter.broker.protocol=PLAIN",
    f"{LISTENER}.plain.sasl.jaas.config={MODULES}.plain.PlainLoginModule required "
    'username="admin" password="${file:passwords:admin}" user_admin="${file:passwords:admin}";',
)
WATCHDOG_SECONDS = 0.3


@contextmanager
def broker(directory: Path, *more: str) -> Iterator[Service]:
    (directory / "sitecustomize.py").write_text(HANGING)
    source = os.path.join(REPOSITORY, "src")
    environment = {"PYTHONPATH": os.pathsep.join((str(directory), source))}
    words = ("serve", "--no-http", "--listen", "127.0.0.1:0", "--data-dir", "data", *more)
    service = Service(
        [sys.executable, "-m", "millstream", *words], directory, environment=environment, watchdog_s=WATCHDOG_SECONDS
    )
    try:
        yield service
    finally:
        service.end()


def node_processes(service: Service) -> list[int]:
    listed = subprocess.run(["pgrep", "-P", str(service.process.pid)], capture_output=True, text=True).stdout
    return [int(line) for line in listed.split()]


def settings(values: Sequence[str]) -> list[str]:
    return [word for value in values for word in ("--set", value)]


def test_messages_of_a_broker(tmp_path: Path) -> None:
    with broker(tmp_path) as service:
        service.wait_for("READY=1")
        address = service.output.readline().split()[1].removeprefix("kafka=")
        assert f"STATUS=ready kafka={address}" in service.messages
        assert httpx.get(f"http://{address}/readyz").status_code == 200
        service.wait_for("WATCHDOG=1", count=3)
        service.process.send_signal(signal.SIGHUP)  # there is no terminal that was closed
        until(lambda: "reload_without_effect" in service.log())
        service.wait_for("WATCHDOG=1", count=3)
        assert service.stop() == 0


def test_the_pings_stop_when_the_event_loop_hangs(tmp_path: Path) -> None:
    with broker(tmp_path) as service:
        service.wait_for("READY=1")
        service.wait_for("WATCHDOG=1", count=2)
        service.process.send_signal(signal.SIGUSR1)
        until(lambda: "the event loop hangs now" in service.log())
        assert service.is_silent()
        assert service.process.poll() is None


def test_a_reload_reads_users_again(tmp_path: Path) -> None:
    properties = tmp_path / "server.properties"
    passwords = tmp_path / "passwords"
    passwords.write_text("admin=first-secret-1\n")
    passwords.chmod(0o600)
    lines = [line.replace("file:passwords", f"file:{passwords}") for line in SASL]
    properties.write_text("\n".join(lines) + "\n")
    properties.chmod(0o600)
    with broker(tmp_path, "--config", str(properties)) as service:
        service.wait_for("READY=1")
        service.process.send_signal(signal.SIGHUP)
        service.wait_for("RELOADING=1")
        assert any(line.startswith("MONOTONIC_USEC=") for line in service.messages)
        service.wait_for("READY=1")
        assert service.stop() == 0


def test_several_nodes_are_one_service(tmp_path: Path) -> None:
    """With --cores, the supervisor pings for all nodes: a hanging node stops its pings."""
    with broker(tmp_path, "--cores", "2") as service:
        service.wait_for("READY=1")
        assert service.messages.count("READY=1") == 1
        service.wait_for("WATCHDOG=1", count=2)
        nodes = node_processes(service)
        assert len(nodes) == 2
        os.kill(nodes[1], signal.SIGUSR1)
        until(lambda: "event_loop_hangs nodes=[" in service.log())
        assert service.is_silent()


def test_systemd_accepts_the_unit_file(tmp_path: Path) -> None:
    try:
        analyze = debian_package("systemd", "systemd-analyze")
    except ToolchainMissingError as reason:
        pytest.skip(str(reason))
    for program in ("usr/lib/millstream/bin/millstream", "bin/sh"):
        (tmp_path / program).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(shutil.which("true") or "", tmp_path / program)
    shutil.copytree("/usr/lib/systemd/system", tmp_path / "usr/lib/systemd/system", symlinks=True)
    shutil.copy(UNIT, tmp_path / "usr/lib/systemd/system")
    verified = subprocess.run(
        [analyze, "verify", f"--root={tmp_path}", "--man=no", UNIT.name], capture_output=True, text=True
    )
    assert (verified.returncode, verified.stderr) == (0, "")
    # In tenths; below 2.0 is "OK", the best that a service with a network can be.
    checked = subprocess.run(
        [analyze, "security", "--offline=yes", f"--root={tmp_path}", "--threshold=15", "--no-pager", UNIT.name],
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout
