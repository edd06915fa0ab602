"""A JSON Schema with the schemas that it refers to: where a `$ref` leads, and what a schema says once followed."""

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from millstream.registry.formats.json_drafts import DRAFT_7, DRAFT_2019, NEWER, SAYING, Said, declared, said

MAIN = ""
_REFS = ("$ref", "$dynamicRef", "$recursiveRef")
_DATA = frozenset({"enum", "const", "default", "examples"})
"""Keywords whose values are no schemas."""
UNDECIDABLE = "$undecidable"
"""Said by a schema that means something else in each place where it is used."""


class UnknownReferenceError(Exception):
    """A `$ref` leads nowhere; the text says what to do."""


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
            or ("$ref" in schema and not SAYING.isdisjoint(schema))
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

    def followed(self, schema: Any) -> Any:
        """What a schema says behind its references: a `Said`, true or false; the same object for the same schema."""
        if not isinstance(schema, dict) or isinstance(schema, Said):
            return schema
        if id(schema) not in self._followed:
            self._followed[id(schema)] = Said({UNDECIDABLE: True})  # while it is looked at: a reference to itself
            self._followed[id(schema)] = self._said(schema)
        return self._followed[id(schema)]

    def _said(self, schema: dict[str, Any]) -> Any:
        document = self._home[id(schema)]
        draft = self._drafts[document]
        keyword = next((name for name in _REFS if isinstance(schema.get(name), str)), None)
        if keyword is None:
            return said(schema, draft)
        beside = said(schema, draft) if draft >= DRAFT_2019 else Said()
        # Others are dynamic: they lead elsewhere when another document refers to this one.
        target = self._find(schema["$ref"], document) if keyword == "$ref" else Said({UNDECIDABLE: True})
        return Said({"allOf": [target, beside]}) if beside else self.followed(target)

    def _find(self, reference: str, document: str) -> Any:
        address, fragment = urldefrag(reference)
        name = self._document_named(address, document)
        if name is None:
            raise UnknownReferenceError(f"$ref {reference!r} leads to no schema: add a reference named {address!r}")
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
                raise UnknownReferenceError(f"$ref {reference!r} leads nowhere: there is no {key!r} on the way")
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
    raise UnknownReferenceError(f"$ref {reference!r} leads nowhere: there is no anchor {name!r}")


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
