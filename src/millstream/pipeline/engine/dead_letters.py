"""Dead letters of a pipeline: records with headers for origin and reason, the queries that send them, and their count.

A source that decodes by itself sends bad records while it is read. Each sink reads its sources separately, so exactly
one query sends the dead letters of a source, and the others leave bad records out.

`DeadLetterWatch` counts dead letters of a running pipeline by reading their topic. If it cannot read (no permission, no
broker), it tries again without an error, because it must not end a pipeline.
"""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from millstream.columnar import ArrowDecoder, CorruptBatchError
from millstream.pipeline.engine.decoding import (
    ERROR,
    HEADERS,
    KEY,
    OFFSET,
    PARTITION,
    RAW_KEY,
    RAW_VALUE,
    TOPIC,
    decoded_by_source,
    key_decoded_by_source,
    quoted,
)
from millstream.pipeline.engine.expectations import Quarantine, quarantined
from millstream.pipeline.model import BadRecords, ConsoleSink, Latest, Pipeline, Route, Sink, Sql, Step, TopicSource
from millstream.pipeline.sql_names import table_mentions
from millstream.raw_client import LATEST, Cluster, TopicPartition, WireError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def of_route(pipeline: Pipeline, route: Route, rest: "DataFrame") -> "DataFrame":
    """Rows that no branch took, as JSON."""
    from pyspark.sql.functions import col, lit, struct, to_json

    reason = lit(f"no branch of {route.name!r} takes this row")
    value = to_json(struct(*[col(quoted(name)) for name in rest.columns if name != HEADERS]))
    key = col(KEY).cast("binary") if KEY in rest.columns else lit(None).cast("binary")
    headers = _headers(rest, pipeline.name, route.name, reason)
    return rest.select(key.alias("key"), value.cast("binary").alias("value"), headers.alias("headers"))


def of_quarantine(pipeline: Pipeline, quarantine: Quarantine, rows: "DataFrame") -> "DataFrame":
    """Rows that do not meet an expectation, as JSON; of raw rows, the bytes."""
    from pyspark.sql.functions import col, lit, struct, to_json

    bad, reason = quarantined(quarantine.part, rows)
    raw = {"key", "value"} <= set(bad.columns) and KEY not in bad.columns
    key_column = "key" if raw else KEY
    key = col(key_column).cast("binary") if key_column in bad.columns else lit(None).cast("binary")
    whole = to_json(struct(*[col(quoted(name)) for name in bad.columns if name != HEADERS]))
    value = col("value").cast("binary") if raw else whole.cast("binary")
    headers = _headers(bad, pipeline.name, quarantine.name, reason)
    return bad.select(key.alias("key"), value.alias("value"), headers.alias("headers"))


def of_source(pipeline: Pipeline, source: TopicSource, decoded: "DataFrame") -> "DataFrame":
    """Records that could not be decoded, unchanged."""
    from pyspark.sql.functions import col

    bad = decoded.where(f"{ERROR} IS NOT NULL")
    headers = _headers(bad, pipeline.name, source.name, col(ERROR))
    return bad.select(col(RAW_KEY).alias("key"), col(RAW_VALUE).alias("value"), headers.alias("headers"))


def _headers(frame: "DataFrame", pipeline: str, step: str, reason: "Column") -> "Column":
    from pyspark.sql.functions import array, col, filter, lit, struct

    found: dict[str, Column] = {
        "millstream.pipeline": lit(pipeline),
        "millstream.step": lit(step),
        "millstream.reason": reason,
    }
    where = {"millstream.topic": TOPIC, "millstream.partition": PARTITION, "millstream.offset": OFFSET}
    for name, column in where.items():
        if column in frame.columns:
            found[name] = col(column).cast("string")
    entries = [struct(lit(name).alias("key"), value.cast("binary").alias("value")) for name, value in found.items()]
    return filter(array(*entries), lambda entry: entry["value"].isNotNull())


def dead_letter_senders(pipeline: Pipeline, readers: Sequence[Sink | Route]) -> list[frozenset[str]]:
    """For each reader, the sources whose dead letters it sends.

    The first reader that reads the source only once: a query that reads it twice (joined with itself) would send twice.
    A console is chosen only if there is no other reader.
    """
    steps: dict[str, Step] = {name: step for step in pipeline.steps for name in step.gives}
    found: list[set[str]] = [set() for _ in readers]
    for source in pipeline.sources:
        if not isinstance(source, TopicSource) or not _sends_letters(source):
            continue
        ranks = []
        for index, reader in enumerate(readers):
            if ways := _ways_from(reader, source.name, steps):
                ranks.append((isinstance(reader, ConsoleSink), ways > 1, index))
        if ranks:
            found[min(ranks)[-1]].add(source.name)
    return [frozenset(sources) for sources in found]


def _sends_letters(source: TopicSource) -> bool:
    decodes = decoded_by_source(source) or key_decoded_by_source(source)
    return decodes and source.bad_records is BadRecords.DEAD_LETTERS


def _ways_from(reader: Sink | Route, source: str, steps: Mapping[str, Step]) -> int:
    """How often a query reads the stream of a source; `latest` does not read it as a stream."""
    if isinstance(reader, Route):
        return _ways(reader.reads[0], source, steps)
    return _ways(reader.reads, source, steps)


def _ways(name: str, source: str, steps: Mapping[str, Step]) -> int:
    if name == source:
        return 1
    step = steps.get(name)
    if step is None or isinstance(step, Latest):
        return 0
    return sum(_mentions(step, each) * _ways(each, source, steps) for each in step.reads)


def _mentions(step: Step, name: str) -> int:
    """How often a step reads a name; SQL may read it several times."""
    if not isinstance(step, Sql):
        return 1
    return sum(table.name.lower() == name for table in table_mentions(step.query))


_EVERY_SECONDS = 1.0
_FETCH_BYTES = 1 << 20


class DeadLetterWatch:
    """Follows the dead-letter topic from its end at the start of the run."""

    def __init__(self, pipeline: Pipeline, bootstrap: str | None = None) -> None:
        self._pipeline = pipeline.name
        self._topic = pipeline.dead_letters.topic
        self._cluster = Cluster(bootstrap or pipeline.bootstrap, pipeline.connection, timeout_s=10.0)
        self._positions: dict[TopicPartition, int] = {}
        self._by_step: Counter[str] = Counter()
        self._last_reason: str | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dead-letter-watch", daemon=True)

    def start(self) -> None:
        """Notes the end of the topic, then follows it in a thread."""
        try:
            self._note_ends()
        except WireError:
            pass
        self._thread.start()

    def close(self) -> None:
        """Reads the topic a last time, for the final numbers."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=15.0)
        self._cluster.close()

    @property
    def by_step(self) -> Mapping[str, int]:
        return dict(self._by_step)

    @property
    def total(self) -> int:
        return sum(self._by_step.values())

    @property
    def last_reason(self) -> str | None:
        return self._last_reason

    def _run(self) -> None:
        while not self._ended.wait(_EVERY_SECONDS):
            self._look_quietly()
        self._look_quietly()

    def _look_quietly(self) -> None:
        try:
            if not self._positions:
                self._note_ends()
            for partition in list(self._positions):
                self._look(partition)
        except (WireError, CorruptBatchError):
            pass

    def _note_ends(self) -> None:
        info = self._cluster.topics([self._topic]).get(self._topic)
        if info is None:
            return
        partitions = {TopicPartition(self._topic, each.index): LATEST for each in info.partitions}
        self._positions = {each: found.offset for each, found in self._cluster.offsets(partitions).items()}

    def _look(self, partition: TopicPartition) -> None:
        decoder = ArrowDecoder(["headers"])
        while True:
            position = self._positions[partition]
            fetched = self._cluster.fetch(partition, position, max_bytes=_FETCH_BYTES, max_wait_ms=1)
            if not fetched.data:
                return
            batches, following = decoder.decode(
                fetched.data,
                topic=self._topic,
                partition=partition.partition,
                start=position,
                stop=fetched.last_stable_offset,
                aborted=fetched.aborted,
            )
            for batch in batches:
                for headers in batch.column("headers").to_pylist():
                    self._take(headers)
            if following <= position:
                return
            self._positions[partition] = following

    def _take(self, headers: list[dict[str, Any]] | None) -> None:
        found = {each["key"]: each["value"] for each in headers or []}
        if found.get("millstream.pipeline") != self._pipeline.encode():
            return
        self._by_step[(found.get("millstream.step") or b"").decode(errors="replace")] += 1
        reason = found.get("millstream.reason")
        if reason:
            self._last_reason = reason.decode(errors="replace")
