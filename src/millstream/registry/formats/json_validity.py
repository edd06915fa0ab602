"""Whether one value is valid for a JSON Schema. Where that cannot be told, it is an error and no guess."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import re2

from millstream.registry.formats.json_documents import UNDECIDABLE, JsonDocuments
from millstream.registry.formats.json_drafts import Said
from millstream.registry.formats.schema import Budget

_QUIET = re2.Options()
_QUIET.log_errors = False
_LIMITS = ("maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum", "multipleOf")
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


class UndecidableError(Exception):
    """It takes more than this to tell."""


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


def kinds_of(schema: Said) -> list[str]:
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
        rules = self._documents.followed(schema)
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
        checks: dict[str, Callable[[Said, Any], bool]] = {
            "integer": _number, "number": _number, "string": _string, "array": self._array, "object": self._object
        }  # fmt: skip
        return (kind not in checks or checks[kind](rules, value)) and self._combined(rules, value)

    def _combined(self, rules: Said, value: Any) -> bool:
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

    def _array(self, rules: Said, value: list[Any]) -> bool:
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

    def _object(self, rules: Said, value: dict[str, Any]) -> bool:
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


def _of_property(rules: Said, name: str) -> list[Any]:
    found = [rules["properties"][name]] if name in rules.get("properties", {}) else []
    for pattern, schema in rules.get("patternProperties", {}).items():
        matching = matches(pattern, name)
        if matching is None:
            raise UndecidableError
        if matching:
            found.append(schema)
    return found or [rules.get("additionalProperties", True)]


def _string(rules: Said, value: str) -> bool:
    if not rules.get("minLength", 0) <= len(value) <= rules.get("maxLength", len(value)):
        return False
    if "pattern" not in rules:
        return True
    matching = matches(rules["pattern"], value)
    if matching is None:
        raise UndecidableError
    return matching


def _number(rules: Said, value: float) -> bool:
    exact = Fraction(str(value))
    limits = {name: Fraction(str(rules[name])) for name in _LIMITS if name in rules}
    return (
        exact <= limits.get("maximum", exact)
        and exact >= limits.get("minimum", exact)
        and ("exclusiveMaximum" not in limits or exact < limits["exclusiveMaximum"])
        and ("exclusiveMinimum" not in limits or exact > limits["exclusiveMinimum"])
        and ("multipleOf" not in limits or exact % limits["multipleOf"] == 0)
    )
