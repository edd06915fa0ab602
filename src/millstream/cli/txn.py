"""`millstream txn`: list and describe transactions, find hanging ones, abort them."""

import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli import exit_codes
from millstream.cli.options import (
    COMPLETION_TIMEOUT_SECONDS,
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_SECONDS,
    Bootstrap,
    ClientSettings,
    Json,
    Timeout,
    complete_topic,
    open_cluster,
    parsed_duration,
)
from millstream.cli.terminal import CommandFailedError, note, print_json, print_table

if TYPE_CHECKING:
    from millstream.admin.transactions import OpenTransaction, Transaction, TransactionAdmin, TransactionListing
    from millstream.raw_client import TopicPartition

_STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead")

NO_TIMEOUT_MS = (1 << 31) - 1
"""The timeout of a producer with two-phase commit."""
_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000


def listed_document(row: "TransactionListing") -> dict[str, Any]:
    return {
        "transactional_id": row.transactional_id,
        "coordinator": row.coordinator,
        "producer_id": row.producer_id,
        "state": row.state,
    }


def show_listed(rows: "Sequence[TransactionListing]") -> None:
    if not rows:
        note("no transactions")
        return
    print_table(
        ("transactional id", "state", "producer", "coordinator"),
        [(row.transactional_id, row.state, row.producer_id, row.coordinator) for row in rows],
    )


def transaction_document(
    transaction: "Transaction", open_in: "Mapping[TopicPartition, OpenTransaction]", now_ms: int
) -> dict[str, Any]:
    from millstream.raw_client import TopicPartition

    started = transaction.started_ms
    return {
        "transactional_id": transaction.transactional_id,
        "state": transaction.state,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.producer_epoch,
        "timeout_ms": transaction.timeout_ms,
        "open_since_ms": started,
        "open_for_ms": None if started is None else max(0, now_ms - started),
        "coordinator": transaction.coordinator,
        "partitions": [
            {
                "topic": topic,
                "partition": number,
                "start_offset": row.start_offset if row is not None else None,
                "last_written_ms": row.last_written_ms if row is not None else None,
            }
            for topic, number in transaction.partitions
            for row in (open_in.get(TopicPartition(topic, number)),)
        ],
    }


def show_transaction(
    transaction: "Transaction", open_in: "Mapping[TopicPartition, OpenTransaction]", now_ms: int
) -> None:
    print(
        f"{transaction.transactional_id}  {transaction.state}  producer {transaction.producer_id}"
        f" epoch {transaction.producer_epoch}  {_timeout_text(transaction.timeout_ms)}"
        f"  coordinator {transaction.coordinator}"
    )
    started = transaction.started_ms
    if started is not None:
        print(f"open since {moment(started)}, {age(now_ms - started)}")
    if not transaction.partitions:
        note("it has no partitions")
        return
    rows = []
    for partition in transaction.partitions:
        row = open_in.get(partition)
        rows.append(
            (*partition, None, None)
            if row is None
            else (*partition, row.start_offset, f"{age(now_ms - row.last_written_ms)} ago")
        )
    print_table(("topic", "partition", "from offset", "last written"), rows)


def open_document(row: "OpenTransaction", now_ms: int) -> dict[str, Any]:
    return {
        "topic": row.partition.topic,
        "partition": row.partition.partition,
        "producer_id": row.producer_id,
        "producer_epoch": row.producer_epoch,
        "coordinator_epoch": row.coordinator_epoch,
        "start_offset": row.start_offset,
        "last_written_ms": row.last_written_ms,
        "silent_for_ms": max(0, now_ms - row.last_written_ms),
    }


def show_hanging(rows: "Sequence[OpenTransaction]", now_ms: int) -> None:
    if not rows:
        note("no hanging transactions")
        return
    print_table(
        ("topic", "partition", "start offset", "producer", "epoch", "last written"),
        [
            (
                *row.partition,
                row.start_offset,
                row.producer_id,
                row.producer_epoch,
                f"{moment(row.last_written_ms)}, {age(now_ms - row.last_written_ms)} ago",
            )
            for row in rows
        ],
    )
    first = rows[0]
    print(
        "abort one with: millstream txn abort"
        f" --topic {first.partition.topic} --partition {first.partition.partition} --start-offset {first.start_offset}"
    )


def _timeout_text(timeout_ms: int) -> str:
    return "no timeout (two-phase commit)" if timeout_ms == NO_TIMEOUT_MS else f"timeout {age(timeout_ms)}"


def moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).astimezone().isoformat(timespec="seconds")


def age(ms: int) -> str:
    """350 ms, 12 s, 5 m 3 s, 2 h 10 m, 3 d 4 h"""
    if ms < _SECOND:
        return f"{max(0, ms)} ms"
    if ms < _MINUTE:
        return f"{ms // _SECOND} s"
    if ms < _HOUR:
        return _two(ms, _MINUTE, "m", _SECOND, "s")
    if ms < _DAY:
        return _two(ms, _HOUR, "h", _MINUTE, "m")
    return _two(ms, _DAY, "d", _HOUR, "h")


def _two(ms: int, large: int, large_name: str, small: int, small_name: str) -> str:
    rest = ms % large // small
    return f"{ms // large} {large_name}" + (f" {rest} {small_name}" if rest else "")


app = typer.Typer(
    help="List and describe transactions, find hanging ones, abort them.",
    no_args_is_help=True,
)

_DEFAULT_LONGEST = "15m"


def _complete_id(context: typer.Context, incomplete: str) -> list[str]:
    """Transactional ids for the shell. Empty on any error: completion must not print one."""
    try:
        found = _open(
            context.params.get("bootstrap") or DEFAULT_BOOTSTRAP, COMPLETION_TIMEOUT_SECONDS, None
        ).transactions()
        return [row.transactional_id for row in found if row.transactional_id.startswith(incomplete)]
    except Exception:
        return []


def _open(bootstrap: str, timeout: float, settings: list[str] | None) -> "TransactionAdmin":
    from millstream.admin.transactions import TransactionAdmin

    return TransactionAdmin(open_cluster(bootstrap, timeout, settings))


def now_ms() -> int:
    return int(time.time() * 1000)


@app.command("list")
def list_transactions(
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help=f"Only this state: {', '.join(_STATES)}. Repeatable."),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="AGE", help="Only transactions open for longer than 90s, 5m, 2h, 7d."),
    ] = None,
    match: Annotated[
        str | None,
        typer.Option("--match", metavar="REGEX", help="Only ids that match this regular expression (RE2) as a whole."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """List the transactional ids of all coordinators with their states.

    An id stays in the list after its transactions, as Empty, CompleteCommit or
    CompleteAbort, until it was not used for transactional.id.expiration.ms.

    \b
    Examples:
      millstream txn list
      millstream txn list --state Ongoing --older-than 5m
      millstream txn list --match 'billing-.*' --json
    """
    by_name = {known.lower(): known for known in _STATES}
    wanted = [by_name.get(name.lower(), name) for name in state or []]
    older_than_ms = -1 if older_than is None else parsed_duration("--older-than", older_than)
    found = _open(bootstrap, timeout, settings).transactions(wanted, older_than_ms=older_than_ms, pattern=match)
    if json:
        print_json([listed_document(row) for row in found])
    else:
        show_listed(found)


@app.command()
def describe(
    ids: Annotated[
        list[str],
        typer.Argument(metavar="ID...", help="Transactional ids.", autocompletion=_complete_id, show_default=False),
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Show the transaction of an id: state, producer, start, and the partitions it has written to.

    Consumers of committed records wait at 'from offset' until it ends.

    \b
    Examples:
      millstream txn describe billing-1
      millstream txn describe billing-1 billing-2 --json
    """
    admin = _open(bootstrap, timeout, settings)
    documents = []
    for name in ids:
        transaction = admin.find(name)
        if transaction is None:
            raise _unknown(name)
        written = set(transaction.partitions)
        led = [each for each in admin.partitions() if each.topic_partition in written] if written else []
        open_in = {row.partition: row for row in admin.open_in(led) if row.producer_id == transaction.producer_id}
        if json:
            documents.append(transaction_document(transaction, open_in, now_ms()))
        else:
            show_transaction(transaction, open_in, now_ms())
    if json:
        print_json(documents)


@app.command("find-hanging")
def find_hanging(
    topic: Annotated[
        str | None,
        typer.Option("--topic", "-t", metavar="TOPIC", help="Only this topic.", autocompletion=complete_topic),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", metavar="N", help="Only this partition of the topic.")
    ] = None,
    broker: Annotated[
        int | None, typer.Option("--broker", metavar="ID", help="Only partitions led by this broker.")
    ] = None,
    longest: Annotated[
        str,
        typer.Option(
            "--max-transaction-timeout",
            metavar="AGE",
            help="Longest timeout of transactions here, in minutes or with a unit. Transactions with a write since"
            " then are not shown.",
        ),
    ] = _DEFAULT_LONGEST,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Find hanging transactions: open in a partition, but unknown to every coordinator.

    They never end by themselves, and consumers of committed records wait for
    them. Nothing is changed: 'txn abort' ends one. The timeout should be at
    least transaction.max.timeout.ms of the brokers.

    \b
    Examples:
      millstream txn find-hanging
      millstream txn find-hanging --topic orders --max-transaction-timeout 1h
      millstream txn find-hanging --json
    """
    if partition is not None and topic is None:
        raise CommandFailedError("--partition needs --topic", exit_codes.USAGE)
    minutes = f"{longest}m" if longest.isdigit() else longest
    longest_ms = parsed_duration("--max-transaction-timeout", minutes)
    admin = _open(bootstrap, timeout, settings)
    found = admin.open_in(admin.partitions(topic, partition, broker))
    now = now_ms()
    hanging = admin.hanging([row for row in found if now - row.last_written_ms >= longest_ms])
    if json:
        print_json([open_document(row, now) for row in hanging])
    else:
        show_hanging(hanging, now)


@app.command()
def abort(
    transactional_id: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="Transactional id.", autocompletion=_complete_id, show_default=False),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic", "-t", metavar="TOPIC", help="Topic of a hanging transaction.", autocompletion=complete_topic
        ),
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", metavar="N", help="Its partition.")] = None,
    start_offset: Annotated[
        int | None, typer.Option("--start-offset", metavar="N", help="Offset of its first record in the partition.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not request a confirmation.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Abort the open transaction of an id, or a hanging one in a partition. This cannot be undone.

    By id, the coordinator aborts it in all its partitions and fences the
    producer, which must be restarted. This also ends a transaction that is
    prepared for a two-phase commit.

    A hanging transaction, as shown by 'txn find-hanging', is named by its
    partition and first offset, and is aborted in that partition only.

    \b
    Examples:
      millstream txn abort billing-1
      millstream txn abort --topic orders --partition 0 --start-offset 42 --yes
    """
    start = (topic, partition, start_offset)
    if (transactional_id is None) == (start == (None, None, None)):
        raise CommandFailedError(
            "give a transactional id, or --topic, --partition and --start-offset", exit_codes.USAGE
        )
    admin = _open(bootstrap, timeout, settings)
    if transactional_id is not None:
        _abort_by_id(admin, transactional_id, yes=yes, json=json)
    elif topic is None or partition is None or start_offset is None:
        raise CommandFailedError("--topic, --partition and --start-offset must be given together", exit_codes.USAGE)
    else:
        _abort_in(admin, topic, partition, start_offset, yes=yes, json=json)


def _abort_by_id(admin: "TransactionAdmin", transactional_id: str, *, yes: bool, json: bool) -> None:
    transaction = admin.find(transactional_id)
    if transaction is None:
        raise _unknown(transactional_id)
    if not transaction.is_open:
        raise CommandFailedError(
            f"{transactional_id} has no open transaction: its state is {transaction.state}", exit_codes.NOT_FOUND
        )
    if transaction.state == "PrepareCommit":
        raise CommandFailedError(
            f"{transactional_id} is being committed and cannot be aborted: the leaders of"
            f" {_named(transaction.partitions)} have not written the marker yet"
        )
    since = "" if transaction.started_ms is None else f", open for {age(now_ms() - transaction.started_ms)}"
    count = len(transaction.partitions)
    _confirm(f"Abort {transactional_id} ({count} partition{'' if count == 1 else 's'}{since})?", yes=yes)
    admin.abort(transactional_id)
    if json:
        print_json({"transactional_id": transactional_id, "aborted": True})
    else:
        print(f"aborted {transactional_id}; its producer is fenced")


def _abort_in(
    admin: "TransactionAdmin", topic: str, partition: int, start_offset: int, *, yes: bool, json: bool
) -> None:
    name = f"{topic}-{partition}"
    at = [row for row in admin.open_in(admin.partitions(topic, partition)) if row.start_offset == start_offset]
    if not at:
        raise CommandFailedError(
            f"no open transaction starts at offset {start_offset} of {name}: `millstream txn find-hanging --topic"
            f" {topic}` lists hanging transactions",
            exit_codes.NOT_FOUND,
        )
    found = at[0]
    if not admin.hanging([found]):
        raise CommandFailedError(
            f"the transaction is not hanging: {_owner(admin, found)} owns it. `millstream txn abort ID` aborts it"
        )
    _confirm(
        f"Abort the transaction of producer {found.producer_id} from offset {start_offset} of {name}"
        f" (last written {age(now_ms() - found.last_written_ms)} ago)?",
        yes=yes,
    )
    admin.abort_in(found)
    if json:
        print_json({"topic": topic, "partition": partition, "start_offset": start_offset, "aborted": True})
    else:
        print(f"aborted the transaction from offset {start_offset} of {name}")


def _owner(admin: "TransactionAdmin", found: "OpenTransaction") -> str:
    ids = [row.transactional_id for row in admin.transactions(producer_ids=[found.producer_id])]
    return ids[0] if ids else f"producer {found.producer_id}"


def _named(partitions: "Sequence[TopicPartition]") -> str:
    return ", ".join(str(each) for each in partitions[:3]) + (", …" if len(partitions) > 3 else "")


def _confirm(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandFailedError(
            f"{question} Add --yes: stdin is not a terminal, so no confirmation can be read.", exit_codes.USAGE
        )
    if not typer.confirm(question, err=True):
        raise CommandFailedError("nothing was changed")


def _unknown(transactional_id: str) -> CommandFailedError:
    return CommandFailedError(
        f"no coordinator knows {transactional_id}: `millstream txn list` lists all ids", exit_codes.NOT_FOUND
    )
