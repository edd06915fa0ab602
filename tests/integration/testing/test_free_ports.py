"""Ports are free, distinct, and no other process's."""

import os
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from millstream.testing import EmbeddedBroker, EmbeddedCluster, embedded, embedded_cluster, node_process
from millstream.testing.node_process import PortTakenError, free_port_range, free_ports
from tests.waiting import TIMEOUT_SECONDS

OTHERS = "from millstream.testing.node_process import free_ports; print(*free_ports(3), flush=True); input()"


def test_ports_of_one_process_are_distinct() -> None:
    ports = free_ports(6) + free_ports(6)
    assert len(set(ports)) == 12


def test_two_processes_never_choose_the_same() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OTHERS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        theirs = {int(port) // 100 for port in other.stdout.readline().split()}
        ours = {port // 100 for port in free_ports(3)}
        other.communicate("\n", timeout=TIMEOUT_SECONDS)
    assert not theirs & ours


def test_a_process_with_another_temporary_directory_never_chooses_the_same(tmp_path: Path) -> None:
    """As one in a chroot has. The lock on a file does not help there."""
    ours = free_ports(1)[0] // 100 * 100
    seen = "from millstream.testing import node_process as n; n._range = lambda: range({0}, {0} + 1); n.free_ports(1)"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", seen.format(ours)]
    other = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert "all 1 blocks of ports are reserved by other processes" in other.stderr


@pytest.mark.parametrize(
    ("outgoing", "low", "high"),
    [("32768 60999", 20_000, 32_000), ("10000 65535", 1_100, 9_999), ("1024 40000", 40_001, 65_535)],
)
def test_ports_are_outside_the_range_of_outgoing_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outgoing: str, low: int, high: int
) -> None:
    (tmp_path / "range").write_text(outgoing)
    monkeypatch.setattr(node_process, "_OUTGOING", tmp_path / "range")
    blocks = node_process._range()
    assert blocks and low <= blocks[0] and blocks[-1] + 99 <= high


def test_a_port_that_another_program_took_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the choice and the start of the node."""
    given: list[int] = []
    with ExitStack() as stack:

        def taken_at_first(count: int) -> list[int]:
            ports = free_ports(count)
            if not given:
                stack.enter_context(socket.create_server((node_process.HOST, ports[-1])))
            given.extend(ports)
            return ports

        monkeypatch.setattr(embedded, "free_ports", taken_at_first)
        monkeypatch.setattr(embedded_cluster, "free_ports", taken_at_first)
        broker = stack.enter_context(EmbeddedBroker())
        assert broker.bootstrap_servers == f"127.0.0.1:{given[1]}"
        with pytest.raises(PortTakenError, match="Address already in use"):
            EmbeddedBroker(port=given[0]).start()
        given.clear()
        cluster = stack.enter_context(EmbeddedCluster(1))
        assert cluster.address(1) == f"127.0.0.1:{given[2]}" and cluster.running(1)


def test_a_stretch_steps_over_what_is_taken() -> None:
    (before,) = free_ports(1)
    with ExitStack() as stack:
        with suppress(OSError):  # another process has it: taken as well
            stack.enter_context(socket.create_server(("127.0.0.1", before + 2)))
        first = free_port_range(3)
    assert before + 2 not in range(first, first + 3)


def test_a_stretch_is_in_another_block_if_nodes_are_scattered_over_this_one() -> None:
    ports = free_ports(100)
    with ExitStack() as stack:
        for port in ports[::20]:
            with suppress(OSError):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
        first = free_port_range(40)
        for port in range(first, first + 40):
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
