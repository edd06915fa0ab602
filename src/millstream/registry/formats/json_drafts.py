"""The drafts of JSON Schema: which keywords count in which, and one way of writing what they say in several."""

from collections.abc import Mapping
from typing import Any

DRAFT_7, DRAFT_2019, DRAFT_2020 = 7, 2019, 2020
_NAMES = {
    "draft-03": 4,
    "draft-04": 4,
    "draft-06": 6,
    "draft-07": DRAFT_7,
    "2019-09": DRAFT_2019,
    "2020-12": DRAFT_2020,
}
_SINCE = {
    "const": 6, "contains": 6, "propertyNames": 6, "if": 7, "then": 7, "else": 7, "dependentRequired": 2019,
    "dependentSchemas": 2019, "minContains": 2019, "maxContains": 2019, "unevaluatedProperties": 2019,
    "unevaluatedItems": 2019, "prefixItems": 2020,
}  # fmt: skip
_UNTIL = {"dependencies": DRAFT_7, "additionalItems": DRAFT_2019}
NEWER = frozenset({*_UNTIL, *(name for name, draft in _SINCE.items() if draft > DRAFT_7)})
"""Keywords that do not count both in draft 7 and in the newest."""
SAYING = _SINCE.keys() | _UNTIL.keys() | {
    "type", "enum", "maxLength", "minLength", "pattern", "maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum",
    "multipleOf", "items", "maxItems", "minItems", "uniqueItems", "properties", "patternProperties",
    "additionalProperties", "required", "maxProperties", "minProperties", "allOf", "anyOf", "oneOf", "not",
}  # fmt: skip
"""Keywords that decide what is valid; all others are remarks."""


class Said(dict[str, Any]):
    """What a schema says, in the form of the newest draft: only keywords that count."""


def declared(document: Any) -> int | None:
    """The draft that a document names."""
    name = document.get("$schema") if isinstance(document, dict) else None
    if not isinstance(name, str):
        return None
    return next((draft for part, draft in _NAMES.items() if part in name), None)


def said(schema: Mapping[str, Any], draft: int) -> Said:
    """Of a schema without a `$ref`."""
    out = Said(
        {
            name: value
            for name, value in schema.items()
            if name in SAYING and _SINCE.get(name, 0) <= draft <= _UNTIL.get(name, draft)
        }
    )
    if draft < DRAFT_2020:
        _newer_items(out)
    _newer_dependencies(out)
    _newer_limits(out)
    if "if" not in out or not ("then" in out or "else" in out):
        _drop(out, "if", "then", "else")
    if "contains" not in out:
        _drop(out, "minContains", "maxContains")
    return out


def _newer_items(out: Said) -> None:
    others = out.pop("additionalItems", True)
    if isinstance(out.get("items"), list):
        out["prefixItems"], out["items"] = out["items"], others


def _newer_dependencies(out: Said) -> None:
    for name, wanted in out.pop("dependencies", {}).items():
        keyword = "dependentRequired" if isinstance(wanted, list) else "dependentSchemas"
        out[keyword] = {**out.get(keyword, {}), name: wanted}


def _newer_limits(out: Said) -> None:
    """Draft 4 says with true that a limit is itself out of bounds."""
    for limit, exclusive in (("maximum", "exclusiveMaximum"), ("minimum", "exclusiveMinimum")):
        flag = out.get(exclusive)
        if isinstance(flag, bool):
            del out[exclusive]
            if flag and limit in out:
                out[exclusive] = out.pop(limit)


def _drop(out: Said, *names: str) -> None:
    for name in names:
        out.pop(name, None)
