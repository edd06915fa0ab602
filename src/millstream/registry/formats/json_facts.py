"""What is known of every document that a writer's JSON Schema lets through.

All parts of `allOf` and what references lead to are put together into one schema without them. It may say less than the
parts do, never more: whatever holds for it holds for the documents. `properties`, `patternProperties` and
`additionalProperties` depend on each other, as do `prefixItems` and `items`, so they are taken together.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from millstream.registry.formats.json_documents import UNDECIDABLE, JsonDocuments
from millstream.registry.formats.json_drafts import Said
from millstream.registry.formats.json_validity import equal, kinds_of
from millstream.registry.formats.schema import Budget

EXCLUDED = "$excluded"
"""Schemas for which no document is valid."""
GROUPS = "$groups"
"""Each a keyword, `anyOf` or `oneOf`, and its branches."""
PATTERNS = "$patterns"
"""Every string matches all of them."""
NOTHING = Said({"$never": True})
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
        self._known: dict[int, Said] = {}
        self._alternatives: dict[tuple[int, int], list[tuple[str, Said]]] = {}
        self._kept: list[Any] = []
        """What is known by its identity must stay."""

    def of(self, schema: Any, depth: int = 0) -> Said:
        self._budget.step()
        rules = self._documents.followed(schema)
        if isinstance(rules, bool):
            return Said() if rules else NOTHING
        if rules is NOTHING or depth > _MAX_DEPTH:
            return NOTHING if rules is NOTHING else Said()
        if id(rules) not in self._known:
            self._known[id(rules)] = Said()  # while it is looked at: a schema that is part of itself says nothing more
            facts = self._gathered(rules, depth)
            self._known[id(rules)] = facts
            self._known[id(facts)] = facts
            self._kept += [rules, facts]
        return self._known[id(rules)]

    def _gathered(self, rules: Said, depth: int) -> Said:
        facts = Said({name: value for name, value in rules.items() if name in _OWN})
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
            facts = together(facts, self.of(part, depth + 1))
        return facts

    def alternatives(self, facts: Said) -> list[tuple[str, Said]]:
        """Every document fits one of these at least; with the keyword and the number of each branch."""
        keyword, branches = facts[GROUPS][0]
        place = (id(facts), len(facts[GROUPS]))
        if place not in self._alternatives:
            rest = Said({**facts, GROUPS: facts[GROUPS][1:]})
            found = []
            for number, branch in enumerate(branches):
                self._budget.step(_COST + len(facts[GROUPS]))
                others = [each for each in branches if each is not branch] if keyword == "oneOf" else []
                one = together(rest, self.of(branch))
                if one is not NOTHING:
                    one = Said({**one, EXCLUDED: [*one.get(EXCLUDED, []), *others]})
                    self._known[id(one)] = one
                found.append((f"{keyword}/{number}", one))
            self._alternatives[place] = found
            self._kept += [facts, found]
        return self._alternatives[place]

    def of_kind(self, facts: Said, kind: str) -> Said:
        one = Said({**facts, "type": [kind]})
        self._known[id(one)] = one
        self._kept.append(one)
        return one

    def _closed(self, rules: Said) -> Said:
        """`unevaluatedProperties` and `unevaluatedItems` as what they say at least of properties and elements that no
        part of the schema can have evaluated."""
        out = Said(rules)
        if "unevaluatedProperties" in rules and "additionalProperties" not in rules:
            mentioned = _Mentioned(self._documents, rules, self._budget)
            if not mentioned.all_properties:
                names, patterns = dict.fromkeys(mentioned.names, True), dict.fromkeys(mentioned.patterns, True)
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

    def __init__(self, documents: JsonDocuments, rules: Said, budget: Budget) -> None:
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
            self._look(self._documents.followed(part))


def _parts(rules: dict[str, Any]) -> Iterator[Any]:
    for keyword in ("allOf", "anyOf", "oneOf"):
        yield from rules.get(keyword, ())
    for keyword in ("if", "then", "else", "not"):
        if keyword in rules:
            yield rules[keyword]
    yield from rules.get("dependentSchemas", {}).values()


def together(one: Said, two: Said) -> Said:
    """What is known if both hold."""
    if one is NOTHING or two is NOTHING:
        return NOTHING
    out = Said({**two, **one})
    for name in one.keys() & two.keys():
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


def _properties_of_both(out: Said, one: Said, two: Said) -> None:
    """`additionalProperties` of one of them: with the properties of both it says less than it did alone."""
    for name in ("properties", "patternProperties"):
        if name in one and name in two:
            out[name] = _merged(one[name], two[name], _all)


def _items_of_both(out: Said, one: Said, two: Said) -> None:
    if not ({"prefixItems", "items"} & one.keys() and {"prefixItems", "items"} & two.keys()):
        return
    count = max(len(each.get("prefixItems", ())) for each in (one, two))
    out["prefixItems"] = [_all(element(one, place), element(two, place)) for place in range(count)]
    out["items"] = _all(one.get("items", True), two.get("items", True))


def element(rules: Said, place: int) -> Any:
    """The schema of the element at this place."""
    first = rules.get("prefixItems", ())
    return first[place] if place < len(first) else rules.get("items", True)


def _merged(one: dict[str, Any], two: dict[str, Any], both: Any) -> dict[str, Any]:
    return {**two, **one, **{name: both(one[name], two[name]) for name in one.keys() & two.keys()}}


def _all(one: Any, two: Any) -> Any:
    if one is True or two is True or one is two:
        return two if one is True else one
    return Said({"allOf": [one, two]})
