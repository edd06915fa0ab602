"""The registry of this process as a client of a registry: for parts that read schemas through `schemas`."""

from collections.abc import Callable
from typing import Any, TypeVar

from millstream.registry.errors import NotFoundError, RegistryError
from millstream.registry.protobuf.schema import SERIALIZED
from millstream.registry.records import StoredSchema, parse_subject
from millstream.registry.registry import Registry
from millstream.schemas.errors import RegistryError as ClientError
from millstream.schemas.errors import SchemaNotFoundError
from millstream.schemas.registry_client import Reference, RegisteredSchema, RegistryClient, Schema

Found = TypeVar("Found")


class LocalRegistryClient(RegistryClient):
    """Reads schemas with the permissions of `registry`. It writes nothing."""

    def __init__(self, registry: Registry) -> None:
        self.urls = ("the registry of this gateway",)
        self._registry = registry

    def schema_by_id(self, schema_id: int) -> Schema:
        return _schema(self._found(lambda: self._registry.by_id(schema_id)))

    def serialized_by_id(self, schema_id: int) -> Schema:
        def ask() -> Schema:
            stored = self._registry.by_id(schema_id)
            text = self._registry.rendered(stored, SERIALIZED) if stored.type == "PROTOBUF" else stored.text
            return Schema(text, stored.type, _schema(stored).references)

        return self._found(ask)

    def version(self, subject: str, version: int) -> RegisteredSchema:
        return _registered(self._found(lambda: self._registry.version(parse_subject(subject), version)))

    def latest(self, subject: str) -> RegisteredSchema:
        return _registered(self._found(lambda: self._registry.version(parse_subject(subject), None)))

    def _found(self, ask: Callable[[], Found]) -> Found:
        try:
            return self._registry.retry_if_missing(ask)
        except NotFoundError as error:
            raise SchemaNotFoundError(error.message, error.status, error.code) from None
        except RegistryError as error:
            raise ClientError(error.message, error.status, error.code) from None

    def _request(self, method: str, path: str, what: str, body: Any = None) -> Any:
        raise ClientError(f"{what}: this client reads schemas and does not write them")


def _schema(stored: StoredSchema) -> Schema:
    references = tuple(Reference(each.name, each.subject, each.version) for each in stored.references)
    return Schema(stored.text, stored.type, references)


def _registered(stored: StoredSchema) -> RegisteredSchema:
    return RegisteredSchema(str(stored.subject), stored.version, stored.id, _schema(stored))
