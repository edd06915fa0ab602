"""No document is valid for two JSON Schemas: proof of it, where there is one. `oneOf` and `not` ask for that."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from millstream.registry.formats.json_drafts import Said
from millstream.registry.formats.json_facts import EXCLUDED, GROUPS, NOTHING, Facts
from millstream.registry.formats.json_validity import UndecidableError, Validity, kinds_of, matches

_MAX_DEPTH = 20
_SIZES = {"string": ("Length",), "array": ("Items",), "object": ("Properties",)}


class Side:
    """One of the two: its facts, which values are valid, and whether it takes all that the other lets through."""

    def __init__(self, facts: Facts, validity: Validity, takes_all: Callable[[Any, Any], bool]) -> None:
        self.facts = facts
        self.validity = validity
        self.takes_all = takes_all
        """(schema of this side, schema of the other)"""


def disjoint(one: Side, this: Any, two: Side, that: Any, depth: int = 0) -> bool:
    """True if it is proven that no document is valid for `this` of one side and for `that` of the other."""
    here, there = one.facts.of(this), two.facts.of(that)
    if here is NOTHING or there is NOTHING:
        return True
    if depth > _MAX_DEPTH:
        return False
    if _no_value_in(here, two, that) or _no_value_in(there, one, this):
        return True
    # First what is cheap, and enough for alternatives that a property tells apart. What is excluded takes a comparison
    # each, and alternatives of `oneOf` exclude all others.
    kinds = ("null", "boolean", "number", "string", "array", "object")
    if all(_disjoint_kind(kind, here, there, one, two, depth) for kind in kinds):
        return True
    for side, facts, other, schema in ((one, here, two, that), (two, there, one, this)):
        for excluded in facts.get(EXCLUDED, ()):
            if side.takes_all(excluded, schema):
                return True
        if facts.get(GROUPS):
            found = [each for _, each in side.facts.alternatives(facts)]
            return all(disjoint(side, each, other, schema, depth + 1) for each in found)
    return False


def _no_value_in(facts: Said, other: Side, schema: Any) -> bool:
    if "enum" not in facts:
        return False
    try:
        return not any(other.validity.is_valid(schema, value) for value in facts["enum"])
    except UndecidableError:
        return False


def _disjoint_kind(kind: str, here: Said, there: Said, one: Side, two: Side, depth: int) -> bool:
    kinds = [{"number" if each == "integer" else each for each in kinds_of(facts)} for facts in (here, there)]
    if not all(kind in each for each in kinds):
        return True
    if kind == "number":
        return _apart(here, there, "minimum", "maximum")
    if any(_apart(here, there, f"min{what}", f"max{what}") for what in _SIZES.get(kind, ())):
        return True
    if kind != "object":
        return False
    for name in {*here.get("required", ()), *there.get("required", ())}:
        for mine in _of_property(here, name):
            if any(disjoint(one, mine, two, other, depth + 1) for other in _of_property(there, name)):
                return True
    return False


def _apart(here: Said, there: Said, least: str, most: str) -> bool:
    """One begins above where the other ends."""
    return any(
        least in low and most in high and Fraction(str(low[least])) > Fraction(str(high[most]))
        for low, high in ((here, there), (there, here))
    )


def _of_property(facts: Said, name: str) -> list[Any]:
    """Schemas that a property of this name satisfies for certain."""
    found = [facts["properties"][name]] if name in facts.get("properties", {}) else []
    answers = [(matches(pattern, name), schema) for pattern, schema in facts.get("patternProperties", {}).items()]
    found += [schema for matching, schema in answers if matching]
    if found or any(matching is None for matching, _ in answers):
        return found or [True]
    return [facts.get("additionalProperties", True)]
