"""`millstream mirror`: links that copy topics of another cluster under the same offsets (docs/mirroring.md)."""

from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli import exit_codes
from millstream.cli.options import (
    CLIENT_ID,
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_SECONDS,
    Bootstrap,
    ClientSettings,
    Json,
    Timeout,
    open_cluster,
)
from millstream.cli.terminal import CommandFailedError, note, print_json, print_table
from millstream.common.quantities import parse_size

if TYPE_CHECKING:
    from millstream.admin.mirrors import LinkStatus, MirrorAdmin, MirrorLink, Missing

app = typer.Typer(
    help="Mirror topics of another cluster under the same offsets; promote, fail over, reverse.", no_args_is_help=True
)

Link = Annotated[str, typer.Argument(metavar="NAME", help="Name of the link.", show_default=False)]
Topics = Annotated[
    list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic. Repeatable. [default: all]")
]
SourceConfig = Annotated[
    str | None,
    typer.Option(
        "--source-config",
        metavar="FILE",
        help="Client properties of the connection to the source: security.protocol, sasl.…, ssl.… in Kafka's format.",
    ),
]


@app.command("create")
def create(
    name: Link,
    source: Annotated[
        str,
        typer.Option("--from", metavar="HOST:PORT", help="Brokers of the source, separated by commas.", prompt=False),
    ],
    topics: Annotated[
        str, typer.Option("--topics", metavar="REGEX", help="Topics to mirror, those of the future too.")
    ],
    groups: Annotated[
        str, typer.Option("--groups", metavar="REGEX", help="Groups whose offsets are copied; '' for none.")
    ] = ".*",
    prefix: Annotated[
        str, typer.Option("--prefix", metavar="TEXT", help="Text before the names of mirror topics, e.g. 'west.'.")
    ] = "",
    throttle: Annotated[
        str | None, typer.Option("--throttle", metavar="RATE", help="Bytes per second of each broker, e.g. 10MB.")
    ] = None,
    replication: Annotated[
        int, typer.Option("--replication", metavar="N", help="Replicas of mirror topics; -1: the broker's default.")
    ] = -1,
    acls: Annotated[bool, typer.Option("--acls", help="Keep ACLs of the mirrored topics and groups in step.")] = False,
    schemas: Annotated[
        bool, typer.Option("--schemas", help="Mirror the schema registry's topic _schemas too.")
    ] = False,
    source_config: SourceConfig = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Create a link: this cluster copies topics of the source, and keeps them in step.

    Mirror topics have the same offsets, timestamps, transactions and settings
    as at the source, and accept no writes until they are promoted. The brokers
    of this cluster connect to the source. Secrets in --source-config may be
    references that each broker resolves: ${file:/path:key} in its directory
    millstream.mirror.secrets.dir, and ${env:MILLSTREAM_MIRROR_NAME}.

    \b
    Examples:
      millstream mirror create west --from west-1:9092,west-2:9092 --topics 'orders.*'
      millstream mirror create west --from west-1:9093 --topics '.*' --source-config west.properties
      millstream mirror create west --from west-1:9092 --topics '.*' --prefix west.
    """
    values = _source_settings(source_config)
    values |= {"bootstrap.servers": source, "topics": f"{topics}|_schemas" if schemas else topics, "groups": groups}
    if prefix:
        values["prefix"] = prefix
    if throttle is not None:
        values["throttle.bytes.per.second"] = str(_rate(throttle))
    if replication != -1:
        values["replication.factor"] = str(replication)
    if acls:
        values["acls"] = "true"
    _admin(bootstrap, timeout, settings).create(name, values)
    note(f"created link {name}: `millstream mirror status {name}` shows its progress")


@app.command("list")
def list_links(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Only this link. [default: all]", show_default=False)
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """List the links of this cluster, with the number of topics in each state.

    \b
    Examples:
      millstream mirror list
      millstream mirror list west --json
    """
    admin = _admin(bootstrap, timeout, settings)
    topics = admin.mirror_topics()
    rows = []
    for link in admin.links() if name is None else [admin.link(name)]:
        states: dict[str, int] = {}
        for each in topics:
            if each.link == link.name:
                states[each.state] = states.get(each.state, 0) + 1
        rows.append((link, states))
    if json:
        print_json([{"name": link.name, "topics": states, "settings": link.shown()} for link, states in rows])
    elif not rows:
        note("no mirror links: `millstream mirror create NAME --from HOST:PORT --topics REGEX` makes one")
    else:
        print_table(
            ("link", "source", "topics", "paused", "states"),
            [
                (
                    link.name,
                    link.source,
                    link.setting("topics"),
                    "yes" if link.is_paused else "no",
                    ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "none yet",
                )
                for link, states in rows
            ],
        )


@app.command("status")
def status(
    name: Link,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Show the lag of each partition in records, bytes and seconds, and what is wrong.

    Brokers report about once a second. Lag in bytes is estimated; lag in
    seconds is the time since the partition last had everything.

    \b
    Examples:
      millstream mirror status west
      millstream mirror status west --json
    """
    found = _admin(bootstrap, timeout, settings).status(name)
    if json:
        print_json(found.document())
        return
    rows = [
        (row.topic, row.partition, _state(found, row.state), _known(row.end), _known(row.source_end),
         _known(row.lag_records), _known(row.lag_bytes), _known(row.lag_seconds), row.problem)
        for row in found.partitions
    ]  # fmt: skip
    print_table(("topic", "partition", "state", "end", "source end", "lag", "bytes", "seconds", "problem"), rows)
    for text in _remarks(found):
        note(text)


@app.command("pause")
def pause(
    name: Link,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Pause a link. Its topics still refuse writes.

    \b
    Example:
      millstream mirror pause west
    """
    _admin(bootstrap, timeout, settings).pause(name)
    note(f"paused link {name}")


@app.command("resume")
def resume(
    name: Link,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Start a paused link again, try failed topics again, give up promotions that wait.

    \b
    Example:
      millstream mirror resume west
    """
    _admin(bootstrap, timeout, settings).resume(name)
    note(f"resumed link {name}")


@app.command("promote")
def promote(
    name: Link,
    topic: Topics = None,
    wait: Annotated[float, typer.Option("--wait", metavar="SECONDS", help="How long to wait for it.")] = 300.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Make mirror topics normal topics when they have everything that the source has.

    Stop the producers at the source first: records that are written there
    while the topics are promoted are not copied any more.

    \b
    Examples:
      millstream mirror promote west
      millstream mirror promote west --topic orders
    """
    done = _admin(bootstrap, timeout, settings).promote(name, topic or (), timeout_s=wait)
    failed = [each for each in done if each.state != "promoted"]
    print_table(("topic", "state", "reason"), [(each.name, each.state, each.reason) for each in done])
    if failed:
        raise CommandFailedError(f"{len(failed)} topics were not promoted; `millstream mirror failover` does it anyway")


@app.command("failover")
def failover(
    name: Link,
    topic: Topics = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Make mirror topics normal topics now, also if the source cannot be reached; print which records are missing.

    What is missing is counted from the last offsets that the source reported.
    Transactions that are open in the mirrored records are aborted.

    \b
    Examples:
      millstream mirror failover west
      millstream mirror failover west --topic orders --json
    """
    missing = _admin(bootstrap, timeout, settings).failover(name, topic or ())
    _print_missing(missing, json, ("topic", "partition", "end", "source end", "missing"))


@app.command("reverse")
def reverse(
    name: Link,
    back: Annotated[
        str | None,
        typer.Option(
            "--to-here", metavar="HOST:PORT", help="This cluster, as the old source reaches it. [default: --bootstrap]"
        ),
    ] = None,
    back_config: Annotated[
        str | None,
        typer.Option(
            "--back-config",
            metavar="FILE",
            help="Client properties with which the old source connects to this cluster.",
        ),
    ] = None,
    source_config: SourceConfig = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print which records the old source would remove.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Mirror back: the old source becomes a mirror of this cluster, after promote or failover.

    The old source removes the records that this cluster does not have, found
    by leader epochs; they are printed. The link moves to the old source, under
    the same name.

    \b
    Examples:
      millstream mirror reverse west
      millstream mirror reverse west --dry-run
      millstream mirror reverse west --source-config west.properties --to-here east-1:9092
    """
    admin = _admin(bootstrap, timeout, settings)
    link = admin.link(name)
    source = _source_admin(link, source_config, timeout)
    values = _source_settings(back_config) | {"bootstrap.servers": back or bootstrap}
    removed = admin.reverse(name, source, values, dry_run=dry_run)
    _print_missing(removed, json, ("topic", "partition", "common end", "end there", "removed there"))


@app.command("verify")
def verify(
    name: Link,
    topic: Topics = None,
    source_config: SourceConfig = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Compare the records of both sides by checksums; exit code 1 if something differs.

    This command reads both clusters itself. A source with a login needs
    --source-config, because this cluster does not show secrets.

    \b
    Examples:
      millstream mirror verify west
      millstream mirror verify west --topic orders --json
    """
    from millstream.admin.mirror_verification import verify_topic

    admin = _admin(bootstrap, timeout, settings)
    source = _source_admin(admin.link(name), source_config, timeout)
    rows = [
        result
        for each in admin.comparable(name, topic or ())
        for result in verify_topic(admin.cluster, source.cluster, each, is_compacted=admin.is_compacted(each.name))
    ]
    if json:
        print_json([row.document() for row in rows])
    else:
        print_table(
            ("topic", "partition", "start", "end", "batches", "checksum", "result"),
            [
                (row.topic, row.partition, row.start, row.end, row.batches, f"{row.checksum:08x}",
                 row.difference or "equal")
                for row in rows
            ],
        )  # fmt: skip
    different = [row for row in rows if row.difference]
    if different:
        raise CommandFailedError(f"{len(different)} of {len(rows)} partitions differ from the source")


@app.command("delete")
def delete(
    name: Link,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Delete a link whose topics were promoted or deleted.

    \b
    Example:
      millstream mirror delete west
    """
    _admin(bootstrap, timeout, settings).delete(name)
    note(f"deleted link {name}")


def _admin(bootstrap: str, timeout: float, settings: list[str] | None) -> "MirrorAdmin":
    from millstream.admin.mirrors import MirrorAdmin

    return MirrorAdmin(open_cluster(bootstrap, timeout, settings))


def _source_admin(link: "MirrorLink", source_config: str | None, timeout: float) -> "MirrorAdmin":
    """The source of a link, as this command reaches it."""
    from millstream.admin.mirrors import MirrorAdmin
    from millstream.raw_client import Cluster
    from millstream.raw_client.client_properties import read_client_properties

    values: dict[str, str] = {}
    if source_config is not None:
        values = read_client_properties(source_config)
    elif link.setting("security.protocol", "PLAINTEXT") != "PLAINTEXT":
        raise CommandFailedError(
            f"the source of link {link.name} needs {link.setting('security.protocol')}: give --source-config FILE",
            exit_codes.USAGE,
        )
    cluster: Cluster = Cluster(link.source, values, client_id=CLIENT_ID, timeout_s=timeout)
    return MirrorAdmin(cluster)


def _source_settings(path: str | None) -> dict[str, str]:
    """The properties of the connection as they are written: brokers resolve references, not this command."""
    if path is None:
        return {}
    from millstream.common.properties import PropertiesError, parse_properties
    from millstream.config.table.mirror import LINK_SETTINGS

    try:
        with open(path, encoding="utf-8") as file:
            items = {item.name: item.value.strip() for item in parse_properties(file.read(), path)}
    except (OSError, UnicodeDecodeError, PropertiesError) as error:
        raise CommandFailedError(f"--source-config {path}: {error}", exit_codes.USAGE) from error
    items.pop("bootstrap.servers", None)
    for item in items:
        if item not in LINK_SETTINGS or not item.startswith(("security.", "ssl.", "sasl.")):
            known = ", ".join(name for name in LINK_SETTINGS if name.startswith(("security.", "ssl.", "sasl.")))
            raise CommandFailedError(
                f"--source-config {path}: {item} is not a setting of the connection; those are {known}",
                exit_codes.USAGE,
            )
    return items


def _rate(text: str) -> int:
    try:
        return int(parse_size(text))
    except ValueError as error:
        raise CommandFailedError(f"--throttle {text}: {error}", exit_codes.USAGE) from error


def _known(value: float) -> object:
    return "" if value < 0 else value


def _state(found: "LinkStatus", state: str) -> str:
    return "paused" if found.link.is_paused and state == "mirroring" else state


def _remarks(found: "LinkStatus") -> list[str]:
    texts = []
    if found.problem:
        texts.append(f"the link does not work: {found.problem}")
    texts += [f"{each.name} failed: {each.reason}" for each in found.topics if each.state == "failed"]
    texts += [f"{name} of the source is not mirrored: {why}" for name, why in sorted(found.conflicts.items())]
    for row in found.partitions:
        if row.records_skipped:
            texts.append(f"{row.topic}-{row.partition}: the source removed {row.records_skipped} records too early")
        if row.records_truncated:
            texts.append(f"{row.topic}-{row.partition}: {row.records_truncated} records were cut, as at the source")
    if not found.topics and not found.problem:
        texts.append("no topics yet: the source has no topic that matches, or the link has just been created")
    return texts


def _print_missing(missing: "list[Missing]", json: bool, columns: tuple[str, ...]) -> None:
    if json:
        print_json([row.document() for row in missing])
        return
    print_table(
        columns,
        [(row.topic, row.partition, row.end, _known(row.source_end), _known(row.records)) for row in missing],
    )
