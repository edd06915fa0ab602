"""`millstream broker`: list the brokers of a cluster, and drain one that is to be removed."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli import exit_codes
from millstream.cli.cluster.commands import Throttle
from millstream.cli.cluster.moves import Mover, available_brokers, loads, open_admin
from millstream.cli.cluster.report import broker_rows, plan_document, show_brokers, show_plan
from millstream.cli.options import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_S, Bootstrap, ClientSettings, Json, Timeout
from millstream.cli.terminal import CommandFailedError, note, print_json
from millstream.formats.model.errors import KafkaError
from millstream.node.metadata.balance import PlannedReassignment, plan_drain

if TYPE_CHECKING:
    from millstream.admin.cluster import ClusterAdmin, ClusterState

app = typer.Typer(help="List the brokers of a cluster; drain a broker before it is removed.", no_args_is_help=True)
_POLL_INTERVAL_S = 0.5


@app.command("list")
def list_brokers(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    settings: ClientSettings = None,
) -> None:
    """List brokers with address, state, leaders, replicas and data.

    \b
    Examples:
      millstream broker list
      millstream broker list --json
    """
    rows = broker_rows(open_admin(bootstrap, timeout, settings).read())
    if json:
        print_json(rows)
    else:
        show_brokers(rows)


@app.command()
def drain(
    broker: Annotated[int, typer.Argument(metavar="ID", help="Broker id (node.id).", show_default=False)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan, and move nothing.")] = False,
    throttle: Throttle = None,
    unregister: Annotated[
        bool,
        typer.Option("--unregister", help="Then wait until the broker is stopped, and unregister it."),
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Allow new replicas again; `cluster balance` moves some to it.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    settings: ClientSettings = None,
) -> None:
    """Move all replicas off a broker, so that it can be stopped for good. Works for a dead broker too.

    The broker is cordoned first: it gets no new replicas. Waits until
    everything is moved. With --unregister it then waits, up to --timeout
    seconds, until the broker is stopped. --unregister can also be given later:
    the command finds nothing left to move.

    \b
    Examples:
      millstream broker drain 3 --dry-run
      millstream broker drain 3 --throttle 50000000
      millstream broker drain 3 --unregister
      millstream broker drain 3 --undo
    """
    admin = open_admin(bootstrap, timeout, settings)
    cluster = admin.read()
    cluster.check_quorum()
    cluster.broker(broker)
    if undo:
        _undo(admin, broker, json=json)
        return
    plan = _plan(cluster, broker)
    if not dry_run:
        admin.cordon(broker)
        Mover(admin, cluster, throttle).settle()
        cluster = admin.read()
        plan = _plan(cluster, broker)
    if plan and not json:
        show_plan(plan, cluster)
    if plan and not dry_run:
        Mover(admin, cluster, throttle).move(plan)
    if not dry_run:
        _check_empty(admin, broker)
    gone = False
    if not dry_run and unregister:
        _unregister(admin, broker, timeout)
        gone = True
    if json:
        executed = bool(plan) and not dry_run
        print_json(
            {"broker": broker, "executed": executed, "unregistered": gone, "moves": plan_document(plan, cluster)}
        )
    elif dry_run:
        print("nothing was moved: run it without --dry-run to move" if plan else f"broker {broker} has no replicas")
    elif gone:
        print(f"broker {broker} is unregistered")
    else:
        print(f"broker {broker} has no replicas now: it can be stopped")


def _undo(admin: "ClusterAdmin", broker: int, *, json: bool) -> None:
    admin.uncordon(broker)
    if json:
        print_json({"broker": broker, "cordoned": False})
    else:
        print(f"broker {broker} gets new replicas again: `millstream cluster balance` moves some to it")


def _plan(cluster: "ClusterState", broker: int) -> list[PlannedReassignment]:
    try:
        return plan_drain(available_brokers(cluster), loads(cluster), broker)
    except KafkaError as error:
        raise CommandFailedError(f"broker {broker} cannot be drained: {error.message}") from error


def _check_empty(admin: "ClusterAdmin", broker: int) -> None:
    left = [each for each in admin.partitions() if broker in each.replicas]
    if left:
        raise CommandFailedError(
            f"broker {broker} has {len(left)} partitions again, for example {left[0].topic_partition}: topics were "
            "created in the meantime; run the same command once more"
        )


def _unregister(admin: "ClusterAdmin", broker: int, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    is_noted = False
    while True:
        found = next((each for each in admin.describe().brokers if each.id == broker), None)
        if found is None:
            return
        if found.fenced:
            admin.unregister(broker)
            return
        if not is_noted:
            is_noted = True
            note(f"broker {broker} has no replicas now: stop it; it is unregistered when it has stopped")
        if time.monotonic() > deadline:
            raise CommandFailedError(
                f"broker {broker} has no replicas, but still runs: stop it, and run the same command again",
                exit_codes.TIMED_OUT,
            )
        time.sleep(_POLL_INTERVAL_S)
