"""`millstream schema`: subjects and schemas of a schema registry with Confluent's API."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli import exit_codes
from millstream.cli.options import Json
from millstream.cli.terminal import CommandFailedError, complain, print_json, print_table
from millstream.common.secret_references import SecretError, has_reference, resolve_all

if TYPE_CHECKING:
    from millstream.schemas.registry_client import RegisteredSchema, RegistryClient, Schema

app = typer.Typer(help="List, register, check and get schemas of a schema registry.", no_args_is_help=True)

DEFAULT_REGISTRY = "http://127.0.0.1:8081"
_KINDS = {".avsc": "AVRO", ".avro": "AVRO", ".proto": "PROTOBUF", ".json": "JSON"}

RegistryUrl = Annotated[
    str,
    typer.Option("--registry", "-r", envvar="MILLSTREAM_REGISTRY", metavar="URL", help="URL of the schema registry."),
]
User = Annotated[
    str | None,
    typer.Option(
        "--user",
        envvar="MILLSTREAM_REGISTRY_USER",
        metavar="NAME:PASSWORD",
        help="Credentials for basic authentication: in the variable, or as '${file:/path}'.",
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="MILLSTREAM_REGISTRY_TOKEN",
        metavar="TOKEN",
        help="Token for bearer authentication: in the variable, or as '${file:/path}'.",
    ),
]
Ca = Annotated[str | None, typer.Option("--ca", metavar="FILE", help="CA certificate file (PEM) for HTTPS.")]
Timeout = Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="Timeout of each request.")]
SubjectArgument = Annotated[
    str, typer.Argument(metavar="SUBJECT", help="Subject, such as orders-value.", show_default=False)
]
FileArgument = Annotated[
    str,
    typer.Argument(metavar="FILE", help="Schema file: .avsc, .json or .proto; - for stdin.", show_default=False),
]
Kind = Annotated[
    str | None,
    typer.Option("--type", metavar="TYPE", help="Schema type: AVRO, JSON or PROTOBUF. [default: by the file name]"),
]
References = Annotated[
    list[str] | None,
    typer.Option(
        "--reference",
        metavar="NAME=SUBJECT:VERSION",
        help="Referenced schema. Repeatable.",
    ),
]
DEFAULT_TIMEOUT_SECONDS = 20.0


@app.command("list")
def list_subjects(
    subject: Annotated[
        str | None, typer.Argument(metavar="[SUBJECT]", help="Subject whose versions are listed.")
    ] = None,
    registry: RegistryUrl = DEFAULT_REGISTRY,
    user: User = None,
    token: Token = None,
    ca: Ca = None,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    json: Json = False,
) -> None:
    """List subjects, or the versions of one.

    \b
    Examples:
      millstream schema list
      millstream schema list orders-value --json
    """
    with _client(registry, user, token, ca, timeout) as client:
        if subject is None:
            rows = [client.latest(name) for name in client.subjects()]
        else:
            rows = [client.version(subject, version) for version in client.versions(subject)]
    if json:
        print_json([_document(row) for row in rows])
    else:
        print_table(
            ["subject", "version", "id", "type"], [(row.subject, row.version, row.id, row.schema.kind) for row in rows]
        )


@app.command()
def register(
    subject: SubjectArgument,
    file: FileArgument,
    kind: Kind = None,
    references: References = None,
    registry: RegistryUrl = DEFAULT_REGISTRY,
    user: User = None,
    token: Token = None,
    ca: Ca = None,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    json: Json = False,
) -> None:
    """Register a schema as the next version of a subject, and print its id. The same schema keeps its id.

    \b
    Examples:
      millstream schema register orders-value order.avsc
      millstream schema register orders-value order.proto --reference money.proto=money:1
    """
    schema = _read(file, kind, references)
    with _client(registry, user, token, ca, timeout) as client:
        schema_id = client.register(subject, schema)
    print_json({"id": schema_id, "subject": subject}) if json else print(schema_id)


@app.command()
def check(
    subject: SubjectArgument,
    file: FileArgument,
    version: Annotated[
        str | None,
        typer.Option(
            "--version",
            metavar="VERSION",
            help="Version to compare with: a number, or latest. [default: by the compatibility level]",
        ),
    ] = None,
    kind: Kind = None,
    references: References = None,
    registry: RegistryUrl = DEFAULT_REGISTRY,
    user: User = None,
    token: Token = None,
    ca: Ca = None,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    json: Json = False,
) -> None:
    """Check whether a schema is compatible with a subject. Exit code 1 if it is not.

    \b
    Example:
      millstream schema check orders-value order.avsc
    """
    schema = _read(file, kind, references)
    with _client(registry, user, token, ca, timeout) as client:
        messages = client.check(subject, schema, version)
    if json:
        print_json({"subject": subject, "compatible": not messages, "messages": messages})
    elif not messages:
        print("compatible")
    for message in [] if json else messages:
        complain(message)
    if messages:
        raise typer.Exit(exit_codes.FAILED)


@app.command()
def get(
    wanted: Annotated[
        str, typer.Argument(metavar="SUBJECT|ID", help="Subject, or id of a schema.", show_default=False)
    ],
    version: Annotated[
        int | None, typer.Option("--version", metavar="NUMBER", help="Version of the subject. [default: the latest]")
    ] = None,
    registry: RegistryUrl = DEFAULT_REGISTRY,
    user: User = None,
    token: Token = None,
    ca: Ca = None,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    json: Json = False,
) -> None:
    """Print a schema by id, or a version of a subject.

    \b
    Examples:
      millstream schema get orders-value
      millstream schema get orders-value --version 2
      millstream schema get 17
    """
    with _client(registry, user, token, ca, timeout) as client:
        if wanted.isdecimal() and version is None:
            schema = client.schema_by_id(int(wanted))
            document: dict[str, Any] = {"id": int(wanted)} | _content(schema)
        else:
            found = client.latest(wanted) if version is None else client.version(wanted, version)
            schema, document = found.schema, _document(found)
    print_json(document) if json else print(schema.text.rstrip("\n"))


def _secret(option: str, value: str | None, variable: str) -> str | None:
    """The value of an option that holds a secret: from the environment, or a reference to a file."""
    if value is None or value == os.environ.get(variable):
        return value
    if not has_reference(value):
        raise CommandFailedError(
            f"{option}: the process list would show this secret to every user of the machine: set ${variable}, or write"
            f" {option} '${{file:/path}}'",
            exit_codes.USAGE,
        )
    try:
        return resolve_all({option: value})[option]
    except SecretError as error:
        raise CommandFailedError(str(error), exit_codes.USAGE) from error


@contextmanager
def _client(
    registry: str, user: str | None, token: str | None, ca: str | None, timeout: float
) -> "Iterator[RegistryClient]":
    """A client of the registry. Its errors become a line on stderr and an exit code."""
    try:
        from millstream.schemas import errors
        from millstream.schemas.registry_client import RegistryAuth, RegistryClient
    except ImportError as error:
        raise CommandFailedError(
            f"schemas need more packages ({error.name}): pip install 'millstream[spark]'"
        ) from error
    user, token = (
        _secret("--user", user, "MILLSTREAM_REGISTRY_USER"),
        _secret("--token", token, "MILLSTREAM_REGISTRY_TOKEN"),
    )
    name, colon, password = (user or "").partition(":")
    if user is not None and not colon:
        raise CommandFailedError("--user: write NAME:PASSWORD", exit_codes.USAGE)
    try:
        yield RegistryClient(registry, RegistryAuth(name or None, password, token), timeout_s=timeout, ca_file=ca)
    except errors.SchemaNotFoundError as error:
        raise CommandFailedError(str(error), exit_codes.NOT_FOUND) from error
    except errors.RegistryUnreachableError as error:
        raise CommandFailedError(str(error), exit_codes.NO_BROKER) from error
    except errors.SchemaError as error:
        raise CommandFailedError(str(error)) from error


def _read(file: str, kind: str | None, references: list[str] | None) -> "Schema":
    try:
        from millstream.schemas.registry_client import Reference, Schema
    except ImportError as error:
        raise CommandFailedError(
            f"schemas need more packages ({error.name}): pip install 'millstream[spark]'"
        ) from error
    found = (kind or _KINDS.get(Path(file).suffix.lower(), "")).upper()
    if found not in _KINDS.values():
        what = f"--type {kind}" if kind else f"the type of {file} is not known"
        raise CommandFailedError(f"{what}: give --type AVRO, JSON or PROTOBUF", exit_codes.USAGE)
    rows = []
    for word in references or []:
        name, _, target = word.partition("=")
        subject, _, version = target.rpartition(":")
        if not (name and subject and version.isdecimal()):
            raise CommandFailedError(f"--reference {word}: write NAME=SUBJECT:VERSION", exit_codes.USAGE)
        rows.append(Reference(name, subject, int(version)))
    text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    return Schema(text, found, tuple(rows))


def _document(row: "RegisteredSchema") -> dict[str, Any]:
    return {"subject": row.subject, "version": row.version, "id": row.id} | _content(row.schema)


def _content(schema: "Schema") -> dict[str, Any]:
    references = [{"name": row.name, "subject": row.subject, "version": row.version} for row in schema.references]
    return {"type": schema.kind, "schema": schema.text} | ({"references": references} if references else {})
