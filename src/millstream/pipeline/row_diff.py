"""Compares the rows of an output with the expected ones, and says what differs.

An expected row names the columns that count; other columns of a row are not compared. The order of rows does not
count, their number does. Numbers are compared as numbers, times as instants.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RowDiff:
    """What differs; `lines` is for people: - expected and missing, + there and not expected, ~ different columns."""

    missing: tuple[Row, ...] = ()
    unexpected: tuple[Row, ...] = ()
    changed: tuple[tuple[Row, Row], ...] = ()
    """Pairs of an expected row and the most similar row there is."""

    @property
    def is_equal(self) -> bool:
        return not (self.missing or self.unexpected or self.changed)

    def lines(self) -> list[str]:
        found = []
        for wanted, there in self.changed:
            differing = [name for name, value in wanted.items() if not same(value, there.get(name))]
            shown = ", ".join(
                f"{name}: expected {text(wanted[name])}, got {text(there[name]) if name in there else 'no such column'}"
                for name in differing
            )
            same_ones = {name: value for name, value in wanted.items() if name not in differing}
            found.append(f"~ {_row(same_ones)}  {shown}")
        found += [f"- {_row(row)}" for row in self.missing]
        found += [f"+ {_row(row)}" for row in self.unexpected]
        return found


def compare(expected: Sequence[Row], there: Sequence[Row]) -> RowDiff:
    left = list(there)
    missing: list[Row] = []
    for row in expected:
        match = next((index for index, each in enumerate(left) if _fits(row, each)), None)
        if match is None:
            missing.append(row)
        else:
            del left[match]
    changed = []
    for row in list(missing):
        best = max(left, key=lambda each: _likeness(row, each), default=None)
        if best is not None and _likeness(row, best) > 0:
            changed.append((row, best))
            missing.remove(row)
            left.remove(best)
    return RowDiff(tuple(missing), tuple(left), tuple(changed))


def _fits(expected: Row, row: Row) -> bool:
    return all(name in row and same(value, row[name]) for name, value in expected.items())


def _likeness(expected: Row, row: Row) -> int:
    return sum(1 for name, value in expected.items() if name in row and same(value, row[name]))


def same(one: Any, other: Any) -> bool:
    one, other = _comparable(one), _comparable(other)
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12) or (one != one and other != other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, datetime) or isinstance(other, datetime):
        return _instant(one) == _instant(other) is not None
    return bool(one == other)


def _comparable(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, date) and not isinstance(value, datetime):
        return value.isoformat()
    return value


def _instant(value: Any) -> datetime | None:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if not isinstance(value, datetime):
        return None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def text(value: Any) -> str:
    value = _comparable(value)
    if isinstance(value, datetime):
        found = _instant(value)
        assert found is not None
        return found.isoformat().replace("+00:00", "Z")
    return repr(value) if isinstance(value, str) else "null" if value is None else str(value)


def _row(row: Row) -> str:
    return "{" + ", ".join(f"{name}: {text(value)}" for name, value in row.items()) + "}"
