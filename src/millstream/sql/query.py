"""Runs a query: plans what to read, reads it, and gives the rows of DuckDB as Arrow record batches.

    query = Query(cluster, "select count(*) from orders")
    with query.run() as result:
        for batch in result.batches: ...

Blocking: not for an event loop. `stop.cancel()` from another thread ends it.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from millstream.access.masking import Mask
from millstream.raw_client import Cluster
from millstream.schemas.registry_client import RegistryClient
from millstream.sql.engine import DEFAULT_MEMORY_BYTES, check_installed, define, open_engine
from millstream.sql.errors import SqlError, Stop
from millstream.sql.isolated import RESULT_ROWS, EngineError, run_isolated
from millstream.sql.reading import MemoryBudget, TopicRead, TopicReader, Window, plan, sample
from millstream.sql.statement import Bounds, parse_statement
from millstream.sql.topic_columns import Masked, TopicColumns, check_names

DEFAULT_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Limits:
    window: Window = field(default_factory=Window)
    records_bytes: int = 1 << 30
    """Of the records that are read, decompressed."""
    engine_bytes: int = DEFAULT_MEMORY_BYTES
    """Of DuckDB, beside the records."""
    is_isolated: bool = False
    """DuckDB runs in a process of its own (`isolated.py`): for a query of another client."""


@dataclass(slots=True)
class Result:
    schema: pa.Schema
    types: list[str]
    """The types of the columns, in DuckDB's words."""
    batches: Iterator[pa.RecordBatch]
    read: list[TopicRead]
    reading_s: float


@dataclass(frozen=True, slots=True)
class Access:
    """What the caller may see. `decode` is needed where something is masked."""

    registry: RegistryClient | None = None
    mask_of: Callable[[str], Mask | None] = lambda _: None
    decode: Callable[[bytes | None], object] | None = None

    def masked(self, topic: str) -> Masked | None:
        mask = self.mask_of(topic)
        if mask is None:
            return None
        assert self.decode is not None, "a mask needs a decoder"
        return Masked(mask, self.decode)


class Query:
    """One query over the topics of a cluster. SqlError says what is wrong with it."""

    def __init__(
        self,
        cluster: Cluster,
        text: str,
        *,
        access: Access | None = None,
        limits: Limits | None = None,
        stop: Stop | None = None,
        progress: Callable[[str, int, int], None] = lambda *_: None,
    ) -> None:
        """`progress` gets a topic, its records read so far, and those to read."""
        check_installed()
        self.statement = parse_statement(text)
        self.stop = stop or Stop(DEFAULT_TIMEOUT_SECONDS)
        self._cluster = cluster
        self._access = access or Access()
        self._limits = limits or Limits()
        self._progress = progress
        self.topics = check_names(self.statement, sorted(cluster.topics())) if self.statement.tables else {}

    @contextmanager
    def run(self) -> Iterator[Result]:
        import duckdb

        began = time.monotonic()
        budget = MemoryBudget(self._limits.records_bytes)
        tables: dict[str, pa.Table] = {}
        read: list[TopicRead] = []
        for name in self.statement.topics:
            tables[name], found = self._read(name, budget)
            read.append(found)
        reading_s = time.monotonic() - began
        named = {use.path: tables[use.topic] for use in self.statement.tables}
        try:
            with self._executed(named) as (schema, types, batches):
                yield Result(schema, types, self._batches(batches), read, reading_s)
        except (duckdb.Error, EngineError) as error:
            raise self._explained(error) from None

    @contextmanager
    def _executed(
        self, tables: Mapping[tuple[str, ...], pa.Table]
    ) -> Iterator[tuple[pa.Schema, list[str], Iterator[pa.RecordBatch]]]:
        """DuckDB's result: schema, types in its words, batches."""
        text, memory_bytes = self.statement.text, self._limits.engine_bytes
        if self._limits.is_isolated:
            with run_isolated(text, tables, memory_bytes, self.stop) as result:
                yield result.schema, result.types, result.batches()
            return
        with open_engine(memory_bytes) as engine:
            try:
                for path, table in tables.items():
                    define(engine, path, table)
                self.stop.interrupts(engine.interrupt)
                relation = engine.sql(text)
                types = [str(kind) for kind in relation.types]
                reader = relation.to_arrow_reader(RESULT_ROWS)
                yield reader.schema, types, iter(reader)
            finally:
                self.stop.finish()

    def columns(self, topic: str) -> TopicColumns:
        """The columns of a topic of the query, for a pipeline: names and types, and no values."""
        ranges, _ = plan(self._cluster, topic, self._limits.window, Bounds())
        rows = sample(self._cluster, topic, ranges, self.stop)
        registry, masked = self._access.registry, self._access.masked(topic)
        found = TopicColumns(topic, self.statement, rows, registry, None)
        if masked is None or not found.inferred:
            return found
        # Names of fields are data where no schema says them: {"ann@example.org": 1}.
        return TopicColumns(topic, self.statement, rows, registry, masked)

    def _read(self, name: str, budget: MemoryBudget) -> tuple[pa.Table, TopicRead]:
        topic, window = self.topics[name], self._limits.window
        if self.statement.newest is not None and window.last is not None:
            window = Window(max(1, min(window.last, self.statement.newest)), window.since_ms)
        ranges, left_out = plan(self._cluster, topic, window, self.statement.bounds.get(name, Bounds()))
        rows = sample(self._cluster, topic, ranges, self.stop)
        columns = TopicColumns(topic, self.statement, rows, self._access.registry, self._access.masked(topic))
        reader = TopicReader(self._cluster, columns, ranges, budget, self.stop)
        table = reader.read(lambda done, total: self._progress(topic, done, total))
        if self.statement.newest is None:
            reader.result.left_out = left_out
        return table, reader.result

    def _batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import duckdb

        while True:
            try:
                batch = next(batches)
            except StopIteration:
                return
            except (duckdb.Error, EngineError, pa.ArrowException, OSError) as error:
                raise self._explained(error) from None
            self.stop.check()
            yield batch

    def _explained(self, error: Exception) -> SqlError:
        """The reason of the stop if it was interrupted, else DuckDB's own words."""
        try:
            self.stop.check()
        except SqlError as stopped:
            return stopped
        text = str(error).strip().split("\n\nStack")[0]
        if "Out of Memory" in text:
            return SqlError(
                f"the query needs more than {self._limits.engine_bytes >> 20} MB of memory",
                "read fewer records, or group and join by fewer values",
            )
        return SqlError(text)
