"""A forked node is a process as any other, and starts in the ordinary way where it must."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.testing import EmbeddedBroker, fork_server
from millstream.testing.node_process import NodeProcess, NodeProcessError, free_ports
from tests.waiting import TIMEOUT_SECONDS, until


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


def _is_forked(pid: int) -> bool:
    return "millstream.testing.fork_server" in _command(pid)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    words = ["--data-dir", str(tmp_path / "data"), "--listen", f"127.0.0.1:{free_ports(1)[0]}"]
    made = NodeProcess("the node", words, tmp_path / "log", stop_timeout=TIMEOUT_SECONDS)
    yield made
    made.reap(signal.SIGKILL)


def test_a_forked_node_has_its_own_session_directory_and_environment(
    node: NodeProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with EmbeddedBroker() as other:
        monkeypatch.chdir(tmp_path)
        node.spawn()
        node.wait_until_ready(TIMEOUT_SECONDS)
        assert _is_forked(node.pid) and _is_forked(other.pid)
        assert os.getsid(node.pid) == node.pid != other.pid
        assert os.readlink(f"/proc/{node.pid}/cwd") == str(tmp_path) != os.readlink(f"/proc/{other.pid}/cwd")
        files = [os.readlink(each) for each in Path(f"/proc/{node.pid}/fd").iterdir()]
        assert not [each for each in files if str(other.data_dir) in each]


def test_the_exit_code_is_that_of_the_node(node: NodeProcess) -> None:
    node.spawn()
    node.wait_until_ready(TIMEOUT_SECONDS)
    assert node.running and node.exit_code is None
    os.kill(node.pid, signal.SIGKILL)
    until(lambda: not node.running)
    assert node.exit_code == -signal.SIGKILL
    node.reap(signal.SIGTERM)
    node.spawn()
    node.wait_until_ready(TIMEOUT_SECONDS)
    os.kill(node.pid, signal.SIGTERM)
    until(lambda: not node.running)
    assert node.exit_code == 0


def test_a_node_that_does_not_start_says_why(tmp_path: Path) -> None:
    words = ["--data-dir", str(tmp_path), "--set", "node.id=minus one"]
    node = NodeProcess("the node", words, tmp_path / "log", stop_timeout=TIMEOUT_SECONDS)
    node.spawn()
    with pytest.raises(NodeProcessError, match=r"(?s)ended with exit code 1 at its start.*node\.id"):
        node.wait_until_ready(TIMEOUT_SECONDS)


@pytest.mark.parametrize(
    ("name", "value"), [(fork_server.VARIABLE, "no"), ("PYTHONHASHSEED", "7"), ("LD_BIND_NOW", "1")]
)
def test_variables_that_work_at_the_start_of_a_program(
    node: NodeProcess, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    with EmbeddedBroker():  # the server has started without the variable
        monkeypatch.setenv(name, value)
        node.spawn()
        node.wait_until_ready(TIMEOUT_SECONDS)
        assert not _is_forked(node.pid)


_KILLED = """
import os, signal
from millstream.testing import EmbeddedBroker, fork_server
broker = EmbeddedBroker()
broker.start()
server = fork_server._server._process
os.kill(server.pid, signal.SIGKILL)
server.wait()
with EmbeddedBroker() as other:
    print("other", other.running)
print(broker.pid, server.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nodes_end_with_the_process_that_started_them_also_without_their_server() -> None:
    ran = subprocess.run([sys.executable, "-c", _KILLED], capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    first, second = ran.stdout.splitlines()
    assert first == "other True"
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in second.split()))
