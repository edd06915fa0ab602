"""Hot keys of a topic, counted exactly with Spark: who is hot, and what spreading those keys would do.

Spreading is that of `millstream.client.SaltingPartitioner`: the records of a key go in turn to its home partition and
the n - 1 after it. `topic hot` shows what is hot at this moment, from samples; this looks at all that a topic holds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPREADS = (2, 4, 8, 16)
_HOT = 0.5
"""A key is hot if it alone is this much of what a partition would have if all had the same."""


class Measure(StrEnum):
    RECORDS = "records"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class Load:
    records: int = 0
    bytes: int = 0

    def of(self, measure: Measure) -> int:
        return self.records if measure is Measure.RECORDS else self.bytes

    def __add__(self, other: "Load") -> "Load":
        return Load(self.records + other.records, self.bytes + other.bytes)


@dataclass(frozen=True, slots=True)
class KeyLoad:
    key: bytes | None
    by_partition: Mapping[int, Load]

    @property
    def total(self) -> Load:
        return sum(self.by_partition.values(), Load())

    def home(self, measure: Measure) -> int:
        """The partition that has most of it."""
        return max(self.by_partition, key=lambda partition: (self.by_partition[partition].of(measure), -partition))


@dataclass(frozen=True, slots=True)
class Counted:
    """What is in a topic: every partition, and its heaviest keys."""

    topic: str
    partitions: Mapping[int, Load]
    keys: Sequence[KeyLoad]
    distinct_keys: int

    @property
    def total(self) -> Load:
        return sum(self.partitions.values(), Load())


@dataclass(frozen=True, slots=True)
class Spread:
    """The partitions as they would be with the hot keys spread over `over` of them each."""

    over: int
    shares: Mapping[int, float]

    @property
    def largest(self) -> float:
        return max(self.shares.values(), default=0.0)


@dataclass(frozen=True, slots=True)
class HotKey:
    key: bytes | None
    home: int
    share: float
    """Of the topic."""
    share_of_home: float
    records: int
    bytes: int
    is_hot: bool


@dataclass(frozen=True, slots=True)
class SkewReport:
    topic: str
    measure: Measure
    total: Load
    distinct_keys: int
    shares: Mapping[int, float]
    """Of each partition, as it is."""
    keys: tuple[HotKey, ...]
    spreads: tuple[Spread, ...]

    @property
    def largest(self) -> float:
        return max(self.shares.values(), default=0.0)

    @property
    def fair(self) -> float:
        """What each partition would have if all had the same."""
        return 1 / len(self.shares) if self.shares else 0.0

    @property
    def advice(self) -> str:
        hot = [key for key in self.keys if key.is_hot]
        if self.fair == 0 or self.largest <= 1.25 * self.fair:
            return "The partitions are even; there is nothing to do."
        if not hot:
            return (
                "No single key is hot: many keys meet in the large partitions. More partitions, or another key, even "
                "that out; spreading keys does not."
            )
        best = min(self.spreads, key=lambda spread: (round(spread.largest, 2), spread.over), default=None)
        if best is None or best.largest > 0.95 * self.largest:
            return "Spreading the hot keys would hardly change the largest partition."
        return (
            f"Spreading {len(hot)} hot key{'s' if len(hot) != 1 else ''} over {best.over} partitions takes the largest "
            f"from {self.largest:.1%} to {best.largest:.1%} (even would be {self.fair:.1%})."
        )


def report(counted: Counted, measure: Measure, spreads: Sequence[int] = SPREADS) -> SkewReport:
    """Shares, hot keys, and what spreading these would do."""
    whole = max(1, counted.total.of(measure))
    partitions = {number: load.of(measure) for number, load in sorted(counted.partitions.items())}
    fair = whole / max(1, len(partitions))
    ordered = sorted(counted.keys, key=lambda key: (-key.total.of(measure), key.key or b""))
    hot = [key for key in ordered if key.key is not None and key.total.of(measure) >= _HOT * fair]
    possible = sorted({min(over, len(partitions)) for over in spreads if over > 1 and len(partitions) > 1})
    return SkewReport(
        topic=counted.topic,
        measure=measure,
        total=counted.total,
        distinct_keys=counted.distinct_keys,
        shares={number: load / whole for number, load in partitions.items()},
        keys=tuple(
            HotKey(
                key=key.key,
                home=key.home(measure),
                share=key.total.of(measure) / whole,
                share_of_home=key.by_partition[key.home(measure)].of(measure) / max(1, partitions[key.home(measure)]),
                records=key.total.records,
                bytes=key.total.bytes,
                is_hot=key in hot,
            )
            for key in ordered
        ),
        spreads=tuple(_spread(partitions, hot, measure, over, whole) for over in possible),
    )


def _spread(partitions: Mapping[int, int], hot: list[KeyLoad], measure: Measure, over: int, whole: int) -> Spread:
    loads = {number: float(load) for number, load in partitions.items()}
    numbers = list(loads)
    for key in hot:
        for number, load in key.by_partition.items():
            loads[number] -= load.of(measure)
        home = numbers.index(key.home(measure))
        for step in range(over):
            loads[numbers[(home + step) % len(numbers)]] += key.total.of(measure) / over
    return Spread(over, {number: load / whole for number, load in loads.items()})


def count(
    session: "SparkSession", topic: str, bootstrap: str, settings: Mapping[str, str], *, top: int, since_ms: int | None
) -> Counted:
    """Count every record of a topic (or those since a time) by key and partition."""
    from pyspark.sql import functions as f

    reader = session.read.format("millstream").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    for name, value in settings.items():
        reader = reader.option(f"kafka.{name}", value)
    if since_ms is not None:
        reader = reader.option("startingTimestamp", str(since_ms)).option(
            "startingOffsetsByTimestampStrategy", "latest"
        )
    size = f.coalesce(f.length("key"), f.lit(0)) + f.coalesce(f.length("value"), f.lit(0))
    records = reader.option("columns", "key,value,partition").load().select("key", "partition", size.alias("size"))
    cells = records.groupBy("key", "partition").agg(f.count("*").alias("records"), f.sum("size").alias("bytes")).cache()
    try:
        partitions = {
            row["partition"]: Load(row["records"], row["bytes"])
            for row in cells.groupBy("partition")
            .agg(f.sum("records").alias("records"), f.sum("bytes").alias("bytes"))
            .collect()
        }
        by_key = cells.groupBy("key").agg(f.sum("records").alias("records"), f.sum("bytes").alias("bytes"))
        heaviest = by_key.orderBy(f.greatest(f.col("bytes"), f.col("records")).desc()).limit(top)
        most = by_key.orderBy(f.col("records").desc()).limit(top)
        wanted = heaviest.select("key").union(most.select("key")).distinct()
        found: dict[bytes | None, dict[int, Load]] = {}
        for row in cells.join(
            wanted.withColumnRenamed("key", "wanted"), cells["key"].eqNullSafe(f.col("wanted"))
        ).collect():
            key = None if row["key"] is None else bytes(row["key"])
            found.setdefault(key, {})[row["partition"]] = Load(row["records"], row["bytes"])
        distinct = by_key.count()
    finally:
        cells.unpersist()
    return Counted(topic, partitions, [KeyLoad(key, loads) for key, loads in found.items()], distinct)
