"""Ports are free, distinct, and no other process's."""

import socket
import subprocess
import sys
from contextlib import ExitStack, suppress

from millstream.testing.node_process import free_port_range, free_ports
from tests.waiting import PATIENCE_S

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
        other.communicate("\n", timeout=PATIENCE_S)
    assert not theirs & ours


def test_a_stretch_steps_over_what_is_taken() -> None:
    (before,) = free_ports(1)
    with ExitStack() as stack:
        with suppress(OSError):  # another process has it: taken as well
            stack.enter_context(socket.create_server(("127.0.0.1", before + 2)))
        first = free_port_range(3)
    assert before + 2 not in range(first, first + 3)
