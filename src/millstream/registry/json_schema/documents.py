"""A JSON Schema with the schemas that it refers to, in the form of the newest draft, with `$ref`s resolved."""

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

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
VALIDATION_KEYWORDS = _SINCE.keys() | _UNTIL.keys() | {
    "type", "enum", "maxLength", "minLength", "pattern", "maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum",
    "multipleOf", "items", "maxItems", "minItems", "uniqueItems", "properties", "patternProperties",
    "additionalProperties", "required", "maxProperties", "minProperties", "allOf", "anyOf", "oneOf", "not",
}  # fmt: skip
"""Keywords that decide what is valid; all others are remarks."""


class NormalizedSchema(dict[str, Any]):
    """What a schema says, in the form of the newest draft: only keywords that count."""


def declared(document: Any) -> int | None:
    """The draft that a document names."""
    name = document.get("$schema") if isinstance(document, dict) else None
    if not isinstance(name, str):
        return None
    return next((draft for part, draft in _NAMES.items() if part in name), None)


def normalize(schema: Mapping[str, Any], draft: int) -> NormalizedSchema:
    """Of a schema without a `$ref`."""
    out = NormalizedSchema(
        {
            name: value
            for name, value in schema.items()
            if name in VALIDATION_KEYWORDS and _SINCE.get(name, 0) <= draft <= _UNTIL.get(name, draft)
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


def _newer_items(out: NormalizedSchema) -> None:
    others = out.pop("additionalItems", True)
    if isinstance(out.get("items"), list):
        out["prefixItems"], out["items"] = out["items"], others


def _newer_dependencies(out: NormalizedSchema) -> None:
    for name, wanted in out.pop("dependencies", {}).items():
        keyword = "dependentRequired" if isinstance(wanted, list) else "dependentSchemas"
        out[keyword] = {**out.get(keyword, {}), name: wanted}


def _newer_limits(out: NormalizedSchema) -> None:
    """Draft 4 says with true that a limit is itself out of bounds."""
    for limit, exclusive in (("maximum", "exclusiveMaximum"), ("minimum", "exclusiveMinimum")):
        flag = out.get(exclusive)
        if isinstance(flag, bool):
            del out[exclusive]
            if flag and limit in out:
                out[exclusive] = out.pop(limit)


def _drop(out: NormalizedSchema, *names: str) -> None:
    for name in names:
        out.pop(name, None)


MAIN = ""
_REFS = ("$ref", "$dynamicRef", "$recursiveRef")
_DATA = frozenset({"enum", "const", "default", "examples"})
"""Keywords whose values are no schemas."""
UNDECIDABLE = "$undecidable"
"""NormalizedSchema by a schema that means something else in each place where it is used."""


class UnknownReferenceError(Exception):
    """The target of a `$ref` does not exist; the text says what to do."""


class JsonDocuments:
    """Read as one draft, unless a document names its own."""

    def __init__(self, main: Any, others: Mapping[str, Any], draft: int = DRAFT_7) -> None:
        self.main = main
        self.others = others
        self.draft = declared(main) or draft
        self._documents = {MAIN: main, **others}
        self._drafts = {name: declared(document) or self.draft for name, document in self._documents.items()}
        self._by_id: dict[str, str] = {}
        for name, document in self._documents.items():
            if isinstance(document, dict) and isinstance(document.get("$id"), str):
                self._by_id.setdefault(urldefrag(document["$id"])[0], name)
        self._home = {
            id(schema): name for name, document in self._documents.items() for schema in _schemas(document, data=True)
        }
        """The document that a schema stands in, by identity: parts of schemas are put together without copying them."""
        self._followed: dict[int, Any] = {}

    @property
    def names_its_draft(self) -> bool:
        return all(declared(document) is not None for document in self._documents.values())

    @property
    def differs_by_draft(self) -> bool:
        """Whether it says something else in the newest draft than in draft 7."""
        return any(
            not NEWER.isdisjoint(schema)
            or isinstance(schema.get("items"), list)
            or ("$ref" in schema and not VALIDATION_KEYWORDS.isdisjoint(schema))
            for document in self._documents.values()
            for schema in _schemas(document)
        )

    def referred_to(self) -> Iterator[Any]:
        """Where each reference leads; UnknownReferenceError for one that leads nowhere."""
        for name, document in self._documents.items():
            for schema in _schemas(document):
                for keyword in _REFS:
                    if isinstance(schema.get(keyword), str):
                        yield self._find(schema[keyword], name)

    def resolved(self, schema: Any) -> Any:
        """The schema with its references resolved: a `NormalizedSchema`, true or false. Always the same object."""
        if not isinstance(schema, dict) or isinstance(schema, NormalizedSchema):
            return schema
        if id(schema) not in self._followed:
            self._followed[id(schema)] = NormalizedSchema(
                {UNDECIDABLE: True}
            )  # while it is looked at: a reference to itself
            self._followed[id(schema)] = self._said(schema)
        return self._followed[id(schema)]

    def _said(self, schema: dict[str, Any]) -> Any:
        document = self._home[id(schema)]
        draft = self._drafts[document]
        keyword = next((name for name in _REFS if isinstance(schema.get(name), str)), None)
        if keyword is None:
            return normalize(schema, draft)
        beside = normalize(schema, draft) if draft >= DRAFT_2019 else NormalizedSchema()
        # Others are dynamic: they have another target when another document refers to this one.
        target = self._find(schema["$ref"], document) if keyword == "$ref" else NormalizedSchema({UNDECIDABLE: True})
        return NormalizedSchema({"allOf": [target, beside]}) if beside else self.resolved(target)

    def _find(self, reference: str, document: str) -> Any:
        address, fragment = urldefrag(reference)
        name = self._document_named(address, document)
        if name is None:
            raise UnknownReferenceError(f"$ref {reference!r} names no schema: add a reference named {address!r}")
        schema: Any = self._documents[name]
        pointer = unquote(fragment)
        if not pointer.startswith("/"):
            return _anchor(schema, pointer, reference) if pointer else schema
        for part in pointer[1:].split("/"):
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(schema, dict) and key in schema:
                schema = schema[key]
            elif isinstance(schema, list) and key.isdecimal() and int(key) < len(schema):
                schema = schema[int(key)]
            else:
                raise UnknownReferenceError(f"$ref {reference!r} is invalid: there is no {key!r} at this path")
        return schema

    def _document_named(self, address: str, document: str) -> str | None:
        if not address:
            return document
        here = self._documents[document]
        base = str(here.get("$id", "")) if isinstance(here, dict) else ""
        for name in (address, urljoin(base, address)):
            if name in self._documents:
                return name
            if name in self._by_id:
                return self._by_id[name]
        return None


def _anchor(schema: Any, name: str, reference: str) -> Any:
    for inner in _schemas(schema):
        if inner.get("$anchor") == name or inner.get("$dynamicAnchor") == name or inner.get("$id") == f"#{name}":
            return inner
    raise UnknownReferenceError(f"$ref {reference!r} is invalid: there is no anchor {name!r}")


def _schemas(node: Any, *, data: bool = False) -> Iterator[dict[str, Any]]:
    """Every object within a schema that may be a schema; with `data`, those within constants as well."""
    if isinstance(node, dict):
        yield node
        for name, value in node.items():
            if data or name not in _DATA:
                yield from _schemas(value, data=data)
    elif isinstance(node, list):
        for value in node:
            yield from _schemas(value, data=data)
