"""The harness itself: silences are measured rightly, damaged replicas are seen, and links that are cut are cut."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.formats.records.record import Record, build_batch
from millstream.simulator.history import History, Outcome, Send, check
from tests.repository import REPOSITORY
from tests.system.chaos import containment, nemeses, replicas
from tests.system.chaos.nodes import MillstreamNode
from tests.system.chaos.summary import EndedLogin, Fault, Summary, acknowledged_times, longest_silence, unexplained
from tests.system.chaos.workload import TOPIC


def test_a_silence_is_the_longest_time_without_an_acknowledgement_of_any_one_partition() -> None:
    history = History()
    for partition, times in {"a": (1, 2, 5, 6, 9), "b": (1, 2, 3, 4, 5, 6, 7, 8, 9)}.items():
        for at in times:
            history.sends.append(Send("p", partition, at, at - 0.5, float(at), Outcome.ACKED, 0))
    acked = acknowledged_times(history)
    assert longest_silence(acked, 0.5, 6.5) == 3.0
    assert longest_silence(acked, 3.0, 5.5) == 2.0
    assert longest_silence(acked, 6.5, 8.0) == 1.5, "what began before and ends later counts for the part within"


@pytest.mark.parametrize("problems", [[], ["node 2 has ended by itself"]])
def test_a_summary_names_every_fault_and_ends_with_a_verdict(problems: list[str]) -> None:
    history = History()
    for at in (1, 2, 5, 6, 9):
        history.sends.append(Send("p", "a", at, at - 0.5, float(at), Outcome.ACKED, at))
    faults = [
        Fault("pause", "node 1", 0.5, 3.0, 4.0, 6.5),
        Fault("pause", "node 2", 6.5, 8.0, 8.5, 9.5),
        Fault("kill", "node 3", 9.5, 9.6, 9.7, 10.0),
    ]
    *_, header, kill, pause, blank, verdict = str(
        Summary("title", faults, history, check(history), "", problems)
    ).splitlines()
    assert header.startswith("time without acknowledgements") and not blank
    assert kill.split() == ["kill", "1", "0.50", "s", "0.50", "s"]
    assert pause.split() == ["pause", "2", "2.75", "s", "3.00", "s"]
    assert verdict.startswith("VERDICT: NOT CLEAN" if problems or not check(history).clean else "VERDICT: clean")


@pytest.mark.parametrize(
    ("at", "node", "is_problem"),
    [
        (5.0, "10.0.0.2:9092", False),
        (5.0, "10.0.0.1:9092", True),
        (5.0, "10.0.0.22:9092", True),
        (9.0, "10.0.0.2:9092", True),
    ],
    ids=["during the fault of its node", "of another node", "of a node with a longer address", "after the fault"],
)
def test_a_login_that_ends_with_its_connection_is_a_problem_unless_its_node_was_struck(
    at: float, node: str, is_problem: bool
) -> None:
    fault = Fault("kill", "node 2", 1.0, 4.0, 6.0, 8.0, frozenset({"10.0.0.2:9092"}))
    login = EndedLogin(at, "a client", f"sasl_ssl://{node}/2: SASL handshake failed: Local: Broker transport failure")
    assert bool(unexplained([login], [fault])) is is_problem


def test_the_table_has_every_fault() -> None:
    names = {each.name for each in nemeses.ALL}
    assert len(names) == len(nemeses.ALL)
    words = ["kill -9", "pause", "partition", "deaf", "mute", "full disk", "torn writes", "without power"]
    for word in (*words, "EIO on every write", "EIO on every read"):
        assert any(word in name for name in names), word


def test_replicas_that_differ_are_told(tmp_path: Path) -> None:
    nodes = [
        MillstreamNode(number, ("127.0.0.1", 1), {}, tmp_path, tmp_path / f"data-{number}") for number in (1, 2, 3)
    ]
    first, second = (bytes(build_batch([Record(None, value, timestamp=1)])) for value in (b"one", b"two"))
    for node, batches in zip(nodes, (first, first, first), strict=True):
        directory = node.data_dir / f"{TOPIC}-0"
        directory.mkdir(parents=True)
        (directory / f"{0:020d}.log").write_bytes(batches)
    assert replicas.differences(nodes, 1) == []
    (nodes[2].data_dir / f"{TOPIC}-0" / f"{0:020d}.log").write_bytes(second)
    (nodes[1].data_dir / f"{TOPIC}-0" / f"{1:020d}.log").write_bytes(second)
    assert len(replicas.differences(nodes, 1)) == 2


_LINKS = """
import socket, subprocess, sys, threading
from tests.system.chaos.network import Bridged, KAFKA_PORT

network = Bridged(2)
listen = "import socket; s = socket.create_server(('', %d)); print('up', flush=True)\\n" % KAFKA_PORT
listen += "while True: s.accept()"
servers = []
for node in (1, 2):
    command = [*network.command_prefix(node), sys.executable, "-c", listen]
    servers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    servers[-1].stdout.readline()

def reaches(sender, receiver):
    attempt = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 0.7)"
    host, port = network.kafka_address(receiver)
    command = [*network.command_prefix(sender), sys.executable, "-c", attempt, host, str(port)]
    return subprocess.run(command, capture_output=True).returncode == 0

assert reaches(1, 2) and reaches(2, 1)
network.cut(1, 2)
assert not reaches(1, 2)
assert not reaches(2, 1), "the response does not come back"
for node in (1, 2):
    socket.create_connection(network.kafka_address(node), 0.7).close()
network.heal()
assert reaches(1, 2) and reaches(2, 1)
for server in servers:
    server.kill()
"""


def test_a_link_that_is_cut_carries_nothing_and_clients_still_reach_both_ends() -> None:
    if not containment.is_possible():
        pytest.skip("network namespaces are not to be had here")
    command = [*containment.unshare(), sys.executable, "-c", _LINKS]
    done = subprocess.run(command, cwd=REPOSITORY, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
