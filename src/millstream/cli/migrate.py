"""`millstream migrate`: finds what of a running Kafka cluster would not fit here."""

from typing import Annotated

import typer

from millstream.cli.options import CLIENT_ID, DEFAULT_TIMEOUT_S, Json, Timeout
from millstream.cli.terminal import CommandFailedError, note, print_json, print_table

app = typer.Typer(help="Move from another Kafka cluster: find what would not fit.", no_args_is_help=True)


@app.command("check")
def check(
    source: Annotated[
        str, typer.Option("--from", metavar="HOST:PORT", help="Brokers of the cluster, separated by commas.")
    ],
    source_config: Annotated[
        str | None,
        typer.Option("--source-config", metavar="FILE", help="Client properties of the connection, in Kafka's format."),
    ] = None,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Read a live Kafka cluster and list what does not come over with a mirror link.

    Nothing is changed. Exit code 1 if something blocks the move. See
    docs/migration.md for the move itself.

    \b
    Examples:
      millstream migrate check --from kafka-1:9092
      millstream migrate check --from kafka-1:9093 --source-config kafka.properties --json
    """
    from millstream.admin.migration import MigrationCheck, Severity
    from millstream.raw_client import Cluster
    from millstream.raw_client.client_properties import read_client_properties

    values = read_client_properties(source_config) if source_config is not None else {}
    with Cluster(source, values, client_id=CLIENT_ID, timeout_s=timeout) as cluster:
        checked = MigrationCheck(cluster)
        inventory, findings = checked.inventory(), checked.findings()
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
        note(
            f"cluster {inventory.cluster_id}: {inventory.brokers} brokers, {inventory.topics} topics, "
            f"{inventory.partitions} partitions, {inventory.bytes / 1e9:.3f} GB, {inventory.groups} groups"
        )
        if findings:
            rows = [(str(each.severity), each.subject, each.text) for each in findings]
            print_table(("severity", "subject", "finding"), rows)
        else:
            note("nothing in the way: `millstream mirror create NAME --from …` copies it (docs/migration.md)")
    blocking = [each for each in findings if each.severity is Severity.BLOCKS]
    if blocking:
        raise CommandFailedError(f"{len(blocking)} findings block the move")
