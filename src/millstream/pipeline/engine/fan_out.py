"""Writes one batch of a shared query to all its outputs, exactly once.

The batch is read once and kept (`persist`) while its outputs are written. All topics that can be written together,
dead letters among them, are one write with one decision (ADR 16): readers of committed records see the batch in all of
these topics or in none. Values with a schema (avro, protobuf) are encoded before that write. Tables, and topics at
least once or with options of their own, are one write each. Each write carries the query's id and the batch's number,
and its input by the checkpoint's offsets (ADR 24). So a batch that was interrupted is repeated with the same records,
what is written already stays, and the rest follows: no later batch begins before every output has this one.

Rules that fail are evaluated before the first write.
"""

import hashlib
import json
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.pipeline.engine import sinks
from millstream.pipeline.engine.planned import Output, PlannedQuery
from millstream.pipeline.model import Action, ConsoleSink, Delivery, Pipeline, Sink, TableSink, TopicSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation

    from millstream.pipeline.engine.queries import BatchFrames

TOPICS = "topics"
"""The name of the write that has all topics without options of their own."""
_COUNTS_WAIT_SECONDS = 2.0
_OTHERS_WAIT_SECONDS = 0.1
_COLUMNS = {
    "topic": "string",
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<key:string,value:binary>>",
    "partition": "int",
    "timestamp": "timestamp",
}
ROWS_OF = "rows:"
"""The observation with the number of rows of an output: this, and the name of its query."""


def is_together(output: Output) -> bool:
    """Whether an output is written in one transaction with others."""
    if not isinstance(output, Sink):
        return True
    return isinstance(output, TopicSink) and output.delivery is Delivery.EXACTLY_ONCE and not output.options


def writes_of(pipeline: Pipeline, members: Sequence[PlannedQuery], apart: Collection[str] = ()) -> dict[str, list[str]]:
    """The writes of a batch by name, and the outputs in each; kept in the checkpoint, because a batch that is repeated
    must be divided in the same way. `apart`: outputs that have a write of their own, as an earlier version did it."""
    found: dict[str, list[str]] = {}
    for member in members:
        leaf = member.name.removeprefix(f"{pipeline.name}.")
        together = is_together(member.of) and leaf not in apart
        found.setdefault(TOPICS if together else leaf, []).append(leaf)
    return found


@dataclass
class FanOut:
    """Writes batches; `counts` has the rows and rules of the batches that are written and not reported yet."""

    pipeline: Pipeline
    members: Sequence[PlannedQuery]
    frames_of: "Callable[[DataFrame], BatchFrames]"
    rows_of: "Callable[[Pipeline, Output, BatchFrames], DataFrame]"
    show: sinks.ShowRows | None
    apart: Collection[str] = ()
    checkpoint: str = ""
    _counts: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def write(self, batch: "DataFrame", number: int) -> None:
        from pyspark.sql.functions import count, lit

        batch.persist()
        try:
            frames = self.frames_of(batch)
            rows = {}
            for member in self.members:
                found = self.rows_of(self.pipeline, member.of, frames)
                rows[member.name] = frames.observe(found, f"{ROWS_OF}{member.name}", [count(lit(1)).alias("rows")])
            if self._can_fail:
                reduce(_union, [each.select(lit(1)) for each in rows.values()]).count()
            self._write(rows, number)
            counts = _counts_of(frames.observations)
            with self._lock:
                self._counts[number] = counts
        finally:
            batch.unpersist()

    def counts(self, number: int) -> Mapping[str, Any]:
        """What was counted in a batch, by the names of the observations; each batch is given once."""
        with self._lock:
            found = self._counts.pop(number, {})
            for old in [each for each in self._counts if each < number]:
                del self._counts[old]
        return found

    @property
    def _can_fail(self) -> bool:
        parts = self.pipeline.parts_with_expectations
        return any(rule.action is Action.FAIL for part in parts for rule in part.expect)

    def _write(self, rows: "Mapping[str, DataFrame]", number: int) -> None:
        together = []
        for member in self.members:
            of, found = member.of, rows[member.name]
            if is_together(of) and self._leaf(member.name) not in self.apart:
                if isinstance(of, TopicSink):
                    together.append(_as_records(sinks.encoded_rows(self.pipeline, of, found), of.topic))
                else:
                    together.append(_as_records(found, self.pipeline.dead_letters.topic))
            elif isinstance(of, ConsoleSink):
                sinks.show_batch(of, found, number, self.show)
            elif isinstance(of, TopicSink):
                self._save(sinks.topic_options(self.pipeline, of), "millstream", found, member.name, number, of)
            elif isinstance(of, TableSink):
                self._save(sinks.table_options(of, found), "millstream-table", found, member.name, number, of)
        if together:
            options = sinks.dead_letter_options(self.pipeline)
            del options["topic"]
            self._save(options, "millstream", reduce(_union, together), TOPICS, number)

    def _save(
        self,
        options: Mapping[str, str],
        format: str,
        rows: "DataFrame",
        name: str,
        number: int,
        sink: Sink | None = None,
    ) -> None:
        writer = rows.write.format(format).mode("append").options(**options)
        if not (isinstance(sink, TopicSink) and sink.delivery is Delivery.AT_LEAST_ONCE):
            writer = writer.option("txnAppId", self._app_id(name)).option("txnVersion", str(number))
            writer = writer.option("checkpointLocation", self.checkpoint)
        writer.save()

    def _leaf(self, name: str) -> str:
        return name.removeprefix(f"{self.pipeline.name}.")

    def _app_id(self, name: str) -> str:
        """Of one write of this query: the id in Spark's checkpoint, and a short form of the name."""
        metadata = Path(self.checkpoint.removeprefix("file:")) / "metadata"
        query = str(json.loads(metadata.read_text())["id"])
        leaf = self._leaf(name)
        short = leaf if leaf == TOPICS else hashlib.sha256(leaf.encode()).hexdigest()[:12]
        return f"{query}-{short}"


def _counts_of(observations: "Mapping[str, Observation]") -> dict[str, Any]:
    """The observed metrics. Spark has them shortly after the write; for an empty batch it may have none."""
    found = {}
    deadline = time.monotonic() + _COUNTS_WAIT_SECONDS
    # The rows of outputs are always counted. A step may be left out of the plan, for example beside an empty table.
    for name, each in sorted(observations.items(), key=lambda item: not item[0].startswith(ROWS_OF)):
        if not name.startswith(ROWS_OF):
            deadline = min(deadline, time.monotonic() + _OTHERS_WAIT_SECONDS)
        known: Any = each._jo
        while not known.future().isCompleted() and time.monotonic() < deadline:
            time.sleep(0.01)
        if known.future().isCompleted():
            found[name] = each.get
    return found


def _union(one: "DataFrame", other: "DataFrame") -> "DataFrame":
    return one.unionAll(other)


def _as_records(rows: "DataFrame", topic: str) -> "DataFrame":
    from pyspark.sql.functions import col, lit

    columns = []
    for name, kind in _COLUMNS.items():
        value = lit(topic) if name == "topic" else col(name) if name in rows.columns else lit(None)
        columns.append(value.cast(kind).alias(name))
    return rows.select(*columns)
