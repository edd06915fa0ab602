"""A JSON Schema with the schemas that it refers to: where a `$ref` leads, and what a schema says once followed."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

MAIN = ""
_REFS = ("$ref", "$dynamicRef", "$recursiveRef")
_DATA = frozenset({"enum", "const", "default", "examples"})
"""Keywords whose values are no schemas."""


class UnknownReferenceError(Exception):
    """A `$ref` leads nowhere; the text says what to do."""


class Place(NamedTuple):
    """A schema, and the name of the document in which its own references are looked up."""

    schema: Any
    document: str


class JsonDocuments:
    def __init__(self, main: Any, others: Mapping[str, Any]) -> None:
        self.main = main
        self.others = others
        self._documents = {MAIN: main, **others}
        self._by_id: dict[str, str] = {}
        for name, document in self._documents.items():
            if isinstance(document, dict) and isinstance(document.get("$id"), str):
                self._by_id.setdefault(urldefrag(document["$id"])[0], name)

    @property
    def root(self) -> Place:
        return Place(self.main, MAIN)

    def referred_to(self) -> Iterator[Any]:
        """Where each reference leads; UnknownReferenceError for one that leads nowhere."""
        for name, document in self._documents.items():
            for schema in _schemas(document):
                for keyword in _REFS:
                    if isinstance(schema.get(keyword), str):
                        yield self._find(schema[keyword], name).schema

    def followed(self, place: Place) -> Place:
        """The schema behind a chain of references; what stands beside a `$ref` counts as well, as in newer drafts."""
        seen = []
        while isinstance(place.schema, dict):
            keyword = next((name for name in _REFS if isinstance(place.schema.get(name), str)), None)
            if keyword is None or (place.schema[keyword], place.document) in seen:
                return place
            seen.append((place.schema[keyword], place.document))
            target = self._find(place.schema[keyword], place.document)
            beside = {name: value for name, value in place.schema.items() if name != keyword and name in SAYING}
            if beside and target.document == place.document:
                return Place({"allOf": [target.schema, beside]}, place.document)
            place = target
        return place

    def _find(self, reference: str, document: str) -> Place:
        address, fragment = urldefrag(reference)
        name = self._document_named(address, document)
        if name is None:
            raise UnknownReferenceError(f"$ref {reference!r} leads to no schema: add a reference named {address!r}")
        schema: Any = self._documents[name]
        pointer = unquote(fragment)
        if not pointer.startswith("/"):
            return Place(_anchor(schema, pointer, reference) if pointer else schema, name)
        for part in pointer[1:].split("/"):
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(schema, dict) and key in schema:
                schema = schema[key]
            elif isinstance(schema, list) and key.isdecimal() and int(key) < len(schema):
                schema = schema[int(key)]
            else:
                raise UnknownReferenceError(f"$ref {reference!r} leads nowhere: there is no {key!r} on the way")
        return Place(schema, name)

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
    raise UnknownReferenceError(f"$ref {reference!r} leads nowhere: there is no anchor {name!r}")


def _schemas(node: Any) -> Iterator[dict[str, Any]]:
    """Every object within a schema that may be a schema."""
    if isinstance(node, dict):
        yield node
        for name, value in node.items():
            if name not in _DATA:
                yield from _schemas(value)
    elif isinstance(node, list):
        for value in node:
            yield from _schemas(value)


SAYING = frozenset(
    {
        "type", "enum", "const", "maxLength", "minLength", "pattern", "maximum", "minimum", "exclusiveMaximum",
        "exclusiveMinimum", "multipleOf", "items", "prefixItems", "additionalItems", "maxItems", "minItems",
        "uniqueItems", "contains", "properties", "patternProperties", "additionalProperties", "required",
        "maxProperties", "minProperties", "propertyNames", "dependencies", "dependentRequired", "dependentSchemas",
        "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "unevaluatedProperties", "unevaluatedItems",
    }
)  # fmt: skip
"""Keywords that decide what is valid; all others are remarks."""
