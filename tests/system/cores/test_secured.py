"""Several nodes of a secured configuration: TLS and SCRAM between clients and all nodes, certificates between nodes."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.testing.node_process import free_port_range
from tests.system.cores.machine import Machine
from tests.waiting import TIMEOUT_SECONDS, eventually, until


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    directory = tmp_path_factory.mktemp("secured")
    made = directory / "made"
    port = free_port_range(40)
    init = ["security", "init", str(made), "--nodes", "1", "--port", str(port)]
    done = subprocess.run([sys.executable, "-m", "millstream", *init], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    machine = Machine(directory, "--config", str(made / "node-1" / "server.properties"))
    try:
        machine.start(2)
        yield machine
    finally:
        machine.kill_all()


def command(machine: Machine, *words: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    properties = machine.directory / "made" / "client" / "client.properties"
    return subprocess.run(
        [sys.executable, "-m", "millstream", *words, "--command-config", str(properties)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )


def test_clients_log_in_to_all_nodes(secured: Machine) -> None:
    assert len(secured.bootstrap.split(",")) == 2
    created = command(secured, "topic", "create", "orders", "--partitions", "4")
    assert created.returncode == 0, created.stderr
    values = [f"v{number}" for number in range(20)]
    assert command(secured, "produce", "orders", stdin="\n".join(values) + "\n").returncode == 0
    read = command(secured, "consume", "orders", "--count", "20")
    assert sorted(read.stdout.split()) == sorted(values), read.stderr

    def status_is_well() -> None:
        status = command(secured, "cluster", "status")
        assert status.returncode == 0, status.stdout + status.stderr
        assert "machine-1" in status.stdout

    eventually(status_is_well)


def test_no_one_gets_in_without_a_login(secured: Machine, tmp_path: Path) -> None:
    for address in secured.bootstrap.split(","):
        refused = subprocess.run(
            [sys.executable, "-m", "millstream", "topic", "list", "-b", address, "--timeout", "3"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
        )
        assert refused.returncode != 0


def test_all_nodes_read_their_certificates_again(secured: Machine) -> None:
    assert secured.process is not None
    secured.process.send_signal(signal.SIGHUP)

    def read_again() -> bool:
        lines = [line for line in secured.log().splitlines() if "certificates_read" in line]
        return {line.split()[0] for line in lines} >= {"node=1", "node=1001"}

    until(read_again, "not all nodes read their certificates again")
    assert secured.process.poll() is None


def test_the_number_of_nodes_changes_and_no_secret_is_shown(secured: Machine) -> None:
    assert secured.stop() == 0
    secured.start(1)
    read = command(secured, "consume", "orders", "--count", "20")
    assert len(read.stdout.split()) == 20, read.stderr
    server = (secured.directory / "made" / "node-1" / "server.properties").read_text()
    secrets = [line.partition("=")[2] for line in server.splitlines() if "password" in line.partition("=")[0]]
    assert all(secret not in secured.log() for secret in secrets if secret)
