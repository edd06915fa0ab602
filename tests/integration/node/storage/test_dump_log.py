"""`kafka-dump-log` reads our control batches, `.txnindex` and `.snapshot`, and finds nothing to complain about."""

import re

import pytest

from tests.unit.node.storage.conftest import Node
from tests.unit.node.storage.test_partition_log import SMALL_SEGMENTS, append
from tests.unit.node.storage.transactional import abort, commit, write, write_own
from tools import apache_kafka


@pytest.fixture(scope="module")
def kafka() -> apache_kafka.KafkaDistribution:
    try:
        return apache_kafka.resolve()
    except apache_kafka.ToolchainMissingError as reason:
        pytest.skip(f"Apache Kafka's tools: {reason}")


def test_kafka_reads_our_transactions_from_the_log(node: Node, kafka: apache_kafka.KafkaDistribution) -> None:
    log = node.log(SMALL_SEGMENTS)
    write(log, 1, 0, b"v" * 50)
    write_own(log, 2, b"v" * 50)
    append(log, b"v" * 90)
    abort(log, 1, epoch=1, coordinator_epoch=5, version=2)
    commit(log, 2, epoch=1, coordinator_epoch=5, version=2)
    write(log, 3, 0, b"v" * 200)
    abort(log, 3, epoch=1, version=2)
    write(log, 4, 0)
    node.stop()
    names = [path for suffix in ("log", "txnindex", "snapshot") for path in sorted(node.path.glob(f"*.{suffix}"))]
    done = kafka.run(
        apache_kafka.DUMP_LOG_SEGMENTS,
        "--files",
        ",".join(map(str, names)),
        "--deep-iteration",
        performance=apache_kafka.QUICK_START_OPTIONS,
    )
    said = done.stdout
    assert done.returncode == 0, said + done.stderr
    assert not re.search("corrupt|exception|isvalid: false", said + done.stderr, re.IGNORECASE), said + done.stderr
    assert re.findall(r"endTxnMarker: (\w+) coordinatorEpoch: (-?\d+)", said) == [
        ("ABORT", "5"),
        ("COMMIT", "5"),
        ("ABORT", "0"),
    ]
    found = re.findall(
        r"version: 0 producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)", said
    )
    assert found == [("1", "0", "3", "1"), ("3", "5", "6", "7")]
    assert re.search(r"producerId: 4 .*currentTxnFirstOffset: (?:Some\(|OptionalLong\[)?7", said), said
