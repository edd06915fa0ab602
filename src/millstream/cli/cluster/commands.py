"""`millstream cluster`: start a local cluster, show its state, balance it, change its quorum."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli import exit_codes
from millstream.cli.cluster.moves import mover, open_admin
from millstream.cli.cluster.report import (
    Health,
    features_document,
    plan_document,
    quorum_document,
    show_changes,
    show_features,
    show_plan,
    show_quorum,
    show_status,
    status_document,
)
from millstream.cli.gateway_process import HttpOptions
from millstream.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_SECONDS,
    AccessFile,
    AllowedOrigins,
    AuthFile,
    Bootstrap,
    ClientSettings,
    ClusterAccess,
    ClusterConfigs,
    ClusterName,
    FurtherClusters,
    GatewayConnection,
    Http,
    Insecure,
    Json,
    NoHttp,
    PassThrough,
    Timeout,
    TlsCert,
    TlsClientCa,
    TlsKey,
    TrustedProxies,
    assignments,
)
from millstream.cli.terminal import CommandFailedError, note, print_json

if TYPE_CHECKING:
    from millstream.admin.cluster import ClusterAdmin, Quorum, QuorumNode

app = typer.Typer(
    help="Start a local cluster, show the state of a cluster, balance it, upgrade it, change its quorum.",
    no_args_is_help=True,
)
quorum_app = typer.Typer(help="Show the metadata quorum, and change its voters.", no_args_is_help=True)
app.add_typer(quorum_app, name="quorum")

_OBSERVER_TIMEOUT_SECONDS = 10.0
"""For a node that was just started to appear in the quorum."""
_POLL_INTERVAL_SECONDS = 0.2
Throttle = Annotated[
    int | None,
    typer.Option("--throttle", metavar="BYTES/S", min=1, help="Bandwidth limit of the moves, on each broker."),
]


@app.command()
def start(
    directory: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Directory of the nodes' files.", show_default=True)
    ] = Path("millstream-cluster"),
    nodes: Annotated[int | None, typer.Option("--nodes", metavar="N", help="Number of nodes. [default: 3]")] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", metavar="PORT", help="Port of the first node; the others follow. [default: 9092]"),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Setting of every node. Repeatable.")
    ] = None,
    http: Http = None,
    no_http: NoHttp = False,
    auth_file: AuthFile = None,
    insecure: Insecure = False,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    command_config: GatewayConnection = None,
    pass_through: PassThrough = None,
    access_file: AccessFile = None,
    allowed_origin: AllowedOrigins = None,
    trusted_proxy: TrustedProxies = None,
    tls_client_ca: TlsClientCa = None,
    cluster: FurtherClusters = None,
    cluster_config: ClusterConfigs = None,
    cluster_access: ClusterAccess = None,
    cluster_name: ClusterName = None,
    json: Json = False,
) -> None:
    """Run a cluster on this machine, for trials. Ctrl-C stops it; the data is kept for the next start.

    Every node is a `millstream serve` process, broker and controller at the
    same time, with its own server.properties. Prints
    'ready kafka=HOST:PORT,HOST:PORT,… http=HOST:PORT' when it accepts
    connections. One gateway serves console, REST and schema registry over HTTP.
    A node that ends is reported; the others keep running.

    \b
    Examples:
      millstream cluster start
      millstream cluster start --nodes 5 --dir /tmp/five --port 19092
      millstream cluster start --set default.replication.factor=3
    """
    from millstream.cli.cluster.start import run

    options = HttpOptions(
        http,
        no_http,
        auth_file,
        insecure,
        tls_cert,
        tls_key,
        command_config,
        pass_through,
        access_file,
        tuple(allowed_origin or ()),
        tuple(trusted_proxy or ()),
        tls_client_ca,
        tuple(cluster or ()),
        tuple(cluster_config or ()),
        tuple(cluster_access or ()),
        cluster_name,
    )
    raise typer.Exit(run(directory, nodes, port, assignments(set_, "--set"), options, as_json=json))


@app.command()
def status(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Show the quorum, the brokers, and the partitions with problems.

    Exits with 0 if there is no problem, and with 8 if a broker is fenced or
    does not respond, a log directory is offline, a voter is behind, or a
    partition is offline, under-replicated or under min.insync.replicas.

    \b
    Examples:
      millstream cluster status
      millstream cluster status --json | jq '.brokers[] | {id, leaders, bytes}'
      until millstream cluster status > /dev/null; do sleep 1; done
    """
    from millstream.admin.features import FeatureAdmin

    admin = open_admin(bootstrap, timeout, settings)
    cluster = admin.read()
    health = Health(cluster)
    features = FeatureAdmin(admin.client).features(without=cluster.unresponsive)
    if json:
        print_json(status_document(cluster, health) | {"features": features_document(features)})
    else:
        show_status(cluster, health)
        show_features(features)
    if not health.is_healthy:
        raise typer.Exit(exit_codes.UNWELL)


@app.command("upgrade")
def upgrade_features(
    release_version: Annotated[
        str | None,
        typer.Option(
            "--release-version",
            metavar="VERSION",
            help="Levels of this release of Kafka, e.g. 4.2. [default: the newest that all brokers support]",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the changes.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Finalize the features of new nodes, after all nodes were restarted with the new version (docs/upgrades.md).

    Until then nodes write only formats that the previous version can read, and a downgrade is possible.

    \b
    Examples:
      millstream cluster upgrade --dry-run
      millstream cluster upgrade
      millstream cluster upgrade --release-version 4.2
    """
    from millstream.admin.features import FeatureAdmin

    admin = FeatureAdmin(open_admin(bootstrap, timeout, settings).client)
    show_changes(admin.upgrade(release_version, dry_run=dry_run), dry_run=dry_run, json=json)


@app.command()
def downgrade(
    feature: Annotated[
        list[str], typer.Option("--feature", metavar="NAME=LEVEL", help="A feature and its lower level. Repeatable.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the changes.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Lower the levels of features, where that is safe, before nodes go back to an older version.

    \b
    Examples:
      millstream cluster downgrade --feature share.version=0
      millstream cluster downgrade --feature metadata.version=27 --dry-run
    """
    from millstream.admin.features import FeatureAdmin

    levels = {}
    for name, text in assignments(feature, "--feature").items():
        if not (text.isascii() and text.isdigit() and len(text) < 5):
            raise CommandFailedError(f"--feature {name}={text}: a level is a number", exit_codes.USAGE)
        levels[name] = int(text)
    admin = FeatureAdmin(open_admin(bootstrap, timeout, settings).client)
    show_changes(admin.downgrade(levels, dry_run=dry_run), dry_run=dry_run, json=json)


@app.command()
def balance(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")] = False,
    throttle: Throttle = None,
    wait_for_brokers: Annotated[
        int,
        typer.Option(
            "--wait-for-brokers", metavar="N", min=0, help="First wait until this number of brokers is running."
        ),
    ] = 0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Balance replicas, data and leaders over the running brokers and racks, with as few moves as possible.

    Use it after a broker was added or lost. Waits until everything is moved.
    --wait-for-brokers waits for brokers that were just started, without limit.
    If the command is interrupted, the cluster finishes the moves that were
    started; the same command waits for them and does the rest.

    \b
    Examples:
      millstream cluster balance --dry-run
      millstream cluster balance --throttle 50000000
    """
    from millstream.admin.moves import balance_plan

    admin = open_admin(bootstrap, timeout, settings)
    cluster = admin.read()
    while sum(not each.fenced for each in cluster.brokers) < wait_for_brokers:
        time.sleep(_POLL_INTERVAL_SECONDS)
        cluster = admin.read()
    cluster.check_quorum()
    if not dry_run:
        with mover(admin, cluster, throttle) as moving:
            has_settled = moving.settle() > 0
        if has_settled:
            cluster = admin.read()
    plan = balance_plan(cluster)
    document = {"executed": bool(plan) and not dry_run, "moves": plan_document(plan)}
    if plan and not json:
        show_plan(plan)
    if plan and not dry_run:
        with mover(admin, cluster, throttle) as moving:
            moving.move(plan)
    if not plan and not dry_run:
        _balance_leaders(admin)
    if json:
        print_json(document)
    elif not plan:
        print("the cluster is balanced: nothing to move")
    else:
        print("nothing was moved: run it without --dry-run to move" if dry_run else "moved")


def _balance_leaders(admin: "ClusterAdmin") -> None:
    """Elects preferred leaders: after a failure, leaders may be unbalanced although replicas are not."""
    partitions = [
        each.topic_partition
        for each in admin.partitions()
        if not each.is_led_as_preferred and each.replicas[0] in each.isr
    ]
    if partitions:
        admin.elect_preferred(partitions)
        note(f"{len(partitions)} partitions are led by their preferred replica again")


@quorum_app.command("show")
def show(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Show the leader, voters and observers of the metadata quorum, with their log end offsets.

    \b
    Examples:
      millstream cluster quorum show
      millstream cluster quorum show --json
    """
    quorum = open_admin(bootstrap, timeout, settings).quorum()
    if json:
        print_json(quorum_document(quorum))
    else:
        show_quorum(quorum)
        print(f"leader {quorum.leader}, epoch {quorum.epoch}, high watermark {quorum.high_watermark}")


@quorum_app.command("upgrade")
def upgrade(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Let voters be added and removed while the cluster runs (kraft.version 1). This cannot be undone.

    From then on the metadata log has the voters; controller.quorum.voters
    only has addresses to find the quorum.

    \b
    Example:
      millstream cluster quorum upgrade
    """
    admin = open_admin(bootstrap, timeout, settings)
    admin.upgrade_quorum()
    _report(admin, "voters can be added and removed now", json=json)


NodeId = Annotated[int, typer.Argument(metavar="ID", help="Node id (node.id).", show_default=False)]


@quorum_app.command("add")
def add(
    node: NodeId,
    address: Annotated[
        str,
        typer.Option("--address", metavar="HOST:PORT", help="Address of its controller listener.", show_default=False),
    ],
    listener: Annotated[
        str, typer.Option("--listener", metavar="NAME", help="Name of the listener (controller.listener.names).")
    ] = "CONTROLLER",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Make a controller a voter. It must run and be an observer in `cluster quorum show`.

    \b
    Example:
      millstream cluster quorum add 4 --address 10.0.0.4:9093
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise CommandFailedError(f"--address {address}: write HOST:PORT", exit_codes.USAGE)
    admin = open_admin(bootstrap, timeout, settings)
    deadline = time.monotonic() + min(timeout, _OBSERVER_TIMEOUT_SECONDS)
    while not admin.quorum().has_node(node) and time.monotonic() < deadline:
        time.sleep(_POLL_INTERVAL_SECONDS)
    found = _node(admin.quorum(), node)
    if found.is_voter:
        raise CommandFailedError(f"node {node} is a voter already", exit_codes.EXISTS)
    admin.add_voter(node, found.directory_id, listener, host.strip("[]"), int(port))
    _report(admin, f"node {node} is a voter now", json=json)


@quorum_app.command("remove")
def remove(
    node: NodeId,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Remove a voter, whether it runs or not. Then the controller can be stopped for good.

    \b
    Example:
      millstream cluster quorum remove 4
    """
    admin = open_admin(bootstrap, timeout, settings)
    quorum = admin.quorum()
    found = _node(quorum, node)
    if not found.is_voter:
        raise CommandFailedError(f"node {node} is not a voter", exit_codes.NOT_FOUND)
    if len(quorum.voters) == 1:
        raise CommandFailedError(f"node {node} is the only voter: add another voter first")
    admin.remove_voter(node, found.directory_id)
    _report(admin, f"node {node} is not a voter any more", json=json)


def _node(quorum: "Quorum", number: int) -> "QuorumNode":
    for each in quorum.nodes:
        if each.id == number:
            return each
    known = ", ".join(str(each.id) for each in quorum.nodes)
    raise CommandFailedError(
        f"node {number} is not in the quorum (nodes: {known}): start it first", exit_codes.NOT_FOUND
    )


def _report(admin: "ClusterAdmin", text: str, *, json: bool) -> None:
    quorum = admin.quorum()
    if json:
        print_json(quorum_document(quorum))
    else:
        print(f"{text}; voters: {', '.join(str(each.id) for each in quorum.voters)}")
