"""The embedded broker: starts, stops, dies and comes back, and never outlives its parent."""

import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

import millstream
from millstream.testing import EmbeddedBroker, EmbeddedBrokerError
from tests.waiting import TIMEOUT_SECONDS


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_an_embedded_broker_starts_serves_and_stops() -> None:
    with EmbeddedBroker({"num.partitions": 3, "auto.create.topics.enable": False}) as broker:
        scratch = broker.data_dir.parent
        assert broker.running
        assert is_alive(broker.pid)
        with millstream.connect(broker.bootstrap_servers) as client:
            client.create_topic("t")
            assert len(client.describe_topic("t").partitions) == 3
        assert (broker.data_dir / "t-2").is_dir()
    assert not broker.running
    assert not scratch.exists()


def test_restart_keeps_address_and_data() -> None:
    with EmbeddedBroker() as broker:
        address, pid = broker.bootstrap_servers, broker.pid
        with millstream.connect(address) as client:
            client.create_topic("kept", 1)
            client.publish("kept", "before")
        broker.restart()
        assert broker.bootstrap_servers == address
        assert broker.pid != pid
        broker.kill()
        assert not broker.running
        broker.start()
        with millstream.connect(address) as client:
            assert [record.text() for record in client.consume("kept")] == ["before"]


def test_a_directory_of_ones_own_stays(tmp_path: os.PathLike[str]) -> None:
    with EmbeddedBroker(data_dir=tmp_path) as broker, millstream.connect(broker.bootstrap_servers) as client:
        client.create_topic("mine", 1)
        client.publish("mine", "x")
    assert "mine-0" in os.listdir(tmp_path)


def test_a_broker_that_does_not_start_says_why() -> None:
    broker = EmbeddedBroker({"node.id": "seven"})
    with pytest.raises(EmbeddedBrokerError, match=r"node\.id=seven") as caught:
        broker.start()
    assert "exit code 1" in str(caught.value)
    assert not broker.running
    broker.close()


def test_a_failed_start_leaves_nothing_behind() -> None:
    broker = EmbeddedBroker({"node.id": "seven"})
    scratch = broker.data_dir.parent
    with pytest.raises(EmbeddedBrokerError), broker:
        pass
    assert not scratch.exists()


def test_a_broker_that_is_not_ready_in_time() -> None:
    broker = EmbeddedBroker(start_timeout=0.0)
    with pytest.raises(EmbeddedBrokerError, match="not ready after 0 s"):
        broker.start()
    assert not broker.running
    broker.close()


def test_use_outside_of_a_with_statement_is_an_error() -> None:
    broker = EmbeddedBroker()
    with pytest.raises(EmbeddedBrokerError, match="with EmbeddedBroker"):
        _ = broker.bootstrap_servers
    with pytest.raises(EmbeddedBrokerError, match="not running"):
        _ = broker.pid
    broker.stop()
    broker.close()


@pytest.mark.parametrize("ending", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(0)", "sys.exit()"])
def test_it_dies_with_its_parent(ending: str) -> None:
    script = (
        "import os, signal, sys\n"
        "from millstream.testing import EmbeddedBroker\n"
        "broker = EmbeddedBroker()\n"
        "broker.start()\n"
        "print(broker.pid, broker.data_dir.parent, flush=True)\n"
        f"{ending}\n"
    )
    parent = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    pid, _, scratch = parent.stdout.strip().partition(" ")
    try:
        assert eventually(lambda: not is_alive(int(pid)))
    finally:
        subprocess.run(["rm", "-rf", scratch], check=True)
