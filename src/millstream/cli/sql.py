"""`millstream sql`: runs a query over topics, or writes the pipeline file for it (docs/sql.md)."""

import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from millstream.cli import exit_codes
from millstream.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_SECONDS,
    Bootstrap,
    ClientSettings,
    Timeout,
    open_cluster,
    parsed_duration,
)
from millstream.cli.schema import DEFAULT_REGISTRY
from millstream.cli.terminal import CommandFailedError, note, print_table, progress

if TYPE_CHECKING:
    from millstream.schemas.registry_client import RegistryClient
    from millstream.sql.query import Limits, Query, Result

_FORMATS = ("table", "json", "csv", "parquet")
_PROBE_SECONDS = 0.5


def sql(
    query: Annotated[
        str | None, typer.Argument(metavar="QUERY", help="A SELECT over topics.", show_default=False)
    ] = None,
    file: Annotated[
        str | None, typer.Option("--file", "-f", metavar="FILE", help="File with the query; - is stdin.")
    ] = None,
    last: Annotated[
        int | None, typer.Option("--last", metavar="N", min=1, help="Read the newest N records of each topic.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Read records since a time, @milliseconds, or an age (1h)."),
    ] = None,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Read all records.")] = False,
    form: Annotated[
        str | None, typer.Option("--format", "-F", metavar="FORMAT", help="table, json (lines), csv or parquet.")
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Write the rows to a file.")
    ] = None,
    as_pipeline: Annotated[
        str | None,
        typer.Option(
            "--as-pipeline", metavar="FILE", help="Do not run it: write the Spark pipeline for it. - is stdout."
        ),
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="TOPIC", help="With --as-pipeline: the topic for the rows.")
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option(
            "--registry",
            "-r",
            envvar="MILLSTREAM_REGISTRY",
            metavar="URL",
            help=f"URL of the schema registry. [default: {DEFAULT_REGISTRY}, if it responds]",
        ),
    ] = None,
    registry_user: Annotated[
        str | None,
        typer.Option(
            "--registry-user",
            envvar="MILLSTREAM_REGISTRY_USER",
            metavar="NAME:PASSWORD",
            help="Credentials at the registry.",
        ),
    ] = None,
    max_time: Annotated[str, typer.Option("--max-time", metavar="DURATION", help="End the query after this.")] = "60s",
    memory: Annotated[
        str, typer.Option("--memory", metavar="SIZE", help="Most memory for records, and again for the query.")
    ] = "1 GB",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Run a SQL query over topics. Names of topics are tables; joins work.

    Columns are the fields of the value (by its schema in the registry, else by its JSON, else `value` as text), and
    _key, _topic, _partition, _offset, _timestamp, _headers, _error. Reads the newest 1,000,000 records of each topic
    unless --last, --since or --from-beginning says otherwise. Ctrl-C cancels.

    \b
    Examples:
      millstream sql "select * from orders limit 10"
      millstream sql "select customer, sum(total) from orders group by all order by 2 desc" --since 1h
      millstream sql "select * from orders join payments using (order_id)" --format csv -o rows.csv
      millstream sql 'select count(*) from "my-topic" where _partition = 0' --from-beginning
      millstream sql "select * from orders where total > 100" --as-pipeline large.yaml --to large-orders
    """
    text = _text(query, file)
    chosen = _format(form, output)
    seconds = parsed_duration("--max-time", max_time) / 1000
    with _failures(), open_cluster(bootstrap, timeout, settings) as cluster:
        limits = _limits(last, since, from_beginning, memory)
        from millstream.sql.errors import Stop
        from millstream.sql.query import Access, Query

        url = _registry_url(registry)
        access = Access(_registry(url, registry_user, timeout))
        with progress() as display:
            tasks: dict[str, Any] = {}

            def shown(topic: str, done: int, total: int) -> None:
                if display is not None:
                    if topic not in tasks:
                        tasks[topic] = display.add_task(topic, total=total, info="")
                    display.update(tasks[topic], completed=done)

            prepared = Query(cluster, text, access=access, limits=limits, stop=Stop(seconds), progress=shown)
            if as_pipeline is not None:
                _write_pipeline(prepared, as_pipeline, bootstrap, url, to)
                return
            if to is not None:
                raise CommandFailedError("--to needs --as-pipeline: a query only reads", exit_codes.USAGE)
            with prepared.run() as result:
                if display is not None:
                    display.stop()
                count = _write(result, chosen, output)
        _summary(result, count)


def _text(query: str | None, file: str | None) -> str:
    if (query is None) == (file is None):
        raise CommandFailedError("give a query, or --file", exit_codes.USAGE)
    if file is None:
        assert query is not None
        return query
    try:
        if file == "-":
            return sys.stdin.read()
        with open(file, encoding="utf-8") as opened:
            return opened.read()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailedError(f"--file {file}: {error}", exit_codes.USAGE) from None


def _format(form: str | None, output: str | None) -> str:
    if form is None and output is not None:
        form = output.rpartition(".")[2].lower()
        form = {"jsonl": "json", "ndjson": "json"}.get(form, form)
        if form not in _FORMATS:
            raise CommandFailedError(f"--output {output}: add --format json, csv or parquet", exit_codes.USAGE)
    form = form or "table"
    if form not in _FORMATS:
        raise CommandFailedError(f"--format {form}: write {', '.join(_FORMATS)}", exit_codes.USAGE)
    if form == "parquet" and output is None and sys.stdout.isatty():
        raise CommandFailedError("--format parquet is not for a terminal: add --output FILE", exit_codes.USAGE)
    return form


def _limits(last: int | None, since: str | None, from_beginning: bool, memory: str) -> "Limits":
    from millstream.common.quantities import parse_size
    from millstream.sql.errors import SqlError
    from millstream.sql.query import Limits
    from millstream.sql.reading import window_of

    try:
        window = window_of(last, since, from_beginning)
    except SqlError as error:
        raise CommandFailedError(f"--{error}", exit_codes.USAGE) from None
    try:
        size_bytes = parse_size(memory)
    except ValueError as error:
        raise CommandFailedError(f"--memory {error}", exit_codes.USAGE) from None
    return Limits(window, size_bytes, max(64 << 20, size_bytes))


def _registry_url(given: str | None) -> str | None:
    """The given address, or the default one if something listens there."""
    if given is not None:
        return given
    split = urlsplit(DEFAULT_REGISTRY)
    try:
        with socket.create_connection((split.hostname or "localhost", split.port or 80), _PROBE_SECONDS):
            return DEFAULT_REGISTRY
    except OSError:
        return None


def _registry(url: str | None, user: str | None, timeout: float) -> "RegistryClient | None":
    if url is None:
        return None
    from millstream.schemas.registry_client import RegistryAuth, RegistryClient

    name, _, password = (user or "").partition(":")
    return RegistryClient(url, RegistryAuth(name or None, password), timeout_s=timeout)


@contextmanager
def _failures() -> Iterator[None]:
    """Errors as a line on stderr and an exit code."""
    try:
        from millstream.schemas.errors import SchemaError
        from millstream.sql.errors import NotInstalledError, SqlError
        from millstream.sql.query import Query  # noqa: F401 (pyarrow may be missing)
    except ImportError as error:
        raise CommandFailedError(
            f"SQL needs {error.name}, which is not installed: pip install 'millstream[sql]'", exit_codes.USAGE
        ) from None
    try:
        yield
    except NotInstalledError as error:
        raise CommandFailedError(str(error), exit_codes.USAGE) from None
    except (SqlError, SchemaError) as error:
        raise CommandFailedError(str(error)) from None


def _write(result: "Result", form: str, output: str | None) -> int:
    from millstream.sql.output import WRITERS, distinct, rows_of

    if form == "table":
        rows = [row for batch in result.batches for row in rows_of(batch)]
        print_table(distinct(result.schema.names), [[_cell(value) for value in row] for row in rows])
        return len(rows)
    if output is None:
        count = WRITERS[form](result.schema, result.batches, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return count
    unfinished = f"{output}.part"
    try:
        with open(unfinished, "wb") as file:
            count = WRITERS[form](result.schema, result.batches, file)
        os.replace(unfinished, output)
    except OSError as error:
        raise CommandFailedError(f"--output {output}: {error.strerror or error}") from None
    finally:
        if os.path.exists(unfinished):
            os.unlink(unfinished)
    return count


def _cell(value: Any) -> str | None:
    """A value as text: tables of other commands round numbers."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _write_pipeline(query: "Query", path: str, bootstrap: str, registry: str | None, topic: str | None) -> None:
    from millstream.sql.as_pipeline import pipeline_file

    columns = {name: query.columns(found) for name, found in query.topics.items()}
    text = pipeline_file(query.statement, columns, bootstrap=bootstrap, registry=registry, sink_topic=topic)
    if path == "-":
        print(text, end="")
        return
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise CommandFailedError(f"--as-pipeline {path}: the file exists; choose another name") from None
    except OSError as error:
        raise CommandFailedError(f"--as-pipeline {path}: {error.strerror or error}") from None
    note(f"written: {path}. Next: millstream pipeline validate {path}")


def _summary(result: "Result", count: int) -> None:
    for each in result.read:
        left = f", without {each.left_out:,} older ones (--from-beginning)" if each.left_out else ""
        note(f"{each.topic}: {each.records:,} records read, {each.format}{left}")
        for text in each.notes:
            print(f"millstream: note: {text}", file=sys.stderr)
    note(f"{count:,} rows")
