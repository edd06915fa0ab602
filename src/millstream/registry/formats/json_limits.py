"""JSON Schema's limits on strings, numbers, arrays and objects: is the reader's at most as strict as the writer's?"""

import json
import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from millstream.registry.formats.json_facts import PATTERNS
from millstream.registry.formats.schema import Problem

Schema = dict[str, Any]


def same_json(one: Any, two: Any) -> bool:
    """Equal as JSON: true is not 1, the order of names does not count."""
    return bool(one == two) and json.dumps(one, sort_keys=True) == json.dumps(two, sort_keys=True)


def string_problems(new: Schema, old: Schema, path: str) -> Iterator[Problem]:
    yield from size_problems(new, old, path, "Length")
    pattern, known = new.get("pattern"), old.get(PATTERNS, ())
    if pattern is None or pattern in known:
        return
    yield Problem(
        "PATTERN_CHANGED" if known else "PATTERN_ADDED",
        f"{path}/pattern",
        f"the reader wants strings to match {pattern!r}, which old ones may not: leave the pattern as it was",
    )


def number_problems(new: Schema, old: Schema, path: str) -> Iterator[Problem]:
    for upper, sign, keyword in ((True, 1, "maximum"), (False, -1, "minimum")):
        wanted, written = _bound(new, upper), _bound(old, upper)
        if wanted is not None and (written is None or _stricter(wanted, written, sign)):
            yield _limit_problem(keyword, path, added=written is None)
    multiple, before = new.get("multipleOf"), old.get("multipleOf")
    if multiple is not None and (before is None or Fraction(str(before)) % Fraction(str(multiple))):
        if Fraction(str(multiple)) == 1 and "number" not in old.get("type", ["number"]):
            return
        yield Problem(
            "MULTIPLE_OF_ADDED" if before is None else "MULTIPLE_OF_CHANGED",
            f"{path}/multipleOf",
            f"the reader takes multiples of {multiple} only, others may be there: divide by less",
        )


def array_problems(new: Schema, old: Schema, path: str) -> Iterator[Problem]:
    yield from size_problems(new, old, path, "Items")
    if new.get("uniqueItems") and not old.get("uniqueItems") and not (old.get("maxItems", 2) <= 1):
        yield Problem(
            "UNIQUE_ITEMS_ADDED", f"{path}/uniqueItems", "the reader wants no element twice, some may be: allow it"
        )


def size_problems(new: Schema, old: Schema, path: str, what: str) -> Iterator[Problem]:
    """`maxLength` and `minLength`, or the like."""
    most, least = f"max{what}", f"min{what}"
    if most in new and (most not in old or new[most] < old[most]):
        yield _limit_problem(most, path, added=most not in old)
    if new.get(least, 0) > old.get(least, 0):
        yield _limit_problem(least, path, added=least not in old)


def _bound(schema: Schema, upper: bool) -> tuple[Fraction, bool] | None:
    """The limit and whether it is itself out of bounds."""
    plain, exclusive = ("maximum", "exclusiveMaximum") if upper else ("minimum", "exclusiveMinimum")
    bounds = [(Fraction(str(schema[name])), name is exclusive) for name in (plain, exclusive) if name in schema]
    if not bounds:
        return None
    return min(bounds, key=lambda row: (row[0] if upper else -row[0], not row[1]))


def _stricter(wanted: tuple[Fraction, bool], written: tuple[Fraction, bool], sign: int) -> bool:
    if wanted[0] != written[0]:
        return sign * wanted[0] < sign * written[0]
    return wanted[1] and not written[1]


def _limit_problem(keyword: str, path: str, *, added: bool) -> Problem:
    name = re.sub("(?=[A-Z])", "_", keyword).upper()
    falls = keyword.startswith("max")
    change = "ADDED" if added else "DECREASED" if falls else "INCREASED"
    text = f"the reader's {keyword} is {'lower' if falls else 'higher'} than the writer's: leave it as it was"
    return Problem(f"{name}_{change}", f"{path}/{keyword}", text)
