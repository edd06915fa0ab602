"""One data directory, and a live Apache Kafka: neither starts where the other runs, and what is not understood is not
touched."""

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.testing import EmbeddedBroker
from tools import apache_kafka

pytestmark = pytest.mark.timeout(300)
HEAP = ("-Xmx256M", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


@pytest.fixture(scope="module")
def distribution() -> apache_kafka.KafkaDistribution:
    found = apache_kafka.installed()
    if found is None:
        pytest.skip("Apache Kafka is not in .cache (python tools/apache_kafka.py fetches it)")
    return found


@pytest.fixture(scope="module")
def kafka(
    distribution: apache_kafka.KafkaDistribution, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[apache_kafka.ApacheKafkaBroker]:
    directory = tmp_path_factory.mktemp("kafka") / "data"
    with apache_kafka.ApacheKafkaBroker(distribution, directory, jvm=HEAP) as running:
        yield running


def contents(directory: Path) -> dict[str, str]:
    """Every file with a digest of its bytes."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def refused(data_dir: Path) -> str:
    """What `millstream serve` says when it does not start on this directory."""
    arguments = ["--listen", "127.0.0.1:0", "--data-dir", str(data_dir), "--set", "node.id=1", "--no-http"]
    done = subprocess.run(
        [sys.executable, "-m", "millstream", "serve", *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.returncode not in (0, -9)
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_directory_that_kafka_has_or_has_left(kafka: apache_kafka.ApacheKafkaBroker) -> None:
    assert f"{kafka.data_dir} is in use by another broker" in refused(kafka.data_dir)
    kafka.stop()
    before = contents(kafka.data_dir)
    said = refused(kafka.data_dir)
    assert "metadata record of unknown type" in said
    assert "__cluster_metadata-0" in said
    assert contents(kafka.data_dir) == before
    kafka.start()  # its metadata is as it was


def test_a_directory_that_a_running_millstream_has(
    distribution: apache_kafka.KafkaDistribution, tmp_path: Path
) -> None:
    other = apache_kafka.ApacheKafkaBroker(distribution, tmp_path / "data", jvm=HEAP)
    with EmbeddedBroker(data_dir=tmp_path / "data") as running:
        meta = (tmp_path / "data" / "meta.properties").read_text()
        other.write_settings()
        properties = other.properties_file.read_text()
        other.properties_file.write_text(properties.replace("node.id=1", f"node.id={_node_id(meta)}"))
        other.start_process()
        assert other.process is not None
        try:
            assert other.process.wait(120) != 0
        finally:
            other.kill()
        assert "Failed to acquire lock on file .lock" in other.log_file.read_text()
        assert running.running


def _node_id(meta: str) -> str:
    return next(line.partition("=")[2] for line in meta.splitlines() if line.startswith("node.id="))
