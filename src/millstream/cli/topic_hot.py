"""`millstream topic hot`: which partitions and keys carry a topic's traffic, as brokers report it.

Reads the internal topic `__millstream_hot_keys`, as any Kafka client can; each broker reports on the partitions it
leads, so the newest report of each is taken and rates are added up.
"""

import json as json_codec
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli import exit_codes
from millstream.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    ClientSettings,
    Json,
    Timeout,
    TopicArgument,
    open_client,
)
from millstream.cli.terminal import CommandFailedError, note, print_json, print_table
from millstream.console.topics.hot_key_reports import REPORT_TOPIC, key_text, merged

if TYPE_CHECKING:
    from millstream.client import Client

_RECENT = timedelta(minutes=2)


def hot(
    topic: TopicArgument,
    top: Annotated[int, typer.Option("--top", "-n", metavar="N", help="How many keys and partitions to show.")] = 10,
    watch: Annotated[
        float | None, typer.Option("--watch", "-w", metavar="SECONDS", help="Show it again every so often.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    settings: ClientSettings = None,
) -> None:
    """Show the busiest partitions and the hottest keys of a topic.

    Millstream brokers find them by sampling a few records a second and report while records arrive (every 10 seconds
    unless millstream.hot.keys.interval.ms says otherwise). A share is an estimate: 'at least' is what the sampled
    records prove.

    \b
    Examples:
      millstream topic hot orders
      millstream topic hot orders --top 3 --watch 10
      millstream topic hot orders --json | jq '.keys[0]'
    """
    if top < 1 or (watch is not None and watch <= 0):
        raise CommandFailedError("--top and --watch must be positive", exit_codes.USAGE)
    with open_client(bootstrap, timeout, settings) as client:
        while True:
            reports = newest_reports(client, topic)
            if not reports:
                _explain_silence(client, topic)
            document = merged(reports, top)
            if json:
                print_json(document)
            else:
                _show(document)
            if watch is None:
                return
            time.sleep(watch)


def newest_reports(client: "Client", topic: str) -> list[dict[str, Any]]:
    """The last report of each broker about a topic that is not taken back."""
    if REPORT_TOPIC not in client.list_topics(internal=True):
        return []
    # The last minutes are enough while records arrive; only for a topic that fell silent the whole hour is read.
    for start in (_RECENT, "earliest"):
        found: dict[bytes, dict[str, Any]] = {}
        seen = False
        for record in client.consume(REPORT_TOPIC, start, follow=False):
            if record.key is None or record.key.rpartition(b"/")[0] != topic.encode():
                continue
            seen = True
            if record.raw is None:
                found.pop(record.key, None)
            else:
                found[record.key] = json_codec.loads(record.raw)
        if seen:
            return list(found.values())
    return []


def _explain_silence(client: "Client", topic: str) -> None:
    setting = client.topics.config(topic).get("millstream.hot.keys.enable")
    if setting is None:
        why = "the broker is no Millstream broker, or an older one"
    elif setting.value == "false":
        why = "millstream.hot.keys.enable is false for it"
    else:
        why = "the broker writes one every few seconds while records arrive, and forgets it when none have for long"
    raise CommandFailedError(f"there is no report about {topic!r}: {why}", exit_codes.NOT_FOUND)


def _show(document: dict[str, Any]) -> None:
    age = max(0, time.time() - document["time_ms"] / 1000)
    print(
        f"{document['topic']}  {document['records_per_second']:,.0f} records/s"
        f"  {_bytes(document['bytes_per_second'])}/s  {document['partition_count']} partitions  {age:,.0f} s ago"
    )
    print_table(
        ("partition", "records/s", "bytes/s", "of bytes"),
        [
            (
                part["partition"],
                f"{part['records_per_second']:,.0f}",
                _bytes(part["bytes_per_second"]),
                _percent(
                    part["bytes_per_second"] / document["bytes_per_second"] if document["bytes_per_second"] else 0
                ),
            )
            for part in document["partitions"]
        ],
    )
    print_table(
        ("key", "of records", "at least", "of bytes", "at least"),
        [
            (
                key_text(key),
                _percent(key["record_share"]),
                _percent(key["record_share_at_least"]),
                _percent(key["byte_share"]),
                _percent(key["byte_share_at_least"]),
            )
            for key in document["keys"]
        ],
    )
    note(f"keys by {document['sampled_records']:,} sampled records of the last minute or so")


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"
