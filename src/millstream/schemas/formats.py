"""Formats of keys and values by name: what the Spark source and sink call to turn bytes into typed columns and back.

    format = make_format("avro", role="value", topic="orders", options={"registry.url": "http://localhost:8081"})
    format.arrow_type()                   # a struct type; the schema is chosen here, once
    rows, errors = format.decode(values)  # struct array, and a text for each record that could not be read
    format.encode(rows)                   # binary array

Formats pickle with the schema that was chosen: make and ask for the type where the query is planned, then send them.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Protocol

import pyarrow as pa

from millstream.schemas.errors import SchemaError
from millstream.schemas.registry_client import RegistryAuth, RegistryClient
from millstream.schemas.schema_choice import SchemaChoice

FORMATS = ("json", "avro", "protobuf")

OPTIONS = {
    "schema": "the schema itself: Spark DDL or a StructType's JSON or JSON Schema (json), Avro, .proto text",
    "subject": "the registry's subject; default: <topic>-key or <topic>-value",
    "message": "protobuf: the message's name; default: the first of the file",
    "register": "whether a schema may be registered when writing (true, false; default true)",
    "registry.url": "address of the schema registry; several are separated by commas",
    "registry.user": "user name at the registry",
    "registry.password": "the user's password",
    "registry.token": "bearer token, instead of user and password",
    "registry.ca": "PEM file with the certificates to trust",
    "registry.timeout.ms": "how long one question may take, retries included (default 20000)",
}


class Format(Protocol):
    def arrow_type(self) -> pa.StructType:
        """The columns; all of them nullable, the same on every call."""
        ...

    def decode(self, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Typed rows, and per row null or why it could not be read (the row is null then). A null value is a null row
        without an error. Only what is not the records' fault is raised: a registry that cannot be reached."""
        ...

    def encode(self, rows: pa.Array) -> pa.Array:
        """Records of a struct array; null for null rows. EncodingError names the row that does not fit."""
        ...


def make_format(
    kind: str,
    *,
    role: str = "value",
    topic: str | None = None,
    subject: str | None = None,
    registry_url: str | None = None,
    options: Mapping[str, str] | None = None,
) -> Format:
    """A format by name. `role`: key or value; `options` as in OPTIONS. SchemaError says what is wrong with them."""
    given = dict(options or {})
    for name in given:
        if name not in OPTIONS:
            near = get_close_matches(name, OPTIONS, 1, 0.5)
            raise SchemaError(
                f"A format has no option {name!r}; " + (f"did you mean {near[0]!r}?" if near else ", ".join(OPTIONS))
            )
    if kind not in FORMATS:
        near = get_close_matches(kind.lower(), FORMATS, 1, 0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(FORMATS)}."
        raise SchemaError(f"There is no format {kind!r}; {hint}")
    if role not in ("key", "value"):
        raise SchemaError(f"A format is of the key or the value, not of {role!r}.")
    subject = subject or given.get("subject") or (f"{topic}-{role}" if topic else None)
    url = registry_url or given.get("registry.url")
    choice = SchemaChoice(
        kind.upper(),
        subject,
        given.get("schema"),
        _client(url, given) if url else None,
        _boolean(given, "register"),
        role,
    )
    if choice.client is None and choice.given is None:
        raise SchemaError(
            f"The format {kind} needs to know its schema: give the schema registry's address, or the schema itself."
        )
    # Each only when it is used: they bring fastavro, orjson and protobuf with them.
    if kind == "json":
        from millstream.schemas.json_format import JsonFormat

        return JsonFormat(choice)
    if kind == "avro":
        from millstream.schemas.avro_format import AvroFormat

        return AvroFormat(choice)
    from millstream.schemas.protobuf_format import ProtobufFormat

    return ProtobufFormat(choice, given.get("message"))


def _client(url: str, options: Mapping[str, str]) -> RegistryClient:
    if "registry.token" in options and "registry.user" in options:
        raise SchemaError("Give registry.user and registry.password, or registry.token, not both.")
    auth = RegistryAuth(
        options.get("registry.user"), options.get("registry.password", ""), options.get("registry.token")
    )
    timeout = options.get("registry.timeout.ms", "20000")
    if not timeout.isdigit() or not int(timeout):
        raise SchemaError(f"registry.timeout.ms is {timeout!r}; it must be a number of milliseconds.")
    return RegistryClient(url, auth, timeout_s=int(timeout) / 1000, ca_file=options.get("registry.ca"))


def _boolean(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "true").lower()
    if text not in ("true", "false"):
        raise SchemaError(f"{name} is {text!r}; it must be true or false.")
    return text == "true"
