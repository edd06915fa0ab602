"""The messages of Kafka's wire, by API: their schemas, and which versions this broker speaks of each."""

from functools import cache
from importlib.resources import files

from millstream.formats.protocol.schema import Schema, split_entries


@cache
def _entries() -> dict[tuple[str, str], str]:
    return split_entries(files("millstream.formats.protocol").joinpath("wire.schema").read_text())


@cache
def request_schema(name: str) -> Schema:
    return Schema(_entries()["request", name])


@cache
def response_schema(name: str) -> Schema:
    return Schema(_entries()["response", name])
