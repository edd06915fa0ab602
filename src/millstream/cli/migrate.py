"""`millstream migrate`: finds what would not fit when a cluster moves, from Kafka or back to it."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.options import CLIENT_ID, DEFAULT_TIMEOUT_SECONDS, Json, Timeout
from millstream.cli.terminal import CommandFailedError, note, print_json, print_table

if TYPE_CHECKING:
    from millstream.admin.migration import Finding, Inventory

app = typer.Typer(help="Move from Kafka or back to it: find what is not supported.", no_args_is_help=True)


class Target(StrEnum):
    """The program that shall start on a data directory."""

    KAFKA = "kafka"
    MILLSTREAM = "millstream"


@app.command("check")
def check(
    source: Annotated[
        str | None, typer.Option("--from", metavar="HOST:PORT", help="Brokers of the cluster, separated by commas.")
    ] = None,
    source_config: Annotated[
        str | None,
        typer.Option("--source-config", metavar="FILE", help="Client properties of the connection, in Kafka's format."),
    ] = None,
    data_dir: Annotated[
        str | None, typer.Option("--data-dir", metavar="DIR", help="The data directory of a node that is stopped.")
    ] = None,
    to: Annotated[Target, typer.Option("--to", help="The program that shall start on --data-dir.")] = Target.MILLSTREAM,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
) -> None:
    """Read a running Kafka cluster, or the data directory of a stopped node, and list what is not supported.

    With --from: what a mirror link does not copy. With --data-dir:
    what the other program would refuse in this directory, or in a copy
    of it. Nothing is changed. Exit code 1 if something blocks the move.
    See docs/migration.md for the move itself.

    \b
    Examples:
      millstream migrate check --from kafka-1:9092
      millstream migrate check --from kafka-1:9093 --source-config kafka.properties --json
      millstream migrate check --data-dir /var/kafka-logs
      millstream migrate check --data-dir millstream-data --to kafka
    """
    from millstream.admin.migration import MigrationCheck, Severity
    from millstream.raw_client import Cluster
    from millstream.raw_client.client_properties import read_client_properties

    if (source is None) == (data_dir is None):
        raise typer.BadParameter("give --from HOST:PORT for a running cluster, or --data-dir DIR for a stopped node")
    if source is not None:
        values = read_client_properties(source_config) if source_config is not None else {}
        with Cluster(source, values, client_id=CLIENT_ID, timeout_s=timeout) as cluster:
            checked = MigrationCheck(cluster)
            inventory, findings = checked.inventory(), checked.findings()
        advice = "`millstream mirror create NAME --from …` copies it (docs/migration.md)"
    else:
        assert data_dir is not None
        inventory, findings = _check_directory(data_dir, to)
        advice = f"{to.capitalize()} can start on this directory (docs/migration.md)"
    if json:
        print_json(
            {
                "cluster_id": inventory.cluster_id,
                "brokers": inventory.brokers,
                "topics": inventory.topics,
                "partitions": inventory.partitions,
                "bytes": inventory.bytes,
                "groups": inventory.groups,
                "findings": [
                    {"severity": str(each.severity), "subject": each.subject, "text": each.text} for each in findings
                ],
            }
        )
    else:
        groups = "" if inventory.groups is None else f", {inventory.groups} groups"
        note(
            f"cluster {inventory.cluster_id}: {inventory.brokers} brokers, {inventory.topics} topics, "
            f"{inventory.partitions} partitions, {inventory.bytes / 1e9:.3f} GB{groups}"
        )
        if findings:
            rows = [(str(each.severity), each.subject, each.text) for each in findings]
            print_table(("severity", "subject", "finding"), rows)
        if not any(each.severity is not Severity.NOTE for each in findings):
            note(f"nothing in the way: {advice}")
    blocking = [each for each in findings if each.severity is Severity.BLOCKS]
    if blocking:
        raise CommandFailedError(f"{len(blocking)} findings block the move")


def _check_directory(data_dir: str, to: Target) -> "tuple[Inventory, list[Finding]]":
    """Reads the data directory of a node that is stopped; CommandFailedError if one runs on it."""
    import os

    from millstream.admin.migration import Finding, Inventory, Severity
    from millstream.config.loading import load_broker_config
    from millstream.config.setting import ConfigError
    from millstream.node.consensus.quorum.opening import inspect_metadata, read_directory
    from millstream.node.metadata.return_to_kafka import obstacles_for_kafka
    from millstream.node.runtime.disk import RealDisk
    from millstream.node.runtime.identity import read_identity

    disk, root = RealDisk(), os.path.abspath(data_dir)
    lock = f"{root}/.lock"
    if disk.exists(lock):  # one that is not there is not created: nothing is changed
        held = disk.lock(lock)
        if held is None:
            raise CommandFailedError(f"{root} is in use by a running broker: stop it first")
        held.release()
    identity = read_identity(disk, root)
    if identity is None:
        raise CommandFailedError(f"{root} is not the data directory of a node: it has no complete meta.properties")
    findings: list[Finding] = []
    try:
        image, has_voters = read_directory(disk, root)
        directories = [name for name, is_directory in disk.list(root) if is_directory]
        if to is Target.KAFKA:
            for each in obstacles_for_kafka(image, directories, has_voters=has_voters):
                is_note = each.subject in ("version", "settings")
                severity = Severity.BLOCKS if each.blocks else Severity.NOTE if is_note else Severity.BY_HAND
                findings.append(Finding(severity, each.subject, each.text))
        else:
            config = load_broker_config(overrides=[f"node.id={identity.node_id}"], data_dir=root)
            try:
                inspect_metadata(disk, root, config)
            except ConfigError as error:
                findings.append(Finding(Severity.BLOCKS, "directory", error.message))
    except ConfigError as error:
        raise CommandFailedError(error.message) from None
    sizes = (
        disk.file_size(f"{root}/{name}/{file}")
        for name in directories
        for file, is_directory in disk.list(f"{root}/{name}")
        if not is_directory and file.endswith(".log")
    )
    topics = [topic for topic in image.topics.values() if not topic.name.startswith("__")]
    return (
        Inventory(
            cluster_id=identity.cluster_id or image.cluster_id,
            brokers=len(image.brokers),
            topics=len(topics),
            partitions=sum(len(topic.partitions) for topic in topics),
            bytes=sum(sizes),
            groups=None,
        ),
        sorted(findings, key=lambda each: list(Severity).index(each.severity)),
    )
