"""`millstream cluster`: start a local cluster, see how a cluster is, even out its load, change its quorum."""

import time
from pathlib import Path
from typing import Annotated

import typer

from millstream.cli import exit_codes
from millstream.cli.cluster.moves import Mover, loads, places
from millstream.cli.cluster.report import (
    Health,
    plan_document,
    quorum_document,
    show_plan,
    show_quorum,
    show_status,
    status_document,
)
from millstream.cli.cluster_reading import ClusterAdmin, Quorum, QuorumNode, open_admin
from millstream.cli.gateway_process import HttpOptions
from millstream.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    AuthFile,
    Bootstrap,
    ClientSettings,
    Http,
    Insecure,
    Json,
    NoHttp,
    Timeout,
    TlsCert,
    TlsKey,
    assignments,
)
from millstream.cli.terminal import CommandFailedError, note, print_json
from millstream.node.metadata.balance import plan_balance

app = typer.Typer(
    help="Start a local cluster, see how a cluster is, even out its load, change who votes in it.", no_args_is_help=True
)
quorum_app = typer.Typer(help="See the metadata quorum, and change who votes in it.", no_args_is_help=True)
app.add_typer(quorum_app, name="quorum")

_FOLLOWING_S = 10.0
"""How long a node may take to be seen following the quorum."""
_LOOK_S = 0.2
Throttle = Annotated[
    int | None,
    typer.Option("--throttle", metavar="BYTES/S", min=1, help="The most that moves may use, on each broker."),
]


@app.command()
def start(
    directory: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Where the nodes keep their files.", show_default=True)
    ] = Path("millstream-cluster"),
    nodes: Annotated[int | None, typer.Option("--nodes", metavar="N", help="How many nodes, 3 if not said.")] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", metavar="PORT", help="Of the first node, 9092 if not said; others follow."),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting for every node. Repeatable.")
    ] = None,
    http: Http = None,
    no_http: NoHttp = False,
    auth_file: AuthFile = None,
    insecure: Insecure = False,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    json: Json = False,
) -> None:
    """Run a cluster on this machine, to try things out. Ctrl-C stops it; the data stays for the next start.

    Every node is a `millstream serve` of its own, broker and controller at
    once, with a server.properties to look at. Prints
    'ready kafka=HOST:PORT,HOST:PORT,… http=HOST:PORT' when it can be used. One
    gateway serves console, REST and schema registry of them all over HTTP. A
    node that dies is reported; the others go on.

    \b
    Examples:
      millstream cluster start
      millstream cluster start --nodes 5 --dir /tmp/five --port 19092
      millstream cluster start --set default.replication.factor=3
    """
    from millstream.cli.cluster.start import run

    options = HttpOptions(http, no_http, auth_file, insecure, tls_cert, tls_key)
    raise typer.Exit(run(directory, nodes, port, assignments(set_, "--set"), options, as_json=json))


@app.command()
def status(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    settings: ClientSettings = None,
) -> None:
    """Show the quorum, the brokers, and the partitions that are not as they should be.

    Exits with 0 if all is well, and with 8 if a broker is fenced or silent,
    its log directory is offline, a voter is behind, or a partition is offline, under-replicated or under
    min.insync.replicas.

    \b
    Examples:
      millstream cluster status
      millstream cluster status --json | jq '.brokers[] | {id, leaders, bytes}'
      until millstream cluster status > /dev/null; do sleep 1; done
    """
    cluster = open_admin(bootstrap, timeout, settings).read()
    health = Health(cluster)
    if json:
        print_json(status_document(cluster, health))
    else:
        show_status(cluster, health)
    if not health.is_well:
        raise typer.Exit(exit_codes.UNWELL)


@app.command()
def balance(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be moved, and move nothing.")] = False,
    throttle: Throttle = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    settings: ClientSettings = None,
) -> None:
    """Even out replicas, data and leaders over the live brokers and racks, moving no more than that takes.

    For a broker that was added and is empty, or after one was lost. Waits
    until all is moved; a command that is interrupted leaves the cluster
    moving, and the same command waits for that and does the rest.

    \b
    Examples:
      millstream cluster balance --dry-run
      millstream cluster balance --throttle 50000000
    """
    admin = open_admin(bootstrap, timeout, settings)
    cluster = admin.read()
    cluster.check_quorum()
    if not dry_run and Mover(admin, cluster, throttle).settle():
        cluster = admin.read()
    plan = plan_balance(places(cluster), loads(cluster))
    document = {"executed": bool(plan) and not dry_run, "moves": plan_document(plan, cluster)}
    if plan and not json:
        show_plan(plan, cluster)
    if plan and not dry_run:
        Mover(admin, cluster, throttle).move(plan)
    if not plan and not dry_run:
        _even_leaders(admin)
    if json:
        print_json(document)
    elif not plan:
        print("the load is even: nothing to move")
    else:
        print("nothing was moved: leave --dry-run out to do it" if dry_run else "moved")


def _even_leaders(admin: ClusterAdmin) -> None:
    """Where replicas are right, leaders may still be where a failure left them."""
    astray = [
        each.place for each in admin.partitions() if not each.is_led_as_preferred and each.replicas[0] in each.isr
    ]
    if astray:
        admin.elect_preferred(astray)
        note(f"{len(astray)} partitions are led by their preferred replica again")


@quorum_app.command("show")
def show(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    settings: ClientSettings = None,
) -> None:
    """Show who leads the metadata quorum, who votes, who only follows, and how far each is.

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
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    settings: ClientSettings = None,
) -> None:
    """Let voters be added and removed while the cluster runs (kraft.version 1). There is no way back.

    From then on the metadata log says who votes; controller.quorum.voters
    only says where to find the quorum.

    \b
    Example:
      millstream cluster quorum upgrade
    """
    admin = open_admin(bootstrap, timeout, settings)
    admin.upgrade_quorum()
    _report(admin, "voters can be added and removed now", json=json)


NodeId = Annotated[int, typer.Argument(metavar="ID", help="The node's id (node.id).", show_default=False)]


@quorum_app.command("add")
def add(
    node: NodeId,
    address: Annotated[
        str,
        typer.Option("--address", metavar="HOST:PORT", help="Where its controller listener is.", show_default=False),
    ],
    listener: Annotated[
        str, typer.Option("--listener", metavar="NAME", help="The listener's name (controller.listener.names).")
    ] = "CONTROLLER",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    settings: ClientSettings = None,
) -> None:
    """Let a controller vote. It must run already and follow the quorum, of which `cluster quorum show` tells.

    \b
    Example:
      millstream cluster quorum add 4 --address 10.0.0.4:9093
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise CommandFailedError(f"--address {address}: write HOST:PORT", exit_codes.USAGE)
    admin = open_admin(bootstrap, timeout, settings)
    deadline = time.monotonic() + min(timeout, _FOLLOWING_S)
    while not admin.quorum().follows(node) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)  # it may have been started a moment ago
    found = _node(admin.quorum(), node)
    if found.is_voter:
        raise CommandFailedError(f"node {node} votes already", exit_codes.EXISTS)
    admin.add_voter(node, found.directory_id, listener, host.strip("[]"), int(port))
    _report(admin, f"node {node} votes now", json=json)


@quorum_app.command("remove")
def remove(
    node: NodeId,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    settings: ClientSettings = None,
) -> None:
    """Take a controller's vote away, dead or alive; then it can be stopped for good.

    \b
    Example:
      millstream cluster quorum remove 4
    """
    admin = open_admin(bootstrap, timeout, settings)
    quorum = admin.quorum()
    found = _node(quorum, node)
    if not found.is_voter:
        raise CommandFailedError(f"node {node} has no vote", exit_codes.NOT_FOUND)
    if len(quorum.voters) == 1:
        raise CommandFailedError(f"node {node} is the only voter: add another before")
    admin.remove_voter(node, found.directory_id)
    _report(admin, f"node {node} votes no longer", json=json)


def _node(quorum: Quorum, number: int) -> QuorumNode:
    for each in quorum.nodes:
        if each.id == number:
            return each
    known = ", ".join(str(each.id) for each in quorum.nodes)
    raise CommandFailedError(
        f"node {number} does not follow the quorum (those who do: {known}): start it first", exit_codes.NOT_FOUND
    )


def _report(admin: ClusterAdmin, text: str, *, json: bool) -> None:
    quorum = admin.quorum()
    if json:
        print_json(quorum_document(quorum))
    else:
        print(f"{text}; voters: {', '.join(str(each.id) for each in quorum.voters)}")
