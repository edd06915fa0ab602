"""Partitioning of tables: by columns, or by the day, hour or month of a time.

Delta keeps the day as a column (`_day`); Iceberg derives it from the time (a hidden partition).
A late record goes to the partition of its own day.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from millstream.lake.errors import LakeOptionError

HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
UNITS: Final = {"days": "day", "hours": "hour", "months": "month"}
_ALIASES: Final = {"_day": "days(timestamp)", "_hour": "hours(timestamp)", "_month": "months(timestamp)"}
_UNIT_TYPES: Final = {"day": pa.date32(), "hour": pa.string(), "month": pa.string()}
_UNIT_FORMATS: Final = {"hour": "%Y-%m-%d-%H", "month": "%Y-%m"}
_SAFE: Final = re.compile(r"[A-Za-z0-9._-]+")

PartitionValue = str | int | bool | date | None


@dataclass(frozen=True)
class Term:
    """One level of partitioning: a column, or a unit of time of a column."""

    source: str
    unit: str | None = None

    @property
    def name(self) -> str:
        """The column with the value, in formats that have one."""
        return self.source if self.unit is None else f"_{self.unit}"

    @property
    def text(self) -> str:
        return self.source if self.unit is None else f"{self.unit}s({self.source})"

    def field(self, schema: pa.Schema) -> pa.Field:
        """The partition column; raises for columns that cannot be one."""
        if self.source not in schema.names:
            raise LakeOptionError(f"partitionBy={self.text}: there is no column {self.source}{_have(schema)}")
        kind = schema.field(self.source).type
        if self.unit is not None:
            if not (pa.types.is_timestamp(kind) or (pa.types.is_date(kind) and self.unit != "hour")):
                raise LakeOptionError(f"partitionBy={self.text}: {self.source} is {kind}, not a time")
            return pa.field(self.name, _UNIT_TYPES[self.unit])
        if not (
            pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_boolean(kind)
        ):
            hint = f"; use days({self.source})" if pa.types.is_timestamp(kind) else ""
            raise LakeOptionError(
                f"partitionBy={self.source}: its type is {kind}; strings, whole numbers, dates and booleans can"
                f" partition a table{hint}"
            )
        return pa.field(self.name, kind)

    def values(self, column: pa.Array) -> pa.Array:
        """The partition value of each row."""
        if self.unit is None:
            return column
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us"))  # without a zone: the instant in UTC
        if self.unit == "day":
            return column.cast(pa.date32(), safe=False)
        return pc.strftime(column, format=_UNIT_FORMATS[self.unit])


@dataclass(frozen=True)
class Partitioning:
    """The terms of a table's partitioning, in order; empty for a table without partitions."""

    terms: tuple[Term, ...] = ()

    @staticmethod
    def parse(words: Sequence[str]) -> "Partitioning":
        terms = tuple(_parse_term(word) for word in words)
        names = [term.name for term in terms]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise LakeOptionError(f"partitionBy={','.join(words)}: {twice} is there twice; name it once")
        return Partitioning(terms)

    @property
    def text(self) -> str:
        return ",".join(term.text for term in self.terms)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(term.name for term in self.terms)

    @property
    def derived(self) -> tuple[Term, ...]:
        return tuple(term for term in self.terms if term.unit is not None)

    def fields(self, schema: pa.Schema) -> list[pa.Field]:
        fields = [term.field(schema) for term in self.terms]
        for term in self.derived:
            if term.name in schema.names:
                raise LakeOptionError(
                    f"partitionBy={term.text} adds a column {term.name}, and the rows already have one:"
                    f" partition by {term.name} as it is (rename it), or drop it before the write"
                )
        return fields

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[tuple[PartitionValue, ...], pa.RecordBatch]]:
        """The batch split by partition; the order within each is kept."""
        if not self.terms or not batch.num_rows:
            yield (), batch
            return
        codes: pa.Array = pa.repeat(pa.scalar(0, pa.int64()), batch.num_rows)
        columns = []
        for term in self.terms:
            encoded = term.values(batch.column(term.source)).dictionary_encode(null_encoding="encode")
            columns.append(encoded)
            codes = pc.add(pc.multiply(codes, len(encoded.dictionary)), encoded.indices)
        distinct = pc.unique(codes)
        for code in distinct:
            rows = pc.indices_nonzero(pc.equal(codes, code))
            values = tuple(column[rows[0].as_py()].as_py() for column in columns)
            yield values, batch if len(distinct) == 1 else batch.take(rows)

    def directory(self, values: Sequence[PartitionValue]) -> str:
        """The directory of a partition (`day=2026-01-31`). It is for people: readers take values from the metadata.

        A value with special characters is hashed, because engines disagree about such paths.
        """
        parts = []
        for term, value in zip(self.terms, values, strict=True):
            text = HIVE_NULL if value is None else value_text(value)
            parts.append(f"{_path_part(term.name)}={_path_part(text)}")
        return "/".join(parts)


def _path_part(text: str) -> str:
    if _SAFE.fullmatch(text):
        return text
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def value_text(value: PartitionValue) -> str:
    """A partition value as text, as Delta and Hive write it."""
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, date) else str(value)


def _parse_term(word: str) -> Term:
    text = _ALIASES.get(word, word)
    match = re.fullmatch(r"(\w+)\((.+)\)", text)
    if match is None:
        return Term(text)
    unit = UNITS.get(match[1].lower()) or UNITS.get(f"{match[1].lower()}s")
    if unit is None:
        raise LakeOptionError(f"partitionBy={word}: write a column, or one of days(), hours(), months() of a column")
    return Term(match[2].strip(), unit)


def _have(schema: pa.Schema) -> str:
    return f"; columns are {', '.join(schema.names)}"
