"""`millstream table`: keep topics as lake tables (Delta, Iceberg), verify, list and compact tables; replay them."""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli import exit_codes
from millstream.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_SECONDS,
    Bootstrap,
    ClientSettings,
    Json,
    Timeout,
    assignments,
    complete_topic,
    connection_settings,
    open_cluster,
    parsed_duration,
    parsed_time,
)
from millstream.cli.terminal import CommandFailedError, complain, note, print_json, print_table, progress

if TYPE_CHECKING:
    from millstream.lake.options import TableOptions
    from millstream.lake.table import LakeTable, RewriteResult, TableVersion
    from millstream.tables.verification import Report


app = typer.Typer(
    help="Keep topics as lake tables; verify, list, describe and compact tables; replay them into topics.",
    no_args_is_help=True,
)

TableArgument = Annotated[
    str, typer.Argument(metavar="TABLE", help="Directory or s3://BUCKET/PREFIX of the table.", show_default=False)
]
TableSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-o",
        metavar="NAME=VALUE",
        help="Option of format('millstream-table'), e.g. -o s3.endpoint=http://localhost:9000. Repeatable.",
    ),
]


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Turns errors of the package `lake` into a line on stderr and an exit code."""
    try:
        from millstream.lake.errors import LakeError, LakeOptionError, NoTableError
    except ImportError as error:
        raise _not_installed(error) from error
    try:
        yield
    except NoTableError as error:
        raise CommandFailedError(str(error), exit_codes.NOT_FOUND) from error
    except LakeOptionError as error:
        raise CommandFailedError(str(error), exit_codes.USAGE) from error
    except LakeError as error:
        raise CommandFailedError(str(error)) from error
    except ModuleNotFoundError as error:
        raise _not_installed(error) from error


def _not_installed(error: ImportError) -> CommandFailedError:
    return CommandFailedError(f"tables need more packages ({error.name}): pip install 'millstream[lake]'")


def _options(table: str, settings: list[str] | None) -> "TableOptions":
    from millstream.lake.options import parse_options

    return parse_options({"path": table, **assignments(settings, "--option")})


def _open(table: str, settings: list[str] | None) -> "LakeTable":
    from millstream.lake.table import open_table

    return open_table(_options(table, settings))


@app.command("list")
def list_tables(
    directory: Annotated[str, typer.Argument(metavar="DIRECTORY", help="Directory of tables, or s3://BUCKET.")] = ".",
    json: Json = False,
    settings: TableSettings = None,
) -> None:
    """List the tables in a directory.

    \b
    Examples:
      millstream table list /lake
      millstream table list s3://lake -o s3.endpoint=http://localhost:9000 --json
    """
    with _plain_errors():
        from millstream.lake.storage import Storage
        from millstream.lake.table import format_at

        root = Storage.at(directory, _options(directory, settings).s3)
        found = [name for name in root.subdirectories() if format_at(root.below(name)) is not None]
        tables = [_open(root.below(name).url, settings) for name in found]
        if json:
            print_json([summary_document(table) for table in tables])
        else:
            show_tables(tables)


@app.command()
def describe(table: TableArgument, json: Json = False, settings: TableSettings = None) -> None:
    """Show a table: format, version, columns, partitions, files, and the next offsets of its topics.

    \b
    Examples:
      millstream table describe /lake/orders
      millstream table describe /lake/orders --json
    """
    with _plain_errors():
        found = _open(table, settings)
        if json:
            print_json(description_document(found))
        else:
            show_description(found)


@app.command()
def history(
    table: TableArgument,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", help="Number of versions.", min=1)] = 20,
    json: Json = False,
    settings: TableSettings = None,
) -> None:
    """Show the versions of a table, newest first. The option version= reads one of them.

    \b
    Example:
      millstream table history /lake/orders -n 5
    """
    with _plain_errors():
        versions = _open(table, settings).history(limit)
        if json:
            print_json([version_document(version) for version in versions])
        else:
            show_history(versions)


@app.command()
def optimize(
    table: TableArgument,
    target_size: Annotated[str, typer.Option("--target-size", metavar="SIZE", help="Target size of files.")] = "128MB",
    sort: Annotated[
        list[str] | None,
        typer.Option("--sort", metavar="COLUMN", help="Column to sort by; rewrites all files. Repeatable."),
    ] = None,
    vacuum: Annotated[
        bool, typer.Option("--vacuum", help="Then delete unused files, and files of failed writes.")
    ] = False,
    retain: Annotated[
        str,
        typer.Option(
            "--retain", metavar="AGE", help="With --vacuum: keep files younger than this, which readers may still use."
        ),
    ] = "7d",
    json: Json = False,
    settings: TableSettings = None,
) -> None:
    """Rewrite small files into larger ones, while others read and write. No row is lost or duplicated.

    Rows keep their partition and, without --sort, their order. With --vacuum,
    versions older than --retain cannot be read any more.

    \b
    Examples:
      millstream table optimize /lake/orders
      millstream table optimize /lake/orders --target-size 512MB --sort customer
      millstream table optimize /lake/orders --vacuum --retain 2d
    """
    with _plain_errors():
        from millstream.lake.options import parse_size

        size = parse_size(target_size, "--target-size")
        age = timedelta(milliseconds=parsed_duration("--retain", retain))
        found = _open(table, settings)
        with progress(wanted=not json, bytes_shown=found.format != "delta") as display:
            bar = None if display is None else display.add_task("rewriting", total=None, info="")

            def on_progress(now: int, total: int) -> None:
                if display is not None and bar is not None:
                    display.update(bar, completed=now, total=total)

            result = found.optimize(size, sort or (), on_progress)
        if vacuum:
            note("looking for unused files")
            result.deleted = found.vacuum(age)
        if json:
            print_json(rewritten_document(result))
        else:
            show_rewritten(result, vacuum=vacuum)


@app.command()
def backfill(
    table: TableArgument,
    to: Annotated[str, typer.Option("--to", metavar="TOPIC", help="Topic to write to.", autocompletion=complete_topic)],
    begin: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Time of the first records, by their timestamps.")
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", help="Time at which to stop; records at that time are not written."),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="COLUMN", help="Column for the key. [default: key, if it exists]"),
    ] = None,
    value_format: Annotated[
        str | None,
        typer.Option(
            "--value-format",
            metavar="json|raw",
            help="raw: the column value; json: an object of all columns. [default: raw, if value exists]",
        ),
    ] = None,
    order: Annotated[
        str | None,
        typer.Option(
            "--order",
            metavar="offset|timestamp",
            help="Order: by original offset or by timestamp."
            " [default: offset, if the table has offsets and --key is not given]",
        ),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start again from the first row, even if an earlier run wrote some.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    client_settings: ClientSettings = None,
    settings: TableSettings = None,
) -> None:
    """Write the rows of a table, or of a time range of it, to a topic. The order of each key is kept.

    Records and progress are written in transactions. After a crash the same
    command continues; if everything is written, it changes nothing. Consumers of
    committed records see each row once.

    \b
    Examples:
      millstream table backfill /lake/orders --to orders-again
      millstream table backfill /lake/orders --to january --from 2026-01-01 --until 2026-02-01
      millstream table backfill /lake/sales --to sales --key customer --value-format json
    """
    with _plain_errors():
        from millstream.lake.backfill import Backfill, run

        work = Backfill(
            table=_options(table, settings),
            bootstrap=bootstrap,
            topic=to,
            begin=None if begin is None else parsed_time("--from", begin),
            end=None if until is None else parsed_time("--until", until),
            key=key,
            value_format=value_format,
            order=order,
            settings=connection_settings(client_settings),
            timeout_s=timeout,
        )
        with progress(wanted=not json) as display:
            bar = None if display is None else display.add_task("replaying", total=None, info="")

            def on_progress(now: int, total: int) -> None:
                if display is not None and bar is not None:
                    display.update(bar, completed=now, total=total)

            result = run(work, restart=restart, progress=on_progress)
    if result.warning is not None:
        complain(result.warning)
    if json:
        print_json({**vars(result), "topic": to, "group": work.id})
    elif result.was_done:
        print(f"nothing to do: all {result.rows_before} rows are in {to} (--restart writes them again)")
    else:
        before = f", after {result.rows_before} of an earlier run" if result.rows_before else ""
        print(f"wrote {result.rows} rows to {to} in the order of {result.order}{before}")


@app.command()
def serve(
    warehouse: Annotated[
        str,
        typer.Option("--warehouse", "-w", metavar="DIRECTORY", help="Directory of the tables, or s3://BUCKET/PREFIX."),
    ],
    interval: Annotated[
        str, typer.Option("--interval", metavar="TIME", help="Time between two commits of a table.")
    ] = "10s",
    registry: Annotated[
        str | None, typer.Option("--registry", metavar="URL", help="Address of the schema registry.")
    ] = None,
    registry_user: Annotated[
        str | None,
        typer.Option(
            "--registry-user",
            metavar="USER:PASSWORD",
            envvar="MILLSTREAM_REGISTRY_USER",
            help="User and password of the schema registry.",
        ),
    ] = None,
    namespace: Annotated[
        str, typer.Option("--namespace", metavar="NAME", help="Iceberg: namespace of the tables in the catalog.")
    ] = "default",
    dead_letters: Annotated[
        str, typer.Option("--dead-letters", metavar="TOPIC", help="Topic for records that cannot become rows.")
    ] = "millstream-table-dead-letters",
    max_records: Annotated[
        int, typer.Option("--max-records", metavar="N", help="Most records of one commit.", min=1)
    ] = 1_000_000,
    compact_after: Annotated[
        int, typer.Option("--compact-after", metavar="N", help="Commits after which small files are rewritten.", min=1)
    ] = 20,
    target_size: Annotated[str, typer.Option("--target-size", metavar="SIZE", help="Target size of files.")] = "128MB",
    vacuum_every: Annotated[
        str, typer.Option("--vacuum-every", metavar="TIME", help="Time between two vacuums of a table.")
    ] = "1h",
    retain: Annotated[
        str, typer.Option("--retain", metavar="AGE", help="Age up to which old versions can be read.")
    ] = "7d",
    discover: Annotated[
        str, typer.Option("--discover", metavar="TIME", help="Time between two searches for topics.")
    ] = "10s",
    parallel: Annotated[
        int, typer.Option("--parallel", metavar="N", help="Tables that are written at the same time.", min=1)
    ] = 4,
    skip_lost: Annotated[
        bool, typer.Option("--skip-lost", help="Continue after records that the topic has lost; the ledger notes them.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Copy what the topics have now, then stop.")] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            metavar="PORT",
            min=0,
            max=65535,
            help="Port for Prometheus metrics; 0 selects a free port.",
        ),
    ] = None,
    master: Annotated[
        str, typer.Option("--master", metavar="URL", help="Spark master: local[4], spark://HOST:7077, yarn, …")
    ] = "local[*]",
    conf: Annotated[
        list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="Spark setting. Repeatable.")
    ] = None,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    client_settings: ClientSettings = None,
    settings: TableSettings = None,
) -> None:
    """Keep all topics that have the setting millstream.table as tables, until Ctrl-C.

    Topics and their settings are looked for again and again. A table that fails does
    not stop the others: `millstream table status` shows why. Each record is in its
    table once, also after a crash: the table itself has the offsets.

    \b
    Examples:
      millstream topic alter orders --set millstream.table=delta
      millstream table serve --warehouse /lake
      millstream table serve -w s3://lake -o s3.endpoint=http://localhost:9000 --registry http://localhost:8081
      millstream table serve -w s3://lake -o catalog.type=rest -o catalog.uri=http://localhost:8181 --metrics-port 9309
    """
    with _plain_errors():
        from millstream.cli.table_serving import ServeArguments, run_server

        ok = run_server(
            ServeArguments(
                warehouse=warehouse,
                options=assignments(settings, "--option"),
                namespace=namespace,
                bootstrap=bootstrap,
                client_settings=connection_settings(client_settings),
                registry=registry,
                registry_user=registry_user,
                dead_letters=dead_letters,
                interval_s=parsed_duration("--interval", interval) / 1000,
                discover_s=parsed_duration("--discover", discover) / 1000,
                vacuum_every_s=parsed_duration("--vacuum-every", vacuum_every) / 1000,
                retain=timedelta(milliseconds=parsed_duration("--retain", retain)),
                max_records=max_records,
                compact_after=compact_after,
                target_size=target_size,
                parallel=parallel,
                skip_lost=skip_lost,
                once=once,
                metrics_port=metrics_port,
                master=master,
                conf=assignments(conf, "--conf"),
                json=json,
            )
        )
    if not ok:
        raise typer.Exit(exit_codes.UNWELL)


@app.command()
def status(
    topic: Annotated[
        str | None, typer.Argument(metavar="[TOPIC]", help="Only this topic.", autocompletion=complete_topic)
    ] = None,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    client_settings: ClientSettings = None,
) -> None:
    """Show the tables that `millstream table serve` keeps: state, lag, rows, dead letters.

    The exit code is 8 if a table has failed or no server runs.

    \b
    Examples:
      millstream table status
      millstream table status orders --json
    """
    from millstream.admin.tables import FAILED, NO_SERVER, table_statuses

    with open_cluster(bootstrap, timeout, client_settings) as cluster:
        found = table_statuses(cluster)
    if topic is not None and topic not in found:
        raise CommandFailedError(
            f"no server keeps {topic} as a table: set millstream.table and start `millstream table serve`",
            exit_codes.NOT_FOUND,
        )
    shown = [each for name, each in sorted(found.items()) if topic in (None, name)]
    now_ms = time.time_ns() // 1_000_000
    if json:
        print_json([{**dataclasses.asdict(each), "state": each.state_at(now_ms)} for each in shown])
    else:
        print_table(
            ["TOPIC", "FORMAT", "STATE", "LAG", "RECORDS BEHIND", "ROWS", "DEAD LETTERS", "LOCATION"],
            [
                (
                    each.topic,
                    each.format,
                    each.state_at(now_ms),
                    "" if each.lag_seconds is None else f"{each.lag_seconds:.1f} s",
                    "" if each.lag_records is None else each.lag_records,
                    each.rows,
                    each.dead_letters,
                    each.location,
                )
                for each in shown
            ],
        )
        for each in shown:
            if each.error:
                complain(f"{each.topic}: {each.error}")
    if any(each.state_at(now_ms) in (FAILED, NO_SERVER) for each in shown):
        raise typer.Exit(exit_codes.UNWELL)


@app.command()
def verify(
    table: TableArgument,
    no_topic: Annotated[
        bool, typer.Option("--no-topic", help="Compare the table only with its ledger; no broker is needed.")
    ] = False,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    client_settings: ClientSettings = None,
    settings: TableSettings = None,
) -> None:
    """Prove that a table of `millstream table serve` has every record of its topic once.

    The metadata of the table has the ranges of offsets of each commit, with numbers
    of rows and checksums. They are compared with the rows, and with the records of
    the topic as far as it still has them. The exit code is 7 if something is
    missing, doubled or changed.

    \b
    Examples:
      millstream table verify /lake/orders
      millstream table verify /lake/orders --no-topic --json
    """
    with _plain_errors():
        from millstream.tables.verification import verify as compared

        found = _open(table, settings)
        if no_topic:
            report = compared(found, None)
        else:
            with open_cluster(bootstrap, timeout, client_settings) as cluster:
                report = compared(found, cluster)
    if json:
        print_json({**dataclasses.asdict(report), "proven": report.is_proven})
    else:
        show_verified(report)
    if not report.is_proven:
        raise typer.Exit(exit_codes.DAMAGED)


def summary_document(table: "LakeTable") -> dict[str, Any]:
    files = table.scan().files
    return {
        "table": table.name,
        "format": table.format,
        "version": table.version,
        "rows": sum(file.rows for file in files),
        "files": len(files),
        "bytes": sum(file.size for file in files),
        "partition_by": table.partitioning.text,
    }


def description_document(table: "LakeTable") -> dict[str, Any]:
    ends = _topic_ends(table)
    return {
        **summary_document(table),
        "columns": {each.name: str(each.type) for each in table.schema},
        "topics": [{"topic": topic, "partition": partition, "next_offset": end} for (topic, partition), end in ends],
    }


def version_document(version: "TableVersion") -> dict[str, Any]:
    return {
        "version": version.version,
        "time": version.time.isoformat(),
        "operation": version.operation,
        "details": version.details,
    }


def rewritten_document(result: "RewriteResult") -> dict[str, Any]:
    return dict(vars(result))


def show_tables(tables: Sequence["LakeTable"]) -> None:
    documents = [summary_document(table) for table in tables]
    print_table(
        ["TABLE", "FORMAT", "VERSION", "ROWS", "FILES", "SIZE", "PARTITIONED BY"],
        [
            (
                each["table"],
                each["format"],
                each["version"],
                each["rows"],
                each["files"],
                size_text(each["bytes"]),
                each["partition_by"],
            )
            for each in documents
        ],
    )


def show_description(table: "LakeTable") -> None:
    document = summary_document(table)
    partitioned = f", partitioned by {document['partition_by']}" if document["partition_by"] else ""
    print(f"{document['table']}: {document['format']}, version {document['version']}{partitioned}")
    print(f"{document['rows']} rows in {document['files']} files, {size_text(document['bytes'])}\n")
    print_table(["COLUMN", "TYPE"], [(each.name, str(each.type)) for each in table.schema])
    ends = _topic_ends(table)
    if ends:
        print()
        print_table(["TOPIC", "PARTITION", "TAIL BEGINS AT"], [(topic, number, end) for (topic, number), end in ends])


def show_history(versions: Sequence["TableVersion"]) -> None:
    print_table(
        ["VERSION", "TIME", "OPERATION", "DETAILS"],
        [
            (
                each.version,
                each.time.astimezone().isoformat(sep=" ", timespec="seconds"),
                each.operation,
                ", ".join(f"{name} {value}" for name, value in each.details.items()),
            )
            for each in versions
        ],
    )


def show_rewritten(result: "RewriteResult", *, vacuum: bool) -> None:
    print(
        f"files: {result.files_before} -> {result.files_after},"
        f" {size_text(result.bytes_before)} -> {size_text(result.bytes_after)}"
    )
    if vacuum:
        print(f"deleted {result.deleted} unused files")


def show_verified(report: "Report") -> None:
    print_table(
        ["PARTITION", "FROM", "TO", "ROWS", "DEAD LETTERS", "LOST", "TABLE", "TOPIC"],
        [
            (
                each.range.partition,
                each.range.begin,
                each.range.end - 1,
                each.range.rows,
                each.range.dead_letters,
                each.range.lost,
                each.table,
                each.topic,
            )
            for each in report.checks
        ],
    )
    print()
    for text in report.notes:
        print(f"note: {text}")
    if report.is_proven:
        print(f"{report.table}: every record of {report.topic} is there once, {report.rows} rows")
    for text in report.faults:
        complain(text)


def size_text(size: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TB"


def _topic_ends(table: "LakeTable") -> list[tuple[tuple[str, int], int]]:
    from millstream.lake.ordered_records import has_positions
    from millstream.lake.seam import positions_of

    return sorted(positions_of(table).items()) if has_positions(table) else []
