"""Skew of a topic, counted exactly with Spark: its hot keys, and the effect of spreading them; with bar charts.

Spreading is that of `millstream.client.SaltingPartitioner`: the records of a key go in turn to its home partition and
to the n - 1 partitions after it. `topic hot` shows the current hot keys from samples; this counts all records of a
topic.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SPREADS = (2, 4, 8, 16)
_HOT = 0.5
"""A key is hot if it has at least this part of an even share of a partition."""


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
        """The partition with most of its records."""
        return max(self.by_partition, key=lambda partition: (self.by_partition[partition].of(measure), -partition))


@dataclass(frozen=True, slots=True)
class Counted:
    """The load of each partition of a topic, and of its heaviest keys."""

    topic: str
    partitions: Mapping[int, Load]
    keys: Sequence[KeyLoad]
    distinct_keys: int

    @property
    def total(self) -> Load:
        return sum(self.partitions.values(), Load())


@dataclass(frozen=True, slots=True)
class Spread:
    """The shares of partitions if each hot key were spread over `over` partitions."""

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
    """The current share of each partition."""
    keys: tuple[HotKey, ...]
    spreads: tuple[Spread, ...]

    @property
    def largest(self) -> float:
        return max(self.shares.values(), default=0.0)

    @property
    def fair(self) -> float:
        """An even share."""
        return 1 / len(self.shares) if self.shares else 0.0

    @property
    def advice(self) -> str:
        hot = [key for key in self.keys if key.is_hot]
        if self.fair == 0 or self.largest <= 1.25 * self.fair:
            return "The partitions are even. Nothing to do."
        if not hot:
            return (
                "No single key is hot: the large partitions have many keys. Add partitions or use another key; "
                "spreading "
                "keys does not help."
            )
        best = min(self.spreads, key=lambda spread: (round(spread.largest, 2), spread.over), default=None)
        if best is None or best.largest > 0.95 * self.largest:
            return "Spreading the hot keys would not make the largest partition much smaller."
        return (
            f"Spreading {len(hot)} hot key{'s' if len(hot) != 1 else ''} over {best.over} partitions reduces the "
            f"largest "
            f"from {self.largest:.1%} to {best.largest:.1%} (even would be {self.fair:.1%})."
        )


def report(counted: Counted, measure: Measure, spreads: Sequence[int] = SPREADS) -> SkewReport:
    """Shares, hot keys, and the effect of spreading them."""
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
    """Counts all records of a topic (or those since a time) by key and partition."""
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


_BAR = 12
_LEFT = 90
_WIDTH = 420
_RIGHT = 70


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    shares: Sequence[float]


def bars_svg(title: str, names: Sequence[str], series: Sequence[Series], mark: float, mark_name: str) -> str:
    """`mark`: a line across all bars, such as the even share."""
    most = max([mark, *(share for each in series for share in each.shares)], default=1.0) or 1.0
    step = _BAR * len(series) + 10
    top = 58
    height = top + step * len(names) + 34
    width = _LEFT + _WIDTH + _RIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
        "<style>text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;fill:#111827}.small{font-size:11px;"
        "fill:#4b5563}.paper{fill:#fff}.s0{fill:#2563eb}.s1{fill:#f59e0b}.mark{stroke:#b91c1c;stroke-dasharray:4 3}"
        "@media (prefers-color-scheme:dark){text{fill:#e5e7eb}.small{fill:#a8b0bd}.paper{fill:#0f1319}.s0{fill:#7aa7f7}"
        ".s1{fill:#e8b45a}.mark{stroke:#f08a8a}}</style>",
        f'<rect class="paper" width="{width}" height="{height}"/>',
        f'<text x="16" y="24" font-weight="600">{escape(title)}</text>',
    ]
    x = float(_LEFT)
    for index, each in enumerate(series):
        parts.append(f'<rect class="s{index}" x="{x:.0f}" y="36" width="10" height="10"/>')
        parts.append(f'<text class="small" x="{x + 15:.0f}" y="45">{escape(each.name)}</text>')
        x += len(each.name) * 6.2 + 40
    for row, name in enumerate(names):
        y = top + row * step
        middle = y + _BAR * len(series) / 2 + 4
        parts.append(f'<text class="small" x="{_LEFT - 8}" y="{middle:.0f}" text-anchor="end">{escape(name)}</text>')
        for index, each in enumerate(series):
            length = each.shares[row] / most * _WIDTH
            at = y + index * _BAR
            parts.append(f'<rect class="s{index}" x="{_LEFT}" y="{at}" width="{length:.1f}" height="{_BAR - 2}"/>')
            parts.append(f'<text class="small" x="{_LEFT + length + 5:.1f}" y="{at + 9}">{each.shares[row]:.1%}</text>')
    line = _LEFT + mark / most * _WIDTH
    bottom = top + step * len(names)
    parts.append(f'<path class="mark" d="M{line:.1f},{top - 6} V{bottom}"/>')
    parts.append(
        f'<text class="small" x="{line:.1f}" y="{bottom + 16}" text-anchor="middle">{escape(mark_name)}</text>'
    )
    return "\n".join([*parts, "</svg>", ""])


def bar_text(share: float, most: float, width: int = 30) -> str:
    """A bar of letters, in eighths."""
    eighths = round(share / most * width * 8) if most else 0
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]
