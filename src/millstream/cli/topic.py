"""`millstream topic`: create, list, describe, alter and delete topics; show their hot keys.

`topic hot` reads the internal topic `__millstream_hot_keys`. Each broker reports on the partitions that it leads. The
command adds up the newest report of each broker.
"""

import json as json_codec
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.admin.hot_keys import REPORT_TOPIC, key_text, merged
from millstream.cli import exit_codes
from millstream.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_SECONDS,
    Bootstrap,
    ClientSettings,
    Json,
    Timeout,
    TopicArgument,
    assignments,
    complete_topic,
    open_client,
    open_cluster,
    parsed_time,
)
from millstream.cli.terminal import CommandFailedError, note, print_json, print_table

if TYPE_CHECKING:
    from millstream.client import Client, Topic
    from millstream.raw_client import TopicInfo


_RECENT = timedelta(minutes=2)


def hot(
    topic: TopicArgument,
    top: Annotated[int, typer.Option("--top", "-n", metavar="N", help="Number of keys and partitions to show.")] = 10,
    watch: Annotated[
        float | None, typer.Option("--watch", "-w", metavar="SECONDS", help="Interval at which the output is repeated.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Show the busiest partitions and the hottest keys of a topic.

    Millstream brokers sample a few records a second, and report while records arrive (every 10 seconds, see
    millstream.hot.keys.interval.ms). Shares are estimates; 'at least' is a lower bound.

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
                _raise_no_report(client, topic)
            document = merged(reports, top)
            if json:
                print_json(document)
            else:
                _show_report(document)
            if watch is None:
                return
            time.sleep(watch)


def newest_reports(client: "Client", topic: str) -> list[dict[str, Any]]:
    """The newest report of each broker about a topic."""
    if REPORT_TOPIC not in client.list_topics(internal=True):
        return []
    # The last minutes are enough while records arrive. For a topic without new records all reports are read.
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


def _raise_no_report(client: "Client", topic: str) -> None:
    setting = client.topics.config(topic).get("millstream.hot.keys.enable")
    if setting is None:
        why = "the broker is not a Millstream broker, or an older one"
    elif setting.value == "false":
        why = "millstream.hot.keys.enable is false for it"
    else:
        why = "brokers write one every few seconds while records arrive, and remove it after a while without records"
    raise CommandFailedError(f"there is no report about {topic!r}: {why}", exit_codes.NOT_FOUND)


def _show_report(document: dict[str, Any]) -> None:
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
    note(f"keys are estimated from {document['sampled_records']:,} sampled records of about the last minute")


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"


app = typer.Typer(help="Create, list, describe, alter and delete topics; find their hot keys.", no_args_is_help=True)
app.command("hot")(hot)

TopicArguments = Annotated[
    list[str],
    typer.Argument(metavar="TOPIC...", help="Topic names.", autocompletion=complete_topic, show_default=False),
]
Config = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", metavar="NAME=VALUE", help="Topic setting, e.g. retention.ms=3600000. Repeatable."),
]


@app.command()
def create(
    topics: TopicArguments,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", "-p", metavar="N", help="Number of partitions. [default: num.partitions of the broker]"
        ),
    ] = None,
    replication: Annotated[
        int | None,
        typer.Option(
            "--replication",
            "-r",
            metavar="N",
            help="Replication factor. [default: default.replication.factor of the broker]",
        ),
    ] = None,
    config: Config = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Accept a topic that exists already.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Create topics.

    \b
    Examples:
      millstream topic create orders
      millstream topic create orders --partitions 6 --config retention.ms=3600000
    """
    wanted = assignments(config, "--config")
    results = []
    with open_client(bootstrap, timeout, settings) as client:
        for name in topics:
            created = client.create_topic(
                name, partitions, replication=replication, config=wanted, exist_ok=if_not_exists
            )
            results.append({"topic": name, "created": created})
            if not json:
                print(f"created {name}" if created else f"{name} exists already")
    if json:
        print_json(results)


@app.command()
def branch(
    parent: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC", help="Topic with the records.", autocompletion=complete_topic, show_default=False
        ),
    ],
    name: Annotated[str, typer.Argument(metavar="BRANCH", help="Name of the new topic.", show_default=False)],
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME", help="Only records before this time: 2026-01-31T12:00 or @milliseconds."),
    ] = None,
    offsets: Annotated[
        str | None,
        typer.Option("--offsets", metavar="FILE", help="Only records before these offsets: topic,partition,offset."),
    ] = None,
    groups: Annotated[
        list[str] | None,
        typer.Option(
            "--groups",
            metavar="GROUP[=NEW]",
            help="Copy the committed offsets of a group, to a group of another name if it has members. Repeatable.",
        ),
    ] = None,
    config: Config = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Create a branch of a topic: the same records up to a point, then its own.

    The branch shares the closed segments of the topic: it needs no
    space, and is made at once, whatever the size. It can be written to, and either can be deleted
    without the other. Offsets, timestamps, keys and headers are the same. The
    point is the end now, or with --at and --offsets an earlier one, and at most
    the last stable offset. A batch that reaches over the point is left out.

    \b
    Examples:
      millstream topic branch orders orders-test
      millstream topic branch orders orders-monday --at 2026-01-05T00:00:00Z --groups billing=billing-test
      millstream topic branch orders orders-kept --config retention.ms=-1
    """
    from millstream.admin.offsets import read_offsets
    from millstream.admin.topics import TopicAdmin

    copied = dict((each if "=" in each else f"{each}={each}").split("=", 1) for each in groups or [])
    with open_cluster(bootstrap, timeout, settings) as cluster:
        made = TopicAdmin(cluster).branch(
            parent,
            name,
            at_ms=None if at is None else int(parsed_time("--at", at).timestamp() * 1000),
            offsets=None if offsets is None else read_offsets(offsets),
            configs=assignments(config, "--config"),
            groups=copied,
        )
    if json:
        print_json(
            {
                "topic": made.topic,
                "branch_of": made.parent,
                "partitions": [
                    {"partition": each.partition, "start": each.start, "offset": each.offset, "note": each.note or None}
                    for each in made.points
                ],
                "groups": made.groups,
            }
        )
        return
    print(f"created {made.topic}, a branch of {made.parent}")
    print_table(
        ("partition", "earliest", "branches at", "note"),
        [(each.partition, each.start, each.offset, each.note) for each in made.points],
    )
    for group, found in made.groups.items():
        print(f"group {group}: offsets of {len(found)} partitions copied")


@app.command("list")
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Include topics that begin with __.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """List topics with their partitions.

    \b
    Examples:
      millstream topic list
      millstream topic list --json | jq -r '.[].topic'
    """
    with open_client(bootstrap, timeout, settings) as client:
        found = client.topics.summaries(client.list_topics(internal=internal))
    if json:
        print_json([{"topic": name, "partitions": count, "replication": copies} for name, count, copies in found])
    elif found:
        print_table(("topic", "partitions", "replication"), found)
    else:
        note("no topics yet: create one with `millstream topic create NAME`")


@app.command()
def describe(
    topics: TopicArguments,
    all_settings: Annotated[bool, typer.Option("--all", help="Include settings with their default value.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Show partitions, leaders, offsets and settings of topics.

    \b
    Examples:
      millstream topic describe orders
      millstream topic describe orders --all --json
    """
    documents = []
    with open_client(bootstrap, timeout, settings) as client, open_cluster(bootstrap, timeout, settings) as cluster:
        infos = cluster.topics(topics)
        for name in topics:
            topic = client.describe_topic(name)
            config = topic.config
            if all_settings:
                config = {entry.name: entry.value for entry in client.topics.config(name).values()}
            if json:
                documents.append(_document(topic, config, infos.get(name)))
            else:
                _show(topic, config, infos.get(name))
    if json:
        print_json(documents)


@app.command()
def alter(
    topic: TopicArgument,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", metavar="N", help="New number of partitions.")
    ] = None,
    config: Config = None,
    reset: Annotated[
        list[str] | None,
        typer.Option("--reset", metavar="NAME", help="Setting to reset to its default. Repeatable."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Add partitions, change or reset settings.

    \b
    Examples:
      millstream topic alter orders --partitions 12
      millstream topic alter orders --config retention.ms=60000 --reset segment.bytes
    """
    changes: dict[str, Any] = {**assignments(config, "--config"), **dict.fromkeys(reset or [])}
    if partitions is None and not changes:
        raise CommandFailedError("nothing to alter: give --partitions, --config or --reset", exit_codes.USAGE)
    with open_client(bootstrap, timeout, settings) as client:
        client.alter_topic(topic, partitions=partitions, config=changes)
    if json:
        print_json({"topic": topic, "partitions": partitions, "config": changes})
    else:
        print(f"altered {topic}")


@app.command()
def delete(
    topics: TopicArguments,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Accept a topic that does not exist.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Delete topics and their records. This cannot be undone.

    \b
    Example:
      millstream topic delete orders
    """
    results = []
    with open_client(bootstrap, timeout, settings) as client:
        for name in topics:
            deleted = client.delete_topic(name, missing_ok=if_exists)
            results.append({"topic": name, "deleted": deleted})
            if not json:
                print(f"deleted {name}" if deleted else f"{name} does not exist")
    if json:
        print_json(results)


def _document(topic: "Topic", config: dict[str, str], info: "TopicInfo | None") -> dict[str, Any]:
    branch = {} if info is None or info.branch_of is None else {"branch_of": info.branch_of}
    return {
        "topic": topic.name,
        "id": topic.id,
        **branch,
        "internal": topic.internal,
        "records": topic.records,
        "config": config,
        "partitions": [
            {
                "partition": part.id,
                "leader": part.leader,
                "replicas": part.replicas,
                "in_sync": part.in_sync,
                "earliest": part.earliest,
                "latest": part.latest,
                **({"branch_offset": info.branch_offsets[part.id]} if info and part.id in _shared(info) else {}),
            }
            for part in topic.partitions
        ],
    }


def _shared(info: "TopicInfo | None") -> range:
    """The partitions that a branch has from its parent."""
    return range(0 if info is None or info.branch_of is None else len(info.branch_offsets))


def _show(topic: "Topic", config: dict[str, str], info: "TopicInfo | None") -> None:
    print(f"{topic.name}  id {topic.id}  {len(topic.partitions)} partitions  {topic.records} records")
    if info is not None and info.branch_of is not None:
        points = ", ".join(f"{index}: {info.branch_offsets[index]}" for index in _shared(info))
        print(f"branch of {info.branch_of}, with its records before these offsets: {points}")
    if config:
        print_table(("setting", "value"), sorted(config.items()))
    print_table(
        ("partition", "leader", "replicas", "in sync", "earliest", "latest", "records"),
        [
            (
                part.id,
                "none" if part.leader is None else part.leader,
                ",".join(map(str, part.replicas)),
                ",".join(map(str, part.in_sync)),
                *(("?", "?", "?") if part.leader is None else (part.earliest, part.latest, part.records)),
            )
            for part in topic.partitions
        ],
    )
