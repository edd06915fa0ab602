"""`millstream broker`: list the brokers of a cluster, and empty one that is to go."""

import time
from typing import Annotated

import typer

from millstream.cli import exit_codes
from millstream.cli.cluster.commands import Throttle
from millstream.cli.cluster.moves import Mover, loads, places
from millstream.cli.cluster.report import broker_rows, plan_document, show_brokers, show_plan
from millstream.cli.cluster_reading import Cluster, ClusterAdmin, open_admin
from millstream.cli.options import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_S, Bootstrap, ClientSettings, Json, Timeout
from millstream.cli.terminal import CommandFailedError, note, print_json
from millstream.formats.model.errors import KafkaError
from millstream.node.metadata.balance import PlannedReassignment, plan_drain

app = typer.Typer(help="List the brokers of a cluster; empty one that is to go.", no_args_is_help=True)
_LOOK_S = 0.5


@app.command("list")
def list_brokers(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    settings: ClientSettings = None,
) -> None:
    """List brokers: where they are, what they lead and hold.

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
    broker: Annotated[int, typer.Argument(metavar="ID", help="The broker's id (node.id).", show_default=False)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be moved, and move nothing.")] = False,
    throttle: Throttle = None,
    unregister: Annotated[
        bool,
        typer.Option("--unregister", help="Then wait until the broker is stopped, and make the cluster forget it."),
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Let it have new replicas again; `cluster balance` gives it some.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    settings: ClientSettings = None,
) -> None:
    """Move everything off a broker, which then can be stopped for good. Works for one that is dead, too.

    From the start on the broker gets no new replicas (it is cordoned). Waits
    until all is moved. With --unregister it goes on waiting, up to --timeout
    seconds, for the broker to be stopped; without, do that later: the
    command finds nothing left to move.

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
        _forget(admin, broker, timeout)
        gone = True
    if json:
        executed = bool(plan) and not dry_run
        print_json(
            {"broker": broker, "executed": executed, "unregistered": gone, "moves": plan_document(plan, cluster)}
        )
    elif dry_run:
        print("nothing was moved: leave --dry-run out to do it" if plan else f"broker {broker} holds nothing")
    elif gone:
        print(f"broker {broker} is gone")
    else:
        print(f"broker {broker} holds nothing now: it can be stopped")


def _undo(admin: ClusterAdmin, broker: int, *, json: bool) -> None:
    admin.cordon(broker, lift=True)
    if json:
        print_json({"broker": broker, "cordoned": False})
    else:
        print(f"broker {broker} may have new replicas again: `millstream cluster balance` gives it its share")


def _plan(cluster: Cluster, broker: int) -> list[PlannedReassignment]:
    try:
        return plan_drain(places(cluster), loads(cluster), broker)
    except KafkaError as error:
        raise CommandFailedError(f"broker {broker} cannot be emptied: {error.message}") from error


def _check_empty(admin: ClusterAdmin, broker: int) -> None:
    left = [each for each in admin.partitions() if broker in each.replicas]
    if left:
        raise CommandFailedError(
            f"broker {broker} has {len(left)} partitions again, {left[0].topic}-{left[0].number} for one: topics were "
            "made meanwhile; run the same command once more"
        )


def _forget(admin: ClusterAdmin, broker: int, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    told = False
    while True:
        _, brokers = admin.brokers()
        found = next((each for each in brokers if each.id == broker), None)
        if found is None:
            return
        if found.fenced:
            admin.unregister(broker)
            return
        if not told:
            told = True
            note(f"broker {broker} holds nothing now: stop it; the cluster forgets it as soon as it is gone")
        if time.monotonic() > deadline:
            raise CommandFailedError(
                f"broker {broker} holds nothing, but still runs: stop it, and run the same command again",
                exit_codes.TIMED_OUT,
            )
        time.sleep(_LOOK_S)
