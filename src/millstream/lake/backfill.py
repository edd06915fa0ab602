"""Backfill: rows of a table as records of a topic, in order per key, and each only once if it is repeated.

Rows are sent in transactions. The progress is committed in the same transaction, as the metadata of an offset of the
group `millstream-backfill-<id>`. The id is derived from the work, so the same command after a crash aborts the open
transaction, reads the progress and continues; after the end it does nothing.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from millstream.client.connection import Connection
from millstream.client.topics import Topics
from millstream.lake.errors import LakeError, LakeOptionError, NoTableError
from millstream.lake.options import TableOptions
from millstream.lake.ordered_records import (
    ReadPosition,
    RecordMaker,
    Window,
    has_positions,
    read_in_order,
    record_maker,
)
from millstream.lake.scan import Condition, TableFile
from millstream.lake.seam import TIMESTAMP
from millstream.lake.table import LakeTable, open_table

TRANSACTION_ROWS: Final = 20_000
ORDERS: Final = ("offset", "timestamp")


@dataclass(frozen=True, kw_only=True)
class Backfill:
    """The work of a backfill."""

    table: TableOptions
    bootstrap: str
    topic: str
    begin: datetime | None = None
    end: datetime | None = None
    key: str | None = None
    value_format: str | None = None
    order: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 30.0

    @property
    def id(self) -> str:
        """Equal for equal work, in any process."""
        work = [
            self.table.name,
            self.topic,
            *(None if each is None else each.astimezone(UTC).isoformat() for each in (self.begin, self.end)),
            self.key,
            self.value_format,
            self.order,
        ]
        return "millstream-backfill-" + hashlib.sha256(json.dumps(work).encode()).hexdigest()[:16]


@dataclass
class BackfillResult:
    """The result of a backfill."""

    rows: int = 0
    """Written by this run."""
    rows_before: int = 0
    """Written by earlier runs of the same work."""
    was_done: bool = False
    order: str = ""
    version: str = ""
    warning: str | None = None


@dataclass(frozen=True)
class _Progress:
    version: str
    rows: int
    place: ReadPosition | None
    done: bool

    def text(self) -> str:
        place = None if self.place is None else [self.place.lane, self.place.next]
        return json.dumps({"version": self.version, "rows": self.rows, "place": place, "done": self.done})

    @staticmethod
    def parse(text: str) -> "_Progress":
        document = json.loads(text)
        place = document["place"]
        return _Progress(document["version"], document["rows"], place and ReadPosition(*place), document["done"])


def run(
    work: Backfill, *, restart: bool = False, progress: Callable[[int, int], None] = lambda _now, _total: None
) -> BackfillResult:
    """Runs a backfill: continues an earlier run, or starts from the beginning with `restart`."""
    table = open_table(work.table)
    by_time = _by_time(work, table)
    maker = record_maker(table.schema, work.key, work.value_format, table.name)
    conditions = _conditions(work, table)
    connection = Connection(work.bootstrap, work.settings, work.timeout_s)
    connection.probe()
    with _Sender(work, connection) as sender:
        known = None if restart else sender.progress()
        result = BackfillResult(order="timestamp" if by_time else "offset")
        if known is not None:
            result.rows_before, result.version = known.rows, known.version
            if known.done:
                result.was_done = True
                return result
            table = _at(table, known.version)
        state = known or _Progress(table.version, 0, None, False)
        result.version = state.version
        files = table.scan(maker.columns, conditions).files
        total = sum(file.rows for file in files)
        result.warning = _retention_warning(files, sender.retention())
        windows = read_in_order(table, by_time=by_time, columns=maker.columns, conditions=conditions, start=state.place)
        for batch in _transactions(windows):
            rows = sum(window.rows.num_rows for window in batch)
            state = replace(state, rows=state.rows + rows, place=batch[-1].then)
            sender.send(batch, maker, state)
            result.rows += rows
            progress(min(state.rows, total), total)
        sender.send([], maker, replace(state, done=True))
    return result


def _transactions(windows: Iterator[Window]) -> Iterator[list[Window]]:
    """Groups of windows, each for one transaction."""
    gathered: list[Window] = []
    for window in windows:
        gathered.append(window)
        if sum(each.rows.num_rows for each in gathered) >= TRANSACTION_ROWS:
            yield gathered
            gathered = []
    if gathered:
        yield gathered


def _by_time(work: Backfill, table: LakeTable) -> bool:
    """By offset if rows have one, which keeps the order of the original keys; with another key, by time."""
    if work.order is not None:
        if work.order not in ORDERS:
            raise LakeOptionError(f"order {work.order}: choose one of {', '.join(ORDERS)}")
        return work.order == "timestamp"
    return not has_positions(table) or (work.key is not None and work.key != "key")


def _conditions(work: Backfill, table: LakeTable) -> list[Condition]:
    if work.begin is None and work.end is None:
        return []
    if TIMESTAMP not in table.schema.names:
        raise LakeOptionError(f"{table.name} has no column timestamp; --from and --until need it")
    if work.begin is not None and work.end is not None and work.begin >= work.end:
        raise LakeOptionError(f"--from {work.begin} is not before --until {work.end}; change one")
    found = [] if work.begin is None else [Condition(TIMESTAMP, ">=", work.begin)]
    return found if work.end is None else [*found, Condition(TIMESTAMP, "<", work.end)]


def _retention_warning(files: Sequence[TableFile], retention: timedelta | None) -> str | None:
    """Records keep their timestamps, and brokers delete by timestamp: old records may be deleted at once."""
    oldest = [file.known_ranges[TIMESTAMP][0] for file in files if TIMESTAMP in file.known_ranges]
    if retention is None or not oldest:
        return None
    earliest = min(each if each.tzinfo else each.replace(tzinfo=UTC) for each in oldest)
    if datetime.now(UTC) - earliest <= retention:
        return None
    return (
        f"the topic keeps records for {retention}, and the oldest row is of {earliest:%Y-%m-%d %H:%M}:"
        " the broker will delete older records. Set retention.ms=-1 on the topic to keep them"
    )


def _at(table: LakeTable, version: str) -> LakeTable:
    try:
        return table.at_version(version)
    except NoTableError as error:
        raise LakeError(
            f"an earlier run stopped at version {version} of {table.name}, which does not exist any more."
            " --restart starts from the beginning (records of the earlier run stay in the topic)"
        ) from error


class _Sender:
    """The transactional producer, and the progress that it commits."""

    def __init__(self, work: Backfill, connection: Connection) -> None:
        self._work = work
        self._connection = connection
        self._timeout = max(10.0, work.timeout_s)

    def __enter__(self) -> "_Sender":
        connection, work = self._connection, self._work
        # Partitions are chosen as by Java's producer.
        self._producer = Producer(
            connection.librdkafka(
                transactional_id=work.id, partitioner="murmur2_random", compression_type="lz4", linger_ms=20
            )
        )
        self._consumer = Consumer(connection.librdkafka(group_id=work.id, enable_auto_commit=False))
        try:
            self._check_topic()
            self._call(self._producer.init_transactions, self._timeout)
        except BaseException:
            self._consumer.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self._consumer.close()
        self._producer.flush(1)

    def _check_topic(self) -> None:
        found = self._call(self._producer.list_topics, self._work.topic, self._timeout).topics[self._work.topic]
        if found.error is not None:
            raise self._connection.error(found.error, self._work.topic)

    def retention(self) -> timedelta | None:
        """The retention time of the topic; None if it is not limited."""
        settings = Topics(self._connection).config(self._work.topic)
        milliseconds = int(settings["retention.ms"].value)
        deletes = "delete" in settings["cleanup.policy"].value
        return timedelta(milliseconds=milliseconds) if deletes and milliseconds >= 0 else None

    def progress(self) -> _Progress | None:
        found = self._call(self._consumer.committed, [TopicPartition(self._work.topic, 0)], self._timeout)[0]
        if found.offset < 0 or not found.metadata:
            return None
        try:
            return _Progress.parse(found.metadata)
        except (ValueError, KeyError, TypeError) as error:
            raise LakeError(
                f"group {self._work.id} has metadata of another program: {found.metadata}; use --restart"
            ) from error

    def send(self, windows: Sequence[Window], maker: RecordMaker, state: _Progress) -> None:
        """Sends rows and progress in one transaction."""
        self._call(self._producer.begin_transaction)
        try:
            for window in windows:
                for key, value, timestamp_ms, headers in maker.records(window.rows):
                    self._produce(key, value, timestamp_ms, headers)
            place = TopicPartition(self._work.topic, 0, state.rows, state.text())
            group = self._consumer.consumer_group_metadata()
            self._call(self._producer.send_offsets_to_transaction, [place], group, self._timeout)
            self._call(self._producer.commit_transaction, self._timeout)
        except BaseException:
            self._give_up()
            raise

    def _produce(self, key: Any, value: Any, timestamp_ms: int, headers: Any) -> None:
        while True:
            try:
                self._producer.produce(
                    self._work.topic, value, key, timestamp=timestamp_ms, headers=headers, on_delivery=_ignore
                )
                return
            except BufferError:  # the queue is full
                self._producer.poll(0.1)

    def _give_up(self) -> None:
        try:
            self._producer.abort_transaction(self._timeout)
        except KafkaException:
            pass  # the coordinator aborts it

    def _call(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except KafkaException as error:
            raise self._connection.error(error.args[0], self._work.topic) from error


def _ignore(_error: Any, _message: Any) -> None:
    """A failed record fails the commit of the transaction, which is checked."""
