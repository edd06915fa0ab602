"""Message schemas, in the notation of `structure`, with the codecs made from them (`codec`).

One entry describes all versions of a message, as Kafka's definitions do. From the first flexible version on, lengths
are compact varints and every structure ends in its tagged fields.

A decoded message has the fields of *all* versions; fields that were not sent have their defaults. Encoding takes a
dictionary and sends the fields of the version. So a handler is written once for all versions. Codecs are compiled when
a version is first used.
"""

import struct
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from millstream.formats.protocol.codec import compile_reader, compile_writer
from millstream.formats.protocol.primitives import Cursor, MalformedMessage, Reader, Writer
from millstream.formats.protocol.structure import NEVER, Field, Message, Structure, VersionRange, parse_structure

__all__ = ["Field", "Message", "Schema", "Structure", "VersionRange", "split_entries"]


class Schema:
    """One message in all its versions."""

    def __init__(self, entry: str) -> None:
        head, *lines = entry.splitlines()
        words = head.split()
        self.kind, self.api_key, self.name = words[0], int(words[1]), words[2]
        self.versions = VersionRange.parse(words[3])
        flexible = next((w.partition(":")[2] for w in words[4:] if w.startswith("flexible:")), None)
        self.flexible = VersionRange.parse(flexible) if flexible else NEVER
        self._lines = lines
        self._root: Structure | None = None
        self._readers: dict[int, Reader] = {}
        self._writers: dict[int, Writer] = {}

    @property
    def root(self) -> Structure:
        """The fields. They are parsed on first use: a node registers 90 APIs, and most are used rarely."""
        if self._root is None:
            self._root = parse_structure(self.name, self._lines)
        return self._root

    def is_flexible(self, version: int) -> bool:
        return self.flexible.low <= version <= self.flexible.high

    def read(self, cursor: Cursor, version: int) -> Message:
        """Decodes one message at the cursor; raises MalformedMessage for invalid bytes."""
        reader = self._readers.get(version)
        if reader is None:
            reader = self._readers[version] = compile_reader(self.root, version, self.is_flexible(version))
        message: Message = reader(cursor)
        return message

    def decode(self, data: bytes | bytearray | memoryview, version: int) -> Message:
        """Decodes bytes that contain only this message."""
        cursor = Cursor(data)
        message = self.read(cursor, version)
        if cursor.position != cursor.end:
            raise MalformedMessage(f"{cursor.end - cursor.position} bytes left over after {self.name} v{version}")
        return message

    def write(self, out: bytearray, values: Mapping[str, Any], version: int) -> None:
        writer = self._writers.get(version)
        if writer is None:
            writer = self._writers[version] = compile_writer(self.root, version, self.is_flexible(version))
        try:
            writer(out, values)
        except struct.error as error:
            raise ValueError(f"{self.name} v{version}: a value does not fit its field: {error}") from error

    def encode(self, values: Mapping[str, Any], version: int) -> bytes:
        out = bytearray()
        self.write(out, values, version)
        return bytes(out)


def split_entries(text: str) -> dict[tuple[str, str], str]:
    """The entries of a schema file, by kind and name; each is parsed when it is first used."""
    entries = {}
    for block in text.split("\n\n"):
        entry = "\n".join(line for line in block.splitlines() if not line.startswith("#"))
        if entry:
            kind, _, name, _ = entry.split(None, 3)
            entries[kind, name] = entry
    return entries


@cache
def _entries() -> dict[tuple[str, str], str]:
    return split_entries(files("millstream.formats.protocol").joinpath("wire.schema").read_text())


@cache
def request_schema(name: str) -> Schema:
    return Schema(_entries()["request", name])


@cache
def response_schema(name: str) -> Schema:
    return Schema(_entries()["response", name])
