"""`millstream doctor`: says in one sentence why a cluster is slow, with the evidence."""

from dataclasses import asdict
from typing import Annotated

import typer

from millstream.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_SECONDS,
    Bootstrap,
    ClientSettings,
    Json,
    Timeout,
    open_cluster,
)
from millstream.cli.terminal import note, print_json, print_table


def doctor(
    seconds: Annotated[
        float,
        typer.Option("--seconds", min=0.5, max=600, help="Time between the two readings of the brokers' metrics."),
    ] = 5.0,
    subscribe: Annotated[
        bool | None,
        typer.Option(
            "--subscribe/--unsubscribe",
            help="Subscribe to the metrics of all clients (KIP-714), or end that; they push every 10 s.",
            show_default=False,
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Say why it is slow: the client, a broker, a disk, or a quota.

    Reads the metrics of the brokers twice, and the metrics that clients
    pushed. Without a subscription, clients push nothing: --subscribe makes
    one for all clients (as `kafka-client-metrics` does), --unsubscribe ends it.

    \b
    Examples:
      millstream doctor --subscribe
      millstream doctor --seconds 10
      millstream doctor --json
    """
    from millstream.doctor import evidence

    cluster = open_cluster(bootstrap, timeout, settings)
    with cluster:
        if subscribe is not None:
            evidence.subscribe(cluster, on=subscribe)
            note("clients push their metrics every 10 s" if subscribe else "the subscription of the doctor has ended")
            return
        examined = evidence.examine(cluster, seconds)
    diagnosis = examined.diagnosis
    if json:
        print_json(
            {
                "cause": diagnosis.cause,
                "sentence": diagnosis.sentence,
                "findings": [asdict(each) for each in diagnosis.findings],
                "clients": [asdict(each) for each in examined.clients],
                "silent": list(examined.silent),
            }
        )
        return
    typer.echo(diagnosis.sentence)
    if diagnosis.findings:
        print_table(
            ("cause", "delay ms", "evidence"),
            [(each.cause, f"{each.delay_ms:.0f}", line) for each in diagnosis.findings[:10] for line in each.evidence],
        )
    if not examined.clients:
        note("no client has pushed metrics: subscribe to them with `millstream doctor --subscribe`")
    if examined.silent:
        note(f"no metrics of {', '.join(examined.silent)}: a listener with TLS or SASL does not serve them")
