"""Dead letters of tables: records that could not become rows, unchanged, in a topic, each once.

They are sent before the commit of the batch, in a transaction that also commits the offsets of a group. After a crash
the batch is read again, perhaps with another end. Dead letters before the group's offsets are then left out.

The group is also how far the table is, for tools that show lags of groups. The table does not depend on it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow.parquet as pq
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from millstream.client.connection import Connection
from millstream.lake.data_files import WrittenFile
from millstream.lake.errors import LakeError
from millstream.lake.storage import Storage
from millstream.raw_client import Cluster, ErrorCode, RefusedError
from millstream.raw_client import TopicPartition as Place
from millstream.spark.source.typed_columns import OFFSET, PARTITION, REASON, TOPIC
from millstream.tables.settings import TopicTable

DEAD_LETTER_TOPIC: Final = "millstream-table-dead-letters"
PIPELINE_HEADER, STEP_HEADER = "millstream.pipeline", "millstream.step"
_TIMEOUT_SECONDS: Final = 60.0


def group_of(table: TopicTable) -> str:
    """The group that shows how far a table is."""
    return f"millstream-table.{table.topic}.{table.topic_id[:8]}"


class DeadLetters:
    """Sends the dead letters of one table."""

    def __init__(self, cluster: Cluster, connection: Connection, table: TopicTable, topic: str) -> None:
        self._cluster = cluster
        self._connection = connection
        self._table = table
        self._topic = topic
        self._producer: Producer | None = None
        self._group = group_of(table)

    def send(self, storage: Storage, files: Sequence[WrittenFile], ends: Mapping[int, int]) -> None:
        """Sends the records in these files that were not sent before. `ends`: the ends of the batch."""
        places = {partition: Place(self._table.topic, partition) for partition in ends}
        done = self._cluster.committed_offsets(self._group, places.values())
        begin = {partition: done.get(place, 0) for partition, place in places.items()}
        offsets = [
            TopicPartition(self._table.topic, partition, max(end, begin[partition])) for partition, end in ends.items()
        ]
        try:
            producer = self._started()
            producer.begin_transaction()
            for letter in _read(storage, files):
                if letter["offset"] >= begin[letter["partition"]]:
                    self._produce(producer, letter)
            consumer = Consumer(self._connection.librdkafka(group_id=self._group, enable_auto_commit=False))
            try:
                producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), _TIMEOUT_SECONDS)
            finally:
                consumer.close()
            producer.commit_transaction(_TIMEOUT_SECONDS)
        except KafkaException as error:
            self._producer = None  # the next one aborts what is open
            raise LakeError(f"dead letters cannot be sent to {self._topic}: {error.args[0]}") from error
        except BaseException:
            self._producer = None
            raise

    def note(self, ends: Mapping[int, int]) -> None:
        """Commits the offsets of a batch without dead letters, after its commit."""
        self._cluster.commit_offsets(
            self._group, {Place(self._table.topic, partition): end for partition, end in ends.items()}
        )

    def _started(self) -> Producer:
        if self._producer is None:
            make_topic(self._cluster, self._topic, {"retention.ms": "-1"})
            self._producer = Producer(
                self._connection.librdkafka(
                    transactional_id=self._group, partitioner="murmur2_random", compression_type="lz4", linger_ms=20
                )
            )
            self._producer.init_transactions(_TIMEOUT_SECONDS)
        return self._producer

    def _produce(self, producer: Producer, letter: Mapping[str, Any]) -> None:
        described = {
            REASON: letter["reason"],
            TOPIC: self._table.topic,
            PARTITION: str(letter["partition"]),
            OFFSET: str(letter["offset"]),
            PIPELINE_HEADER: "millstream-table",
            STEP_HEADER: self._table.topic,
        }
        headers = [(each["key"], each["value"]) for each in letter["headers"] or ()]
        headers += [(name, text.encode()) for name, text in described.items()]
        stamp = int(letter["timestamp"].timestamp() * 1000)
        while True:
            try:
                producer.produce(self._topic, letter["value"], letter["key"], headers=headers, timestamp=stamp)
                producer.poll(0)
                return
            except BufferError:
                producer.poll(0.1)


def make_topic(cluster: Cluster, topic: str, settings: Mapping[str, str]) -> None:
    """Makes a topic of one partition, if it does not exist."""
    if topic in cluster.topics([topic]):
        return
    try:
        cluster.create_topic(topic, 1, -1, settings)
    except RefusedError as error:
        if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise


def _read(storage: Storage, files: Sequence[WrittenFile]) -> Iterator[dict[str, Any]]:
    for file in files:
        with storage.open_input(file.path) as stream:
            for batch in pq.ParquetFile(stream).iter_batches(1000):
                yield from batch.to_pylist()
