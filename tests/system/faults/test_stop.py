"""Stopping under load, and starts that must fail with one clear line."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

from millstream.testing import EmbeddedBroker
from tests.system.faults.conftest import TOPIC, number, read_numbers
from tests.waiting import TIMEOUT_SECONDS
from tests.wire import Closed, Wire, batch, fetch_fields


def load(address: str, partition: int, acked: list[int], started: threading.Barrier) -> None:
    try:
        with Wire(address) as wire, Wire(address) as reader:
            reader.send("fetch", 12, **fetch_fields([(TOPIC, partition, 0)], max_wait_ms=60_000, min_bytes=1 << 30))
            for value in range(1_000_000):
                if wire.produce(TOPIC, batch(number(value, 500)), partition).error_code == 0:
                    acked.append(value)
                if value == 20:
                    started.wait(TIMEOUT_SECONDS)
    except (Closed, OSError):
        pass


def test_sigterm_under_load_stops_soon_and_the_next_start_is_clean(broker: EmbeddedBroker) -> None:
    with Wire(broker.bootstrap_servers) as wire:
        wire.create_topic(TOPIC, 4)
    acked: list[list[int]] = [[], [], [], []]
    started = threading.Barrier(5)
    threads = [
        threading.Thread(target=load, args=(broker.bootstrap_servers, at, acked[at], started)) for at in range(4)
    ]
    for thread in threads:
        thread.start()
    started.wait(TIMEOUT_SECONDS)
    broker.stop()  # raises when it takes longer than the ten seconds a broker is given
    for thread in threads:
        thread.join()
    broker.start()
    assert "clean=True" in broker.log_file.read_text()
    for partition in range(4):
        found = read_numbers(broker.bootstrap_servers, partition=partition)
        assert found[: len(acked[partition])] == acked[partition]
        assert len(found) <= len(acked[partition]) + 1
    assert "Traceback" not in broker.log_file.read_text()


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "millstream", "serve", "--no-http", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def complaint(result: subprocess.CompletedProcess[str]) -> str:
    """The one line that says why there was no start."""
    assert result.returncode not in (0, -signal.SIGKILL)
    assert "Traceback" not in result.stderr
    assert "ready" not in result.stdout
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("millstream:") and "warning" not in line]
    return line


def test_a_second_broker_on_the_same_directory(broker: EmbeddedBroker) -> None:
    line = complaint(serve("--listen", "127.0.0.1:0", "--data-dir", str(broker.data_dir)))
    assert str(broker.data_dir) in line and "in use" in line
    with Wire(broker.bootstrap_servers) as wire:
        wire.create_topic("still-here")


def test_a_port_in_use(broker: EmbeddedBroker, tmp_path: Path) -> None:
    line = complaint(serve("--listen", broker.bootstrap_servers, "--data-dir", str(tmp_path / "other")))
    assert broker.bootstrap_servers in line
    # The attempt must not have spoiled the directory: it starts, elsewhere.
    with EmbeddedBroker(data_dir=tmp_path / "other") as other, Wire(other.bootstrap_servers) as wire:
        wire.create_topic("fine")


def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a directory")
    assert str(file) in complaint(serve("--listen", "127.0.0.1:0", "--data-dir", str(file)))


def test_another_nodes_directory_is_not_touched(broker: EmbeddedBroker) -> None:
    with Wire(broker.bootstrap_servers) as wire:
        wire.create_topic(TOPIC)
        assert wire.produce(TOPIC, batch(b"1")).error_code == 0
    broker.kill()
    log = broker.data_dir / f"{TOPIC}-0" / f"{0:020d}.log"
    with log.open("ab") as file:
        file.write(b"what recovery would cut")
    before = {path: path.read_bytes() for path in broker.data_dir.rglob("*") if path.is_file()}
    line = complaint(serve("--listen", "127.0.0.1:0", "--data-dir", str(broker.data_dir), "--set", "node.id=77"))
    assert "belongs to node" in line
    assert {path: path.read_bytes() for path in broker.data_dir.rglob("*") if path.is_file()} == before
    broker.start()
    assert read_numbers(broker.bootstrap_servers) == [1]


def test_a_start_that_failed_after_a_kill_is_followed_by_new_leader_epochs(broker: EmbeddedBroker) -> None:
    with Wire(broker.bootstrap_servers) as wire:
        wire.create_topic(TOPIC)
        assert wire.produce(TOPIC, batch(b"1")).error_code == 0
    broker.kill()
    with EmbeddedBroker() as other:
        complaint(serve("--listen", other.bootstrap_servers, "--data-dir", str(broker.data_dir)))
    assert not (broker.data_dir / ".kafka_cleanshutdown").exists()
    broker.start()
    with Wire(broker.bootstrap_servers) as wire:
        (topic,) = wire.call("metadata", 12, topics=[{"name": TOPIC}]).topics
        assert topic.partitions[0].leader_epoch > 0
