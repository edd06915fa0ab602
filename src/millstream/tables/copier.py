"""One topic and its table: batches from where the table ends, their commits, compaction and vacuum.

The table knows where to continue (see `lake.ledger`): a batch reads from there, and its commit is refused if the table
has other offsets by then. So nothing is missing or doubled, whenever this process dies, and no other state is kept.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from millstream.client.connection import Connection
from millstream.columnar import ArrowDecoder
from millstream.lake.data_files import FileLayout
from millstream.lake.errors import LakeError, NoTableError, StaleWriteError
from millstream.lake.ledger import (
    TOPIC_ID_PROPERTY,
    Bookkeeping,
    LedgerEntry,
    LedgerState,
)
from millstream.lake.options import TableOptions
from millstream.lake.partitioning import Partitioning
from millstream.lake.row_crc import RowCrc
from millstream.lake.table import LakeTable, open_or_create, open_table
from millstream.lake.upserts import CHANGES, UpsertRules, merge, staging
from millstream.raw_client import EARLIEST, LATEST, Cluster, TopicPartition
from millstream.tables.batch_writer import LETTERS, MESSAGE_SCHEMA, BatchWriter, TaskResult
from millstream.tables.conversion import DELETED, READ_COLUMNS, SEQUENCE, Conversion, Registry, conversion_of
from millstream.tables.dead_letters import DeadLetters
from millstream.tables.settings import TopicTable, Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SMALL_FILES: Final = 8
_PEEK_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOptions:
    """How topics are copied; the same for all tables of a server."""

    warehouse: Warehouse
    bootstrap: str
    settings: Mapping[str, str] = field(default_factory=dict)
    registry: Registry = field(default_factory=Registry)
    max_records: int = 1_000_000
    """Of one batch."""
    compact_after: int = 20
    """Commits."""
    target_size: int = 128 << 20
    vacuum_every_s: float = 3600.0
    retain: timedelta = timedelta(days=7)
    skip_lost: bool = False
    dead_letter_topic: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """The offsets of the next batch, by partition."""

    begins: dict[int, int]
    """Where the table ends."""
    reads: dict[int, int]
    """Where reading begins: later, if records are lost."""
    ends: dict[int, int]
    latest: dict[int, int]

    @property
    def is_empty(self) -> bool:
        return self.begins == self.ends

    @property
    def lost(self) -> dict[int, int]:
        return {each: self.reads[each] - begin for each, begin in self.begins.items() if self.reads[each] > begin}


def plan(
    state: LedgerState,
    earliest: Mapping[int, int],
    latest: Mapping[int, int],
    *,
    max_records: int,
    skip_lost: bool,
    topic: str,
) -> Plan:
    """The next batch; LakeError if records are gone that are not in the table. Pure."""
    begins, reads = {}, {}
    for partition, first in earliest.items():
        known = state.end_of(partition)
        begins[partition] = first if known is None else known
        reads[partition] = max(begins[partition], first)
        if begins[partition] > latest[partition]:
            raise LakeError(
                f"{topic}-{partition} ends at offset {latest[partition]}, and the table at {begins[partition]}: the "
                "topic has lost records that are in the table (an unclean election?). Make a new table: set "
                "millstream.table.location to another place"
            )
        if reads[partition] > begins[partition] and not skip_lost:
            raise LakeError(
                f"{topic}-{partition} begins at offset {first} now; the offsets {begins[partition]} to {first - 1} "
                "were removed from the topic (retention or DeleteRecords) and are not in the table. To continue "
                "without them, start the server with --skip-lost"
            )
    wanted = {each: max(0, latest[each] - reads[each]) for each in reads}
    total = sum(wanted.values())
    ends = {}
    for each, size in wanted.items():
        share = size if total <= max_records else -(-size * max_records // total)
        ends[each] = max(reads[each] + share, begins[each])
    return Plan(begins, reads, ends, dict(latest))


RunBatch = Callable[[Mapping[str, str], BatchWriter], Iterable[bytes]]
"""Reads with these options of format("millstream"), in tasks that call the writer. Returns their messages."""


def in_spark(spark: "SparkSession") -> RunBatch:
    """Runs batches in a Spark session."""

    def run(options: Mapping[str, str], writer: BatchWriter) -> Iterable[bytes]:
        rows = spark.read.format("millstream").options(**options).load()
        return [bytes(row[0]) for row in rows.mapInArrow(writer, MESSAGE_SCHEMA).collect()]

    return run


class Copier:
    """Copies one topic into its table. For one thread."""

    def __init__(self, table: TopicTable, options: CopyOptions, cluster: Cluster) -> None:
        self.table = table
        self._options = options
        self._cluster = cluster
        self._lake: LakeTable | None = None
        self._place: TableOptions | None = None
        self._read_to: dict[int, int] = {}
        """Where reading ended, if there were no rows: markers of transactions, for example."""
        self.commits = 0
        self._commits_at_compaction = 0
        self._vacuumed_at = time.monotonic()
        self.compacted_ms: int | None = None
        self.vacuumed_ms: int | None = None

    @cached_property
    def _letters(self) -> DeadLetters:
        connection = Connection(self._options.bootstrap, dict(self._options.settings))
        return DeadLetters(self._cluster, connection, self.table, self._options.dead_letter_topic)

    @property
    def location(self) -> str:
        if self._lake is None:
            return self._options.warehouse.options_of(self.table).name
        return self._lake.name

    @property
    def state(self) -> LedgerState:
        return LedgerState() if self._lake is None else self._lake.ledger

    # Where the topic and the table are

    def next_plan(self) -> Plan:
        """What there is to do. Opens the table, if there is one."""
        self._open()
        places = [TopicPartition(self.table.topic, each) for each in range(self.table.partitions)]
        earliest = self._offsets(places, EARLIEST)
        latest = self._offsets(places, LATEST)
        return plan(
            self.state,
            earliest,
            latest,
            max_records=self._options.max_records,
            skip_lost=self._options.skip_lost,
            topic=self.table.topic,
        )

    def is_current(self, found: Plan) -> bool:
        """Whether nothing is new: the table ends where the topic does, or there are only markers after it."""
        return found.is_empty or all(
            max(begin, self._read_to.get(each, 0)) >= found.latest[each] for each, begin in found.begins.items()
        )

    def lag_records(self, found: Plan) -> int:
        return sum(
            max(0, found.latest[each] - max(begin, self._read_to.get(each, 0))) for each, begin in found.begins.items()
        )

    def oldest_ms(self, found: Plan) -> int | None:
        """The timestamp of the oldest record that is not in the table; None if all are."""
        stamps = []
        for partition, begin in found.reads.items():
            position = max(begin, self._read_to.get(partition, 0))
            if position < found.latest[partition]:
                stamp = self._timestamp_at(partition, position, found.latest[partition])
                if stamp is not None:
                    stamps.append(stamp)
        return min(stamps, default=None)

    def _timestamp_at(self, partition: int, position: int, end: int) -> int | None:
        place = TopicPartition(self.table.topic, partition)
        fetched = self._cluster.fetch(place, position, max_bytes=_PEEK_BYTES, max_wait_ms=1)
        batches, _ = ArrowDecoder(["timestamp"]).decode(
            fetched.data,
            topic=self.table.topic,
            partition=partition,
            start=position,
            stop=end,
            aborted=fetched.aborted,
        )
        for batch in batches:
            if batch.num_rows:
                return int(batch.column("timestamp").cast(pa.int64())[0].as_py()) // 1000
        return None

    def _offsets(self, places: list[TopicPartition], at: int) -> dict[int, int]:
        found = self._cluster.offsets(dict.fromkeys(places, at))
        return {place.partition: each.offset for place, each in found.items()}

    def _open(self) -> None:
        if self._lake is None:
            self._place = self._options.warehouse.place(self.table, _owner)
            try:
                self._lake = open_table(self._place)
            except NoTableError:
                return
        else:
            self._lake.refresh()

    def forget(self) -> None:
        """Opens the table again for the next batch, after a failure."""
        self._lake = None

    # Batches

    def copy(self, run: RunBatch, wanted: Plan) -> int:
        """Copies a batch into the table. Returns the number of its records."""
        state = self.state
        generation = state.generation_with(self.table.partitions)
        conversion = conversion_of(self.table, self._options.registry, self._columns(), generation)
        lake, rules, layout = self._prepared(conversion)
        letters = FileLayout(lake.storage, LETTERS, LETTERS, Partitioning(), CHANGES)
        label = f"{self.table.topic_id[:8]}-{self.commits}"
        result = self._write(run, wanted, BatchWriter(conversion, layout, letters, label))
        try:
            self._finish(lake, rules, conversion, wanted, result)
        except StaleWriteError:
            lake.discard(file.path for file in result.files)
            raise
        finally:
            for file in result.letters:
                lake.storage.delete(file.path)
        return result.rows + result.dead_letters

    def _columns(self) -> str:
        """raw or registry: as the table has it, else by the setting."""
        chosen = self.table.columns
        if self._lake is not None:
            existing = (
                "raw" if "value" in self._lake.schema.names and "_offset" not in self._lake.schema.names else "registry"
            )
            if chosen not in ("auto", existing):
                raise LakeError(
                    f"the table at {self._lake.name} has the columns of millstream.table.columns={existing}, and the "
                    f"setting is {chosen}: set it back, or set millstream.table.location to another place"
                )
            return existing
        if chosen == "auto":
            return "raw" if self._options.registry.format_of(self.table.topic, "value") is None else "registry"
        return chosen

    def _prepared(self, conversion: Conversion) -> tuple[LakeTable, UpsertRules | None, FileLayout]:
        """The table, made or with a new schema if necessary, and how tasks write."""
        assert self._place is not None
        schema = conversion.schema()
        keys = conversion.key_columns
        if keys is None:
            if self._lake is not None and SEQUENCE in self._lake.schema.names:
                raise LakeError(_OTHER_MODE.format(self._lake.name, "upsert"))
            self._lake = open_or_create(self._place, schema)
            return self._lake, None, self._lake.layout()
        if self._lake is not None and SEQUENCE not in self._lake.schema.names:
            raise LakeError(_OTHER_MODE.format(self._lake.name, "append"))
        rules = UpsertRules(keys, SEQUENCE, DELETED)
        self._lake = open_or_create(self._place, rules.table_schema(schema))
        return self._lake, rules, staging(self._lake, schema)

    def _write(self, run: RunBatch, wanted: Plan, writer: BatchWriter) -> TaskResult:
        topic = self.table.topic
        options = {
            "kafka.bootstrap.servers": self._options.bootstrap,
            **{f"kafka.{name}": value for name, value in self._options.settings.items()},
            "subscribe": topic,
            "startingOffsets": json.dumps({topic: {str(each): offset for each, offset in wanted.reads.items()}}),
            "endingOffsets": json.dumps({topic: {str(each): offset for each, offset in wanted.ends.items()}}),
            "columns": ",".join(READ_COLUMNS),
            "includeHeaders": "true",
        }
        return TaskResult.of_messages(run(options, writer))

    def _finish(
        self,
        lake: LakeTable,
        rules: UpsertRules | None,
        conversion: Conversion,
        wanted: Plan,
        result: TaskResult,
    ) -> None:
        """Sends dead letters, then commits."""
        self._must_be_the_same_topic()
        if not result.rows and not result.dead_letters and not wanted.lost:
            self._read_to = dict(wanted.ends)
            return
        if result.letters:
            self._letters.send(lake.storage, result.letters, wanted.ends)
        ranges = result.ranges(wanted.begins, wanted.ends, wanted.lost)
        entry = LedgerEntry(self.table.topic_id, ranges, self.table.partitions)
        if rules is not None and result.files:
            merge(lake, rules, result.files, conversion.schema(), None, Bookkeeping(entry))
        else:
            added = RowCrc()
            for each in ranges:
                added += RowCrc(each.rows, each.row_crc)
            lake.commit(result.files, None, replace=False, books=Bookkeeping(entry, added))
        self.commits += 1
        self._read_to = {}
        if not result.letters:
            self._letters.note(wanted.ends)

    def _must_be_the_same_topic(self) -> None:
        info = self._cluster.topics([self.table.topic]).get(self.table.topic)
        if info is None or str(info.topic_id) != self.table.topic_id:
            raise LakeError(f"topic {self.table.topic} was deleted during the batch")

    # Maintenance

    def maintain(self) -> None:
        """Rewrites small files after some commits; deletes old versions and unused files from time to time."""
        lake, options = self._lake, self._options
        if lake is None:
            return
        if self.commits - self._commits_at_compaction >= options.compact_after:
            self._commits_at_compaction = self.commits
            small = [file for file in lake.scan().files if file.size < options.target_size // 2]
            if len(small) >= _SMALL_FILES:
                lake.optimize(options.target_size, (), lambda _done, _total: None)
                self.compacted_ms = time.time_ns() // 1_000_000
        if time.monotonic() - self._vacuumed_at >= options.vacuum_every_s:
            self._vacuumed_at = time.monotonic()
            lake.vacuum(options.retain)
            self.vacuumed_ms = time.time_ns() // 1_000_000


_OTHER_MODE: Final = (
    "the table at {} was made with millstream.table.mode={}: set it back, or set millstream.table.location to another "
    "place"
)


def _owner(options: TableOptions) -> str | None:
    try:
        return open_table(options).properties.get(TOPIC_ID_PROPERTY, "")
    except NoTableError:
        return None
