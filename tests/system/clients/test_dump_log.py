"""`kafka-dump-log` reads what the broker wrote to disk, and finds nothing to complain about."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.system.clients import brokers, corpus
from tests.system.clients.client_program import ClientProgram
from tests.system.clients.conftest import GetClient
from tests.system.cluster.kafka_tools import KafkaTools

TOPIC = "dumped"
RECORDS = 1000
RECORDS_PER_BATCH = 3
RECORD_BYTES = 5000

# What DumpLogSegments prints when log and index disagree or a batch is damaged.
COMPLAINTS = re.compile(
    r"mismatch|not found|non-?consecutive|corrupt|isvalid: false|invalid|out of order|could not|exception|error",
    re.IGNORECASE,
)
# With --deep-iteration the tool starts each file expecting offset 0, and says so of Apache Kafka's own files too.
FIRST_OFFSET_QUIRK = re.compile(r"Non-consecutive offsets in \S+/0*(\d+)\.log\n  -1 is followed by \1\n(?!  )")

# Lines of other clients in the same virtual machine, whose broker has stopped. They may begin within another line.
OTHER_CLIENTS = re.compile(r"\[\d{4}-[^\]]*\] \w+ \[(?:AdminClient|Consumer|Producer) [^\n]*\n")


@dataclass(frozen=True, slots=True)
class Dump:
    tools: KafkaTools

    def __call__(self, files: list[Path], *options: str) -> str:
        said = self.tools("kafka-dump-log", "--files", ",".join(map(str, files)), *options)
        said = FIRST_OFFSET_QUIRK.sub("", OTHER_CLIENTS.sub("", said))
        complaint = COMPLAINTS.search(said)
        assert complaint is None, said[max(0, complaint.start() - 1000) : complaint.end() + 1000]
        return said


@pytest.fixture(scope="module")
def dump(kafka_tools: KafkaTools) -> Dump:
    return Dump(kafka_tools)


@pytest.fixture(scope="module")
def stopped_data_dir(tmp_path_factory: pytest.TempPathFactory, get_client: GetClient) -> Iterator[Path]:
    """The data directory after several segments were rolled, records deleted, and the broker stopped."""
    broker = brokers.start_broker(tmp_path_factory.mktemp("dump") / "data")
    client = get_client("confluent-kafka")
    try:
        write(client, broker.bootstrap_servers)
    finally:
        broker.stop()
    yield broker.data_dir


def write(client: ClientProgram, bootstrap: str) -> None:
    # The smallest segment Kafka allows.
    config = {"segment.bytes": "1048576"}
    client.ask("create_topic", bootstrap, topic=TOPIC, partitions=1, config=config)
    values = random.Random(1)
    numbers = itertools.count()
    for codec in corpus.CODECS:
        records = [
            corpus.record(b"%d" % number, values.randbytes(RECORD_BYTES), timestamp=corpus.FIRST_TIMESTAMP_MS + number)
            for number in itertools.islice(numbers, RECORDS // len(corpus.CODECS))
        ]
        for result in client.produce(bootstrap, TOPIC, records, codec=codec, batch_records=RECORDS_PER_BATCH):
            assert "error" not in result, result


def files_of(partition: Path) -> list[Path]:
    return sorted(file for file in partition.iterdir() if file.suffix in (".log", ".index", ".timeindex"))


def test_segments_indexes_and_batches(stopped_data_dir: Path, dump: Dump) -> None:
    files = files_of(stopped_data_dir / f"{TOPIC}-0")
    assert len([file for file in files if file.suffix == ".log"]) > 3
    said = dump(files)
    offsets = [int(base) for base in re.findall(r"^baseOffset: (\d+) ", said, re.MULTILINE)]
    assert offsets == sorted(offsets)
    assert offsets[0] == 0
    last = [int(offset) for offset in re.findall(r" lastOffset: (\d+) ", said)]
    assert max(last) == RECORDS - 1
    assert re.search(r"^offset: \d+ position: \d+", said, re.MULTILINE), "no index entry"
    assert re.search(r"^timestamp: \d+ offset: \d+", said, re.MULTILINE), "no time index entry"


def test_dump_log_reads_every_record(stopped_data_dir: Path, dump: Dump) -> None:
    said = dump(files_of(stopped_data_dir / f"{TOPIC}-0"), "--deep-iteration")
    offsets = [int(offset) for offset in re.findall(r"^\| offset: (\d+) ", said, re.MULTILINE)]
    assert sorted(offsets) == list(range(RECORDS))


def test_dump_log_verifies_the_indexes(stopped_data_dir: Path, dump: Dump) -> None:
    """The tool looks up every index entry in the log."""
    files = [file for file in files_of(stopped_data_dir / f"{TOPIC}-0") if file.suffix != ".log"]
    assert dump(files, "--verify-index-only").count("Dumping") == len(files)


def test_indexes_pass_kafkas_sanity_check(stopped_data_dir: Path, dump: Dump) -> None:
    indexes = [file for file in files_of(stopped_data_dir / f"{TOPIC}-0") if file.suffix != ".log"]
    said = dump(indexes, "--index-sanity-check")
    assert said.count("passed sanity check") == len(indexes)


def test_dump_log_reads_producer_snapshots(stopped_data_dir: Path, dump: Dump) -> None:
    snapshots = sorted((stopped_data_dir / f"{TOPIC}-0").glob("*.snapshot"))
    assert snapshots
    said = dump(snapshots)
    # The last one, written at the stop, knows the last batch of each of the five producers.
    final = said[said.index(f"{snapshots[-1]}") :]
    per_producer = RECORDS // len(corpus.CODECS)
    for number in range(len(corpus.CODECS)):
        expected = f"lastSequence: {per_producer - 1} lastOffset: {(number + 1) * per_producer - 1} "
        assert expected in final, final


def test_dump_log_decodes_the_metadata_log(stopped_data_dir: Path, dump: Dump) -> None:
    logs = sorted((stopped_data_dir / "__cluster_metadata-0").glob("*.log"))
    said = dump(logs, "--cluster-metadata-decoder")
    assert f'"type":"TOPIC_RECORD","version":0,"data":{{"name":"{TOPIC}"' in said
    assert '"type":"PARTITION_RECORD"' in said
    assert '"name":"segment.bytes","value":"1048576"' in said


def test_dump_log_reads_a_running_broker(get_client: GetClient, tmp_path: Path, dump: Dump) -> None:
    """The sealed segments and the log of the active one are whole while the broker runs."""
    broker = brokers.start_broker(tmp_path / "data")
    try:
        write(get_client("confluent-kafka"), broker.bootstrap_servers)
        files = files_of(broker.data_dir / f"{TOPIC}-0")
        active = max(file.stem for file in files)
        sealed = [file for file in files if file.stem != active]
        assert len(sealed) >= 9
        said = dump([*sealed, broker.data_dir / f"{TOPIC}-0" / f"{active}.log"])
        last = [int(offset) for offset in re.findall(r" lastOffset: (\d+) ", said)]
        assert max(last) == RECORDS - 1
    finally:
        broker.stop()
