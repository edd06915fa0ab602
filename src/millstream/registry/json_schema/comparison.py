"""JSON Schema compatibility: is every document that a writer's schema accepts valid for a reader's schema?

There are no resolution rules as in Avro. If the keywords do not decide the question, the result is "not compatible":
register with another level if you know better. One thing is lenient, as in other registries: a property that became
required counts as present if it has a default.

The reader's keywords are checked one by one: each must hold for all documents of the writer, by the known `facts`.
"""

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from millstream.registry.formats import TOO_COMPLEX, Budget, Problem, TooComplexError
from millstream.registry.json_schema.documents import (
    UNDECIDABLE,
    JsonDocuments,
    NormalizedSchema,
    UnknownReferenceError,
)
from millstream.registry.json_schema.facts import (
    EXCLUDED,
    GROUPS,
    NOTHING,
    Facts,
    UndecidableError,
    Validity,
    kinds_of,
    matches,
)
from millstream.registry.json_schema.keywords import (
    ObjectsAndArrays,
    array_problems,
    number_problems,
    same_json,
    size_problems,
    string_problems,
)

_MAX_PROOF_DEPTH = 20
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
    if depth > _MAX_PROOF_DEPTH:
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


def _no_value_in(facts: NormalizedSchema, other: Side, schema: Any) -> bool:
    if "enum" not in facts:
        return False
    try:
        return not any(other.validity.is_valid(schema, value) for value in facts["enum"])
    except UndecidableError:
        return False


def _disjoint_kind(
    kind: str, here: NormalizedSchema, there: NormalizedSchema, one: Side, two: Side, depth: int
) -> bool:
    kinds = [{"number" if each == "integer" else each for each in kinds_of(facts)} for facts in (here, there)]
    if not all(kind in each for each in kinds):
        return True
    if kind == "number":
        return _apart(here, there, "minimum", "maximum")
    if any(_apart(here, there, f"min{what}", f"max{what}") for what in _SIZES.get(kind, ())):
        return True
    if kind != "object":
        return False
    for name in {*here.get("required", ()), *there.get("required", ())}:  # any order
        for mine in _of_property(here, name):
            if any(disjoint(one, mine, two, other, depth + 1) for other in _of_property(there, name)):
                return True
    return False


def _apart(here: NormalizedSchema, there: NormalizedSchema, least: str, most: str) -> bool:
    """One begins above where the other ends."""
    return any(
        least in low and most in high and Fraction(str(low[least])) > Fraction(str(high[most]))
        for low, high in ((here, there), (there, here))
    )


def _of_property(facts: NormalizedSchema, name: str) -> list[Any]:
    """Schemas that a property of this name satisfies for certain."""
    found = [facts["properties"][name]] if name in facts.get("properties", {}) else []
    matched = [(matches(pattern, name), schema) for pattern, schema in facts.get("patternProperties", {}).items()]
    found += [schema for matching, schema in matched if matching]
    if found or any(matching is None for matching, _ in matched):
        return found or [True]
    return [facts.get("additionalProperties", True)]


_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas"})
_SCHEMAS = frozenset(
    {
        "additionalProperties", "items", "contains", "propertyNames", "not", "if", "then", "else",
        "unevaluatedProperties", "unevaluatedItems",
    }
)  # fmt: skip


class Sameness:
    def __init__(self, one: JsonDocuments, two: JsonDocuments) -> None:
        self._one = one
        self._two = two
        self._known: dict[tuple[int, int], bool] = {}
        self._assumed: list[tuple[int, int]] = []
        self._kept: list[Any] = []

    def same(self, one: Any, two: Any) -> bool:
        """Schemas that refer to themselves are the same until they differ."""
        one, two = self._one.resolved(one), self._two.resolved(two)
        if isinstance(one, bool) or isinstance(two, bool):
            return one is two
        if one.keys() != two.keys() or UNDECIDABLE in one:
            return False
        place = (id(one), id(two))
        if place not in self._known:
            begin = len(self._assumed)
            self._known[place] = True
            self._assumed.append(place)
            self._kept += [one, two]
            if not self._same_rules(one, two):
                for each in self._assumed[begin:]:  # what was found to be the same if these two are
                    del self._known[each]
                del self._assumed[begin:]
                self._known[place] = False
        return self._known[place]

    def _same_rules(self, one: NormalizedSchema, two: NormalizedSchema) -> bool:
        return all(self._same_value(name, value, two[name]) for name, value in one.items())

    def _same_value(self, name: str, one: Any, two: Any) -> bool:
        if name in _SCHEMAS:
            return self.same(one, two)
        if name in _LISTS:
            return len(one) == len(two) and all(self.same(*pair) for pair in zip(one, two, strict=True))
        if name in _MAPS:
            return one.keys() == two.keys() and all(self.same(value, two[key]) for key, value in one.items())
        return same_json(one, two)


__all__ = ["JsonDocuments", "UnknownReferenceError", "problems_reading"]

_MAX_DEPTH = 60
_STEPS = 50_000
_FINITE: dict[str, list[Any]] = {"null": [None], "boolean": [False, True]}


def problems_reading(reader: JsonDocuments, writer: JsonDocuments) -> list[Problem]:
    try:
        return _Comparison(reader, writer, Budget(_STEPS)).compare(reader.main, writer.main, "")
    except (TooComplexError, RecursionError):
        return [TOO_COMPLEX]


class _Comparison(ObjectsAndArrays):
    def __init__(
        self, reader: JsonDocuments, writer: JsonDocuments, budget: Budget, turned: "_Comparison | None" = None
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._budget = budget
        self.facts: Facts = turned.reader_facts if turned else Facts(writer, budget)
        self.reader_facts: Facts = turned.facts if turned else Facts(reader, budget)
        self._valid_for_reader = Validity(reader, budget)
        self._valid_for_writer = Validity(writer, budget)
        self._sameness = Sameness(reader, writer)
        self._under_way: list[tuple[Any, Any]] = []
        """Pairs that are being compared: schemas may contain themselves."""
        self._lenient = turned is None
        self._turned: _Comparison | None = turned

    @property
    def turned(self) -> "_Comparison":
        """The same question about the writer's schemas as readers; never lenient."""
        if self._turned is None:
            self._turned = _Comparison(self._writer, self._reader, self._budget, self)
        return self._turned

    def takes_all(self, reader: Any, writer: Any) -> bool:
        """As a step of a proof, where leniency would be wrong."""
        lenient, self._lenient = self._lenient, False
        under_way, self._under_way = self._under_way, []
        try:
            return not self.compare(reader, writer, "")
        finally:
            self._lenient, self._under_way = lenient, under_way

    def disjoint(self, reader: Any, writer: Any) -> bool:
        one = Side(self.reader_facts, self._valid_for_reader, self.takes_all)
        two = Side(self.facts, self._valid_for_writer, self.turned.takes_all)
        return disjoint(one, reader, two, writer)

    def compare(self, reader: Any, writer: Any, path: str) -> list[Problem]:
        self._budget.step()
        rules = self._reader.resolved(reader)
        if rules is True or rules == {} or self._sameness.same(reader, writer):
            return []
        facts = self.facts.of(writer)
        if facts is NOTHING or any(one is rules and two is facts for one, two in self._under_way):
            return []
        if rules is False:
            return [
                Problem("SCHEMA_CLOSED", path or "/", "the reader lets nothing through here: allow what was written")
            ]
        if len(self._under_way) > _MAX_DEPTH:
            return [Problem("TOO_DEEP", path or "/", "nested too deeply to be compared: refer to parts with $ref")]
        self._under_way.append((rules, facts))
        try:
            return self._rules(rules, facts, path)
        finally:
            self._under_way.pop()

    def _rules(self, rules: NormalizedSchema, facts: NormalizedSchema, path: str) -> list[Problem]:
        """The writer's alternatives are taken apart first: each of them must be read."""
        kinds = kinds_of(facts)
        if "enum" in facts or all(kind in _FINITE for kind in kinds):
            return self._values(rules, facts, path)
        if facts.get(GROUPS):
            found = []
            for where, alternative in self.facts.alternatives(facts):
                found += self.compare(rules, alternative, f"{path}/{where}")
            return found
        found = []
        for index, part in enumerate(rules.get("allOf", ())):
            found += self.compare(part, facts, f"{path}/allOf/{index}")
        return found + list(self._sums(rules, facts, path)) + list(self._keywords(rules, facts, path))

    def _values(self, rules: NormalizedSchema, facts: NormalizedSchema, path: str) -> list[Problem]:
        """The writer says each value that there may be."""
        values = facts.get("enum", [value for kind in kinds_of(facts) for value in _FINITE.get(kind, ())])
        missing = [value for value in values if self._may_be_written(facts, value) and not self._takes(rules, value)]
        if not missing:
            return []
        shown = ", ".join(repr(value) for value in missing[:5])
        if "enum" not in facts:
            return list(self._keywords(rules, facts, path)) or [
                Problem("TYPE_NARROWED", path or "/", f"the reader does not take {shown}, which may be there: allow it")
            ]
        return [
            Problem(
                "ENUM_ARRAY_NARROWED", f"{path}/enum", f"the reader does not take {shown}, which may be there: add it"
            )
        ]

    def _takes(self, rules: NormalizedSchema, value: Any) -> bool:
        try:
            return self._valid_for_reader.is_valid(rules, value)
        except UndecidableError:
            return False

    def _may_be_written(self, facts: NormalizedSchema, value: Any) -> bool:
        try:
            branches = [NormalizedSchema({keyword: parts}) for keyword, parts in facts.get(GROUPS, ())]
            others = NormalizedSchema({name: rule for name, rule in facts.items() if name != "enum"})
            return (
                self._valid_for_writer.is_valid(others, value)
                and all(self._valid_for_writer.is_valid(each, value) for each in branches)
                and not any(self._valid_for_writer.is_valid(each, value) for each in facts.get(EXCLUDED, ()))
            )
        except UndecidableError:
            return True

    def _sums(self, rules: NormalizedSchema, facts: NormalizedSchema, path: str) -> Iterator[Problem]:
        """`anyOf`, `oneOf` and `not` of the reader."""
        for keyword in ("anyOf", "oneOf"):
            branches = rules.get(keyword, ())
            if not branches or self._is_one_of(keyword, branches, facts):
                continue
            kinds = kinds_of(facts)
            if len(kinds) > 1 and all(
                self._is_one_of(keyword, branches, self.facts.of_kind(facts, kind)) for kind in kinds
            ):
                continue
            if keyword == "oneOf" and any(not self.compare(branch, facts, path) for branch in branches):
                yield Problem(
                    "SUM_TYPE_OVERLAPS",
                    f"{path}/oneOf",
                    "documents may fit several of the reader's alternatives, of which oneOf allows one: "
                    "make them exclude each other, or use anyOf",
                )
                continue
            yield Problem(
                "SUM_TYPE_NARROWED",
                f"{path}/{keyword}",
                f"none of the reader's alternatives takes all that {_shown(facts)} allows: add one",
            )
        if "not" in rules and not self.disjoint(rules["not"], facts):
            yield Problem(
                "NOT_TYPE_EXTENDED", f"{path}/not", "the reader excludes what the writer allows: exclude less"
            )

    def _is_one_of(self, keyword: str, branches: list[Any], facts: NormalizedSchema) -> bool:
        """Whether every document fits one of the branches; of `oneOf` that one alone."""
        for place, branch in enumerate(branches):
            if not self.compare(branch, facts, "") and (
                keyword == "anyOf"
                or all(self.disjoint(other, facts) for number, other in enumerate(branches) if number != place)
            ):
                return True
        return False

    def _keywords(self, rules: NormalizedSchema, facts: NormalizedSchema, path: str) -> Iterator[Problem]:
        for keyword in ("enum", "const"):
            if keyword in rules:
                yield Problem(
                    "ENUM_ARRAY_NARROWED",
                    f"{path}/{keyword}",
                    "the reader takes certain values only, the writer any: list the values on both sides or on none",
                )
        if UNDECIDABLE in rules:
            yield Problem(
                "CONDITION_CHANGED", path or "/", "a reference that depends on where it is used cannot be compared"
            )
        yield from self._condition(rules, facts, path)
        kinds, taken = kinds_of(facts), kinds_of(rules)
        missing = [kind for kind in kinds if kind not in taken and not (kind == "integer" and "number" in taken)]
        if missing:
            yield Problem(
                "TYPE_NARROWED" if len(missing) < len(kinds) else "TYPE_CHANGED",
                f"{path}/type",
                f"the reader does not take {', '.join(missing)}, which may be there: add it to its types",
            )
        kinds = [kind for kind in kinds if kind not in missing]
        if "string" in kinds:
            yield from string_problems(rules, facts, path)
        if "number" in kinds or "integer" in kinds:
            yield from number_problems(rules, facts, path)
        if "array" in kinds:
            yield from array_problems(rules, facts, path)
            yield from self.arrays(rules, facts, path)
        if "object" in kinds:
            yield from size_problems(rules, facts, path, "Properties")
            yield from self.objects(rules, facts, path)

    def _condition(self, rules: NormalizedSchema, facts: NormalizedSchema, path: str) -> Iterator[Problem]:
        if "if" not in rules:
            return
        then, otherwise = rules.get("then", True), rules.get("else", True)
        if not self.compare(then, facts, "") and not self.compare(otherwise, facts, ""):
            return
        if "if" in facts and self._sameness.same(rules["if"], facts["if"]):
            yield from self.compare(then, facts.get("then", True), f"{path}/then")
            yield from self.compare(otherwise, facts.get("else", True), f"{path}/else")
            return
        yield Problem(
            "CONDITION_CHANGED",
            f"{path}/if",
            "the reader's 'if' is not the writer's, and may refuse what was written: keep it as it was",
        )

    def required(self, rules: NormalizedSchema, facts: NormalizedSchema, path: str) -> Iterator[Problem]:
        for name in rules.get("required", ()):
            described = rules.get("properties", {}).get(name)
            has_default = self._lenient and isinstance(described, dict) and "default" in described
            if name not in facts.get("required", ()) and not has_default:
                yield Problem(
                    "REQUIRED_ATTRIBUTE_ADDED",
                    f"{path}/required/{name}",
                    f"the reader requires {name!r}, which may be missing: make it optional, or give it a default",
                )


def _shown(facts: NormalizedSchema) -> str:
    return " or ".join(kinds_of(facts)) if "type" in facts else "the writer's schema"
