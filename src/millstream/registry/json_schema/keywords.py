"""JSON Schema keywords of objects, arrays, strings and numbers: does a reader accept all that a writer accepts?"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from millstream.registry.formats import Problem
from millstream.registry.json_schema.documents import JsonDocuments, NormalizedSchema
from millstream.registry.json_schema.facts import PATTERNS, UndecidableError, Validity, element, matches

_STRING = NormalizedSchema({"type": "string"})


class ObjectsAndArrays(ABC):
    """Part of a comparison; `rules` are the reader's, `facts` are known of all that the writer lets through."""

    _reader: JsonDocuments
    _valid_for_reader: Validity

    @abstractmethod
    def compare(self, reader: Any, writer: Any, path: str) -> list[Problem]: ...

    @abstractmethod
    def takes_all(self, reader: Any, writer: Any) -> bool: ...

    @property
    @abstractmethod
    def turned(self) -> Any: ...

    @abstractmethod
    def required(self, rules: NormalizedSchema, facts: NormalizedSchema, path: str) -> Iterator[Problem]: ...

    # Arrays

    def arrays(self, rules: NormalizedSchema, facts: NormalizedSchema, path: str) -> Iterator[Problem]:
        yield from self._items(rules, facts, path)
        if "contains" in rules:
            yield from self._contains(rules, facts, path)
        if "unevaluatedItems" in rules and "items" not in rules:
            evaluated = _Evaluated(self._reader, rules)
            if not evaluated.all_items:
                pseudo = NormalizedSchema(
                    {"prefixItems": [True] * evaluated.first_items, "items": rules["unevaluatedItems"]}
                )
                if next(self._items(pseudo, facts, path), None) is not None:
                    yield Problem(
                        "UNEVALUATED_ITEMS_NARROWED",
                        f"{path}/unevaluatedItems",
                        "elements may be there that the reader does not evaluate and does not take: "
                        "allow them as before",
                    )

    def _items(self, rules: NormalizedSchema, facts: NormalizedSchema, path: str) -> Iterator[Problem]:
        count = max(len(rules.get("prefixItems", ())), len(facts.get("prefixItems", ())))
        for index in range(count):
            if index < facts.get("maxItems", count):
                yield from self.compare(element(rules, index), element(facts, index), f"{path}/items/{index}")
        if count < facts.get("maxItems", count + 1):
            yield from self.compare(rules.get("items", True), facts.get("items", True), f"{path}/items")

    def _contains(self, rules: NormalizedSchema, facts: NormalizedSchema, path: str) -> Iterator[Problem]:
        wanted = rules["contains"]
        least, most = rules.get("minContains", 1), rules.get("maxContains")
        if least and not self._has_at_least(least, wanted, facts):
            yield Problem("CONTAINS_CHANGED", f"{path}/contains", "the reader wants elements that may not be there")
        if most is not None and not self._has_at_most(most, wanted, facts):
            yield Problem(
                "MAX_CONTAINS_DECREASED", f"{path}/maxContains", "there may be more such elements than the reader takes"
            )

    def _has_at_least(self, least: float, wanted: Any, facts: NormalizedSchema) -> bool:
        if "contains" in facts and facts.get("minContains", 1) >= least and self.takes_all(wanted, facts["contains"]):
            return True
        if facts.get("minItems", 0) < least:
            return False
        every = [*facts.get("prefixItems", ()), facts.get("items", True)]
        return all(self.takes_all(wanted, each) for each in every)

    def _has_at_most(self, most: float, wanted: Any, facts: NormalizedSchema) -> bool:
        if facts.get("maxItems", most + 1) <= most:
            return True
        return (
            "contains" in facts
            and facts.get("maxContains", most + 1) <= most
            and self.turned.takes_all(facts["contains"], wanted)
        )

    # Objects

    def objects(self, rules: NormalizedSchema, facts: NormalizedSchema, path: str) -> Iterator[Problem]:
        yield from self.required(rules, facts, path)
        yield from self._properties(rules, facts, path)
        yield from self._dependencies(rules, facts, path)
        if "propertyNames" in rules:
            yield from self._names(rules["propertyNames"], facts, path)
        if "unevaluatedProperties" in rules and "additionalProperties" not in rules:
            evaluated = _Evaluated(self._reader, rules)
            if not evaluated.all_properties:
                pseudo = NormalizedSchema(
                    {
                        "properties": dict.fromkeys(sorted(evaluated.names), True),
                        "patternProperties": dict.fromkeys(sorted(evaluated.patterns), True),
                        "additionalProperties": rules["unevaluatedProperties"],
                    }
                )
                if next(self._properties(pseudo, facts, path), None) is not None:
                    yield Problem(
                        "UNEVALUATED_PROPERTIES_NARROWED",
                        f"{path}/unevaluatedProperties",
                        "properties may be there that the reader does not evaluate and does not take: "
                        "allow them as before",
                    )

    def _properties(self, rules: NormalizedSchema, facts: NormalizedSchema, path: str) -> Iterator[Problem]:
        here, there = rules.get("properties", {}), facts.get("properties", {})
        for name in {**here, **there}:
            where = f"{path}/properties/{name}"
            wanted, written = _wanted(rules, name), _written(facts, name)
            found = [problem for one in wanted for problem in self.compare(one, written, where)]
            if found and name not in there and written is True:
                yield Problem(
                    "PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL",
                    where,
                    f"{name!r} was not described before, so documents may have it with any value: "
                    'set "additionalProperties": false in both schemas, or allow any value',
                )
            elif found and name not in here and wanted[0] is False:
                yield Problem(
                    "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL",
                    where,
                    f"the reader allows no property {name!r}, which may be there: keep it, or allow further ones",
                )
            else:
                yield from found
        yield from self._by_pattern(rules, facts, path)
        yield from self._further(rules, facts, path)

    def _by_pattern(self, rules: NormalizedSchema, facts: NormalizedSchema, path: str) -> Iterator[Problem]:
        """A name that matches the reader's pattern was written by the writer's rule for the same pattern, if it has
        one; else it may match any of its patterns, or none."""
        known = facts.get("patternProperties", {})
        for pattern, wanted in rules.get("patternProperties", {}).items():
            where = f"{path}/patternProperties/{pattern}"
            if pattern in known:
                yield from self.compare(wanted, known[pattern], where)
                continue
            for written in (*known.values(), facts.get("additionalProperties", True)):
                found = self.compare(wanted, written, where)
                if found:
                    yield Problem(
                        "PATTERN_PROPERTY_ADDED",
                        where,
                        f"properties that match {pattern!r} may be there with other values: allow what was written",
                    )
                    break

    def _further(self, rules: NormalizedSchema, facts: NormalizedSchema, path: str) -> Iterator[Problem]:
        """A name that the reader describes neither by name nor by pattern."""
        extra = rules.get("additionalProperties", True)
        patterns = rules.get("patternProperties", {})
        for pattern, written in facts.get("patternProperties", {}).items():
            if pattern not in patterns and self.compare(extra, written, path):
                yield Problem(
                    "PATTERN_PROPERTY_REMOVED",
                    f"{path}/patternProperties/{pattern}",
                    f"properties that match {pattern!r} may be there, which the reader does not take: keep the pattern",
                )
        if self.compare(extra, facts.get("additionalProperties", True), path):
            yield Problem(
                "ADDITIONAL_PROPERTIES_NARROWED" if extra is not False else "ADDITIONAL_PROPERTIES_REMOVED",
                f"{path}/additionalProperties",
                "the reader does not take all the further properties that may be there: allow them as before",
            )

    def _dependencies(self, rules: NormalizedSchema, facts: NormalizedSchema, path: str) -> Iterator[Problem]:
        for name, wanted in rules.get("dependentRequired", {}).items():
            known = {*facts.get("required", ()), *facts.get("dependentRequired", {}).get(name, ()), name}
            if not known.issuperset(wanted) and _written(facts, name) is not False:
                yield _dependency(path, name)
        for name, schema in rules.get("dependentSchemas", {}).items():
            before = facts.get("dependentSchemas", {}).get(name)
            if _written(facts, name) is False or not self.compare(schema, facts, ""):
                continue
            if before is None or self.compare(schema, before, ""):
                yield _dependency(path, name)

    def _names(self, wanted: Any, facts: NormalizedSchema, path: str) -> Iterator[Problem]:
        if facts.get("additionalProperties") is False and not facts.get("patternProperties"):
            try:
                if all(self._valid_for_reader.is_valid(wanted, name) for name in facts.get("properties", {})):
                    return
            except UndecidableError:
                pass
        written = (
            NormalizedSchema({"allOf": [_STRING, facts["propertyNames"]]}) if "propertyNames" in facts else _STRING
        )
        yield from self.compare(wanted, written, f"{path}/propertyNames")


class _Evaluated:
    """The properties and elements that a reader's schema evaluates in every document that it takes."""

    def __init__(self, documents: JsonDocuments, rules: NormalizedSchema) -> None:
        self.names: set[str] = set()
        self.patterns: set[str] = set()
        self.first_items = 0
        self.all_properties = self.all_items = False
        self._seen: list[Any] = []
        self._look(documents, rules, outermost=True)

    def _look(self, documents: JsonDocuments, rules: Any, *, outermost: bool = False) -> None:
        if not isinstance(rules, dict) or any(rules is each for each in self._seen):
            return
        self._seen.append(rules)
        self.names.update(rules.get("properties", ()))
        self.patterns.update(rules.get("patternProperties", ()))
        self.first_items = max(self.first_items, len(rules.get("prefixItems", ())))
        self.all_properties |= "additionalProperties" in rules or (not outermost and "unevaluatedProperties" in rules)
        self.all_items |= "items" in rules or (not outermost and "unevaluatedItems" in rules)
        for part in rules.get("allOf", ()):
            self._look(documents, documents.resolved(part))


def _wanted(rules: NormalizedSchema, name: str) -> list[Any]:
    """The reader's schemas that a property of this name must satisfy; possibly more if a pattern is undecidable."""
    matched = [(matches(pattern, name), schema) for pattern, schema in rules.get("patternProperties", {}).items()]
    found = [rules["properties"][name]] if name in rules.get("properties", {}) else []
    found += [schema for matching, schema in matched if matching]
    unsure = [schema for matching, schema in matched if matching is None]
    return [*found, *unsure] if found else [rules.get("additionalProperties", True), *unsure]


def _written(facts: NormalizedSchema, name: str) -> Any:
    """What is known of a property of this name."""
    matched = [(matches(pattern, name), schema) for pattern, schema in facts.get("patternProperties", {}).items()]
    found = [facts["properties"][name]] if name in facts.get("properties", {}) else []
    found += [schema for matching, schema in matched if matching]
    if not found:
        return True if any(matching is None for matching, _ in matched) else facts.get("additionalProperties", True)
    return found[0] if len(found) == 1 else NormalizedSchema({"allOf": found})


def _dependency(path: str, name: str) -> Problem:
    return Problem(
        "CONDITION_CHANGED",
        f"{path}/dependencies/{name}",
        f"the reader wants more of documents with {name!r} than the writer: leave the dependency as it was",
    )


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
