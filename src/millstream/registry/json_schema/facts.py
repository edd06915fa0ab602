"""Facts about all documents that a writer's JSON Schema accepts, and the validity of single values.

All parts of `allOf` and the targets of references are merged into one schema without them. It may say less than its
parts, never more: what holds for it holds for the documents. `properties`, `patternProperties` and
`additionalProperties` depend on each other, as do `prefixItems` and `items`, so they are merged together. If validity
cannot be decided, that is an error and not a guess.
"""

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from typing import Any

import re2

from millstream.registry.formats import Budget
from millstream.registry.json_schema.documents import UNDECIDABLE, JsonDocuments, NormalizedSchema

_QUIET = re2.Options()
_QUIET.log_errors = False
_LIMITS = ("maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum", "multipleOf")
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


class UndecidableError(Exception):
    """The schema is too complex for these facts."""


def matches(pattern: str, text: str) -> bool | None:
    """In time that grows with the text alone; None for what RE2 does not know, such as back references."""
    try:
        return re2.search(pattern, text, _QUIET) is not None
    except re2.error:
        return None


def equal(one: Any, two: Any) -> bool:
    """As JSON Schema has it: 1 is 1.0, but not true."""
    if isinstance(one, bool) or isinstance(two, bool):
        return one is two
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(equal(*pair) for pair in zip(one, two, strict=True))
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(equal(value, two[name]) for name, value in one.items())
    return bool(one == two)


def kind_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if float(value).is_integer() else "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def kinds_of(schema: NormalizedSchema) -> list[str]:
    """The types that a schema allows; all if it says none. `number` stands for `integer` as well."""
    given = schema.get("type")
    if given is None:
        return [kind for kind in TYPES if kind != "integer"]
    return [given] if isinstance(given, str) else list(given)


class Validity:
    def __init__(self, documents: JsonDocuments, budget: Budget) -> None:
        self._documents = documents
        self._budget = budget

    def is_valid(self, schema: Any, value: Any) -> bool:
        self._budget.step()
        rules = self._documents.resolved(schema)
        if isinstance(rules, bool):
            return rules
        if UNDECIDABLE in rules:
            raise UndecidableError
        kind = kind_of(value)
        kinds = kinds_of(rules)
        if kind not in kinds and not (kind == "integer" and "number" in kinds):
            return False
        if "const" in rules and not equal(rules["const"], value):
            return False
        if "enum" in rules and not _is_among(value, rules["enum"]):
            return False
        checks: dict[str, Callable[[NormalizedSchema, Any], bool]] = {
            "integer": _number, "number": _number, "string": _string, "array": self._array, "object": self._object
        }  # fmt: skip
        return (kind not in checks or checks[kind](rules, value)) and self._combined(rules, value)

    def _combined(self, rules: NormalizedSchema, value: Any) -> bool:
        valid = self.is_valid
        if not all(valid(part, value) for part in rules.get("allOf", ())):
            return False
        if "anyOf" in rules and not any(valid(part, value) for part in rules["anyOf"]):
            return False
        if "oneOf" in rules and sum(valid(part, value) for part in rules["oneOf"]) != 1:
            return False
        if "not" in rules and valid(rules["not"], value):
            return False
        if "if" in rules:
            return valid(rules.get("then" if valid(rules["if"], value) else "else", True), value)
        return True

    def _array(self, rules: NormalizedSchema, value: list[Any]) -> bool:
        if "unevaluatedItems" in rules and value:
            raise UndecidableError
        if not rules.get("minItems", 0) <= len(value) <= rules.get("maxItems", len(value)):
            return False
        first = rules.get("prefixItems", [])
        schemas = [first[place] if place < len(first) else rules.get("items", True) for place in range(len(value))]
        if not all(self.is_valid(schema, each) for schema, each in zip(schemas, value, strict=True)):
            return False
        if rules.get("uniqueItems") and any(equal(a, b) for i, a in enumerate(value) for b in value[:i]):
            return False
        if "contains" in rules:
            count = sum(self.is_valid(rules["contains"], each) for each in value)
            return bool(rules.get("minContains", 1) <= count <= rules.get("maxContains", count))
        return True

    def _object(self, rules: NormalizedSchema, value: dict[str, Any]) -> bool:
        if "unevaluatedProperties" in rules and value:
            raise UndecidableError
        if not rules.get("minProperties", 0) <= len(value) <= rules.get("maxProperties", len(value)):
            return False
        if not all(name in value for name in rules.get("required", ())):
            return False
        if "propertyNames" in rules and not all(self.is_valid(rules["propertyNames"], name) for name in value):
            return False
        for name, each in value.items():
            if not all(self.is_valid(schema, each) for schema in _of_property(rules, name)):
                return False
        for name, wanted in rules.get("dependentRequired", {}).items():
            if name in value and not all(other in value for other in wanted):
                return False
        dependent = rules.get("dependentSchemas", {})
        return all(self.is_valid(schema, value) for name, schema in dependent.items() if name in value)


def _is_among(value: Any, values: list[Any]) -> bool:
    if isinstance(value, str):
        return value in values  # no other type is equal to a string, and there may be thousands
    return any(equal(each, value) for each in values)


def _of_property(rules: NormalizedSchema, name: str) -> list[Any]:
    found = [rules["properties"][name]] if name in rules.get("properties", {}) else []
    for pattern, schema in rules.get("patternProperties", {}).items():
        matching = matches(pattern, name)
        if matching is None:
            raise UndecidableError
        if matching:
            found.append(schema)
    return found or [rules.get("additionalProperties", True)]


def _string(rules: NormalizedSchema, value: str) -> bool:
    if not rules.get("minLength", 0) <= len(value) <= rules.get("maxLength", len(value)):
        return False
    if "pattern" not in rules:
        return True
    matching = matches(rules["pattern"], value)
    if matching is None:
        raise UndecidableError
    return matching


def _number(rules: NormalizedSchema, value: float) -> bool:
    exact = Fraction(str(value))
    limits = {name: Fraction(str(rules[name])) for name in _LIMITS if name in rules}
    return (
        exact <= limits.get("maximum", exact)
        and exact >= limits.get("minimum", exact)
        and ("exclusiveMaximum" not in limits or exact < limits["exclusiveMaximum"])
        and ("exclusiveMinimum" not in limits or exact > limits["exclusiveMinimum"])
        and ("multipleOf" not in limits or exact % limits["multipleOf"] == 0)
    )


EXCLUDED = "$excluded"
"""Schemas for which no document is valid."""
GROUPS = "$groups"
"""Each a keyword, `anyOf` or `oneOf`, and its branches."""
PATTERNS = "$patterns"
"""Every string matches all of them."""
NOTHING = NormalizedSchema({"$never": True})
"""No document is valid."""
_LOWER = ("maxLength", "maximum", "exclusiveMaximum", "maxItems", "maxProperties")
_HIGHER = ("minLength", "minimum", "exclusiveMinimum", "minItems", "minProperties")
_OWN = frozenset({*_LOWER, *_HIGHER, "type", "required", "multipleOf", "uniqueItems"})
_TOGETHER = (
    ("properties", "patternProperties", "additionalProperties"),
    ("prefixItems", "items"),
    ("contains", "minContains", "maxContains"),
    ("if", "then", "else"),
    ("dependentRequired",),
    ("dependentSchemas",),
    ("propertyNames",),
)
_MAX_DEPTH = 40
_COST = 20
"""Steps: putting facts together takes longer than a look at a schema."""


class Facts:
    """Facts of one writer's documents; the same object for the same schema, so that recursion is noticed."""

    def __init__(self, documents: JsonDocuments, budget: Budget) -> None:
        self._documents = documents
        self._budget = budget
        self._known: dict[int, NormalizedSchema] = {}
        self._alternatives: dict[tuple[int, int], list[tuple[str, NormalizedSchema]]] = {}
        self._kept: list[Any] = []
        """What is known by its identity must stay."""

    def of(self, schema: Any, depth: int = 0) -> NormalizedSchema:
        self._budget.step()
        rules = self._documents.resolved(schema)
        if isinstance(rules, bool):
            return NormalizedSchema() if rules else NOTHING
        if rules is NOTHING or depth > _MAX_DEPTH:
            return NOTHING if rules is NOTHING else NormalizedSchema()
        if id(rules) not in self._known:
            self._known[id(rules)] = (
                NormalizedSchema()
            )  # while it is looked at: a schema that is part of itself says nothing more
            facts = self._gathered(rules, depth)
            self._known[id(rules)] = facts
            self._known[id(facts)] = facts
            self._kept += [rules, facts]
        return self._known[id(rules)]

    def _gathered(self, rules: NormalizedSchema, depth: int) -> NormalizedSchema:
        facts = NormalizedSchema({name: value for name, value in rules.items() if name in _OWN})
        closed = self._closed(rules)
        for names in _TOGETHER:
            facts |= {name: closed[name] for name in names if name in closed}
        if "type" in rules:
            facts["type"] = kinds_of(rules)
        if "const" in rules:
            facts["enum"] = [rules["const"]]
        elif "enum" in rules:
            facts["enum"] = rules["enum"]
        facts[PATTERNS] = [rules["pattern"]] if "pattern" in rules else []
        facts[EXCLUDED] = [rules["not"]] if "not" in rules else []
        facts[GROUPS] = [(name, rules[name]) for name in ("anyOf", "oneOf") if name in rules]
        for part in rules.get("allOf", ()):
            facts = intersection(facts, self.of(part, depth + 1))
        return facts

    def alternatives(self, facts: NormalizedSchema) -> list[tuple[str, NormalizedSchema]]:
        """Every document fits one of these at least; with the keyword and the number of each branch."""
        keyword, branches = facts[GROUPS][0]
        place = (id(facts), len(facts[GROUPS]))
        if place not in self._alternatives:
            rest = NormalizedSchema({**facts, GROUPS: facts[GROUPS][1:]})
            found = []
            for number, branch in enumerate(branches):
                self._budget.step(_COST + len(facts[GROUPS]))
                others = [each for each in branches if each is not branch] if keyword == "oneOf" else []
                one = intersection(rest, self.of(branch))
                if one is not NOTHING:
                    one = NormalizedSchema({**one, EXCLUDED: [*one.get(EXCLUDED, []), *others]})
                    self._known[id(one)] = one
                found.append((f"{keyword}/{number}", one))
            self._alternatives[place] = found
            self._kept += [facts, found]
        return self._alternatives[place]

    def of_kind(self, facts: NormalizedSchema, kind: str) -> NormalizedSchema:
        one = NormalizedSchema({**facts, "type": [kind]})
        self._known[id(one)] = one
        self._kept.append(one)
        return one

    def _closed(self, rules: NormalizedSchema) -> NormalizedSchema:
        """`unevaluatedProperties` and `unevaluatedItems` as what they say at least of properties and elements that no
        part of the schema can have evaluated."""
        out = NormalizedSchema(rules)
        if "unevaluatedProperties" in rules and "additionalProperties" not in rules:
            mentioned = _Mentioned(self._documents, rules, self._budget)
            if not mentioned.all_properties:
                names = dict.fromkeys(sorted(mentioned.names), True)
                patterns = dict.fromkeys(sorted(mentioned.patterns), True)
                out["properties"] = names | rules.get("properties", {})
                out["patternProperties"] = patterns | rules.get("patternProperties", {})
                out["additionalProperties"] = rules["unevaluatedProperties"]
        if "unevaluatedItems" in rules and "items" not in rules:
            mentioned = _Mentioned(self._documents, rules, self._budget)
            if not mentioned.all_items:
                own = rules.get("prefixItems", [])
                out["prefixItems"] = [*own, *[True] * (mentioned.first_items - len(own))]
                out["items"] = rules["unevaluatedItems"]
        return out


class _Mentioned:
    """The properties and elements that a schema, or any part of it that is about the same value, may evaluate."""

    def __init__(self, documents: JsonDocuments, rules: NormalizedSchema, budget: Budget) -> None:
        self._documents = documents
        self._budget = budget
        self._seen: list[Any] = []
        self.names: set[str] = set()
        self.patterns: set[str] = set()
        self.first_items = 0
        self.all_properties = self.all_items = False
        self._look(rules, outermost=True)

    def _look(self, rules: Any, *, outermost: bool = False) -> None:
        self._budget.step()
        if not isinstance(rules, dict) or any(rules is each for each in self._seen):
            return
        self._seen.append(rules)
        self.names.update(rules.get("properties", ()))
        self.patterns.update(rules.get("patternProperties", ()))
        self.first_items = max(self.first_items, len(rules.get("prefixItems", ())))
        inner_unevaluated = not outermost
        self.all_properties |= (
            UNDECIDABLE in rules
            or "additionalProperties" in rules
            or (inner_unevaluated and "unevaluatedProperties" in rules)
        )
        self.all_items |= (
            UNDECIDABLE in rules
            or "items" in rules
            or "contains" in rules
            or (inner_unevaluated and "unevaluatedItems" in rules)
        )
        for part in _parts(rules):
            self._look(self._documents.resolved(part))


def _parts(rules: dict[str, Any]) -> Iterator[Any]:
    for keyword in ("allOf", "anyOf", "oneOf"):
        yield from rules.get(keyword, ())
    for keyword in ("if", "then", "else", "not"):
        if keyword in rules:
            yield rules[keyword]
    yield from rules.get("dependentSchemas", {}).values()


def intersection(one: NormalizedSchema, two: NormalizedSchema) -> NormalizedSchema:
    """What is known if both hold."""
    if one is NOTHING or two is NOTHING:
        return NOTHING
    out = NormalizedSchema({**two, **one})
    for name in one.keys() & two.keys():  # any order
        if name in _LOWER:
            out[name] = min(one[name], two[name])
        elif name in _HIGHER:
            out[name] = max(one[name], two[name])
        elif name == "required":
            out[name] = list(dict.fromkeys([*one[name], *two[name]]))
        elif name in (EXCLUDED, GROUPS, PATTERNS):
            out[name] = [*one[name], *two[name]]
        elif name == "enum":
            out[name] = [value for value in one[name] if any(equal(value, other) for other in two[name])]
        elif name == "uniqueItems":
            out[name] = one[name] or two[name]
    if "type" in one and "type" in two:
        out["type"] = _kinds_of_both(one["type"], two["type"])
    for names in (("contains", "minContains", "maxContains"), ("if", "then", "else")):
        if names[0] in one:  # not some of one and some of the other
            for name in names:
                out.pop(name, None)
            out |= {name: one[name] for name in names if name in one}
    _properties_of_both(out, one, two)
    _items_of_both(out, one, two)
    if "dependentRequired" in one and "dependentRequired" in two:
        out["dependentRequired"] = _merged(one["dependentRequired"], two["dependentRequired"], lambda a, b: [*a, *b])
    if "dependentSchemas" in one and "dependentSchemas" in two:
        out["dependentSchemas"] = _merged(one["dependentSchemas"], two["dependentSchemas"], _all)
    if "propertyNames" in one and "propertyNames" in two:
        out["propertyNames"] = _all(one["propertyNames"], two["propertyNames"])
    return NOTHING if out.get("type") == [] or out.get("enum") == [] else out


def _kinds_of_both(one: Iterable[str], two: Iterable[str]) -> list[str]:
    def fits(kind: str, kinds: Iterable[str]) -> bool:
        return kind in kinds or (kind == "integer" and "number" in kinds)

    return [kind for kind in dict.fromkeys([*one, *two]) if fits(kind, one) and fits(kind, two)]


def _properties_of_both(out: NormalizedSchema, one: NormalizedSchema, two: NormalizedSchema) -> None:
    """`additionalProperties` of one of them: with the properties of both it says less than it did alone."""
    for name in ("properties", "patternProperties"):
        if name in one and name in two:
            out[name] = _merged(one[name], two[name], _all)


def _items_of_both(out: NormalizedSchema, one: NormalizedSchema, two: NormalizedSchema) -> None:
    if not ({"prefixItems", "items"} & one.keys() and {"prefixItems", "items"} & two.keys()):
        return
    count = max(len(each.get("prefixItems", ())) for each in (one, two))
    out["prefixItems"] = [_all(element(one, place), element(two, place)) for place in range(count)]
    out["items"] = _all(one.get("items", True), two.get("items", True))


def element(rules: NormalizedSchema, place: int) -> Any:
    """The schema of the element at this place."""
    first = rules.get("prefixItems", ())
    return first[place] if place < len(first) else rules.get("items", True)


def _merged(one: dict[str, Any], two: dict[str, Any], both: Any) -> dict[str, Any]:
    return {**two, **one, **{name: both(one[name], two[name]) for name in one if name in two}}


def _all(one: Any, two: Any) -> Any:
    if one is True or two is True or one is two:
        return two if one is True else one
    return NormalizedSchema({"allOf": [one, two]})
