"""`millstream broker`: list the brokers and their disks; drain one, or all of a machine, before they are removed."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli import exit_codes
from millstream.cli.cluster.commands import Throttle
from millstream.cli.cluster.moves import mover, open_admin
from millstream.cli.cluster.report import (
    broker_rows,
    disk_rows,
    plan_document,
    show_brokers,
    show_disks,
    show_plan,
)
from millstream.cli.options import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_SECONDS, Bootstrap, ClientSettings, Json, Timeout
from millstream.cli.terminal import CommandFailedError, note, print_json

if TYPE_CHECKING:
    from millstream.admin.balance import PlannedReassignment
    from millstream.admin.cluster import Broker, ClusterAdmin, ClusterState
    from millstream.raw_client import TopicPartition

app = typer.Typer(help="List the brokers of a cluster; drain a broker before it is removed.", no_args_is_help=True)
_POLL_INTERVAL_SECONDS = 0.5


@app.command("list")
def list_brokers(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
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
def disks(
    broker: Annotated[
        int | None, typer.Argument(metavar="[ID]", help="Broker id (node.id); all by default.", show_default=False)
    ] = None,
    move: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--move",
            metavar="TOPIC-PARTITION DIR",
            help="Move this replica to another log directory of the broker, and wait until it is there.",
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Show the log directories of brokers: space, replicas, moves; or move a replica to another directory.

    Records can be written and read during a move. A move continues after the
    command was interrupted. --timeout is the time without progress until the command
    stops to wait.

    \b
    Examples:
      millstream broker disks
      millstream broker disks 1 --move orders-0 /disk2/data
    """
    admin = open_admin(bootstrap, timeout, settings)
    cluster = admin.read()
    brokers = [each for each in cluster.brokers if broker in (None, each.id)]
    if not brokers:
        raise CommandFailedError(f"there is no broker {broker}: `millstream broker list`", exit_codes.NOT_FOUND)
    if move is not None:
        from millstream.node.storage.file_formats import parse_directory
        from millstream.raw_client import TopicPartition

        partition = parse_directory(move[0])
        if partition is None:
            raise CommandFailedError(f"--move {move[0]}: write TOPIC-PARTITION, for example orders-0", exit_codes.USAGE)
        if len(brokers) > 1:
            raise CommandFailedError("--move needs the id of one broker: `millstream broker disks ID --move ...`")
        at = TopicPartition(partition.topic, partition.partition)
        admin.move_to_directory(brokers[0].id, at, move[1].rstrip("/") or move[1])
        _wait_for_move(admin, brokers[0], at, move[1].rstrip("/") or move[1], timeout)
    rows = disk_rows([(each, admin.log_directories(each)) for each in brokers])
    if json:
        print_json(rows)
    else:
        show_disks(rows)


def _wait_for_move(admin: "ClusterAdmin", broker: "Broker", at: "TopicPartition", path: str, timeout: float) -> None:
    behind: int | None = None
    deadline = time.monotonic() + timeout
    while True:
        found = {each.path: each for each in admin.log_directories(broker).directories}
        target = found.get(path)
        if target is None or target.is_offline:
            raise CommandFailedError(f"{path} of broker {broker.id} is offline: check the disk")
        if at in target.sizes:
            return
        now_behind = target.moving_in.get(at)
        if now_behind != behind:
            behind, deadline = now_behind, time.monotonic() + timeout
        if time.monotonic() > deadline:
            raise CommandFailedError(
                f"{at} did not move to {path} in {timeout:g} s: see the log of broker {broker.id}",
                exit_codes.TIMED_OUT,
            )
        time.sleep(_POLL_INTERVAL_SECONDS)


@app.command()
def drain(
    broker: Annotated[
        int | None, typer.Argument(metavar="[ID]", help="Broker id (node.id).", show_default=False)
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option("--machine", metavar="NAME", help="All brokers of this machine (see `broker list`), not one."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")] = False,
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
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Move all replicas off a broker or a machine, so that it can be stopped for good. Works for dead brokers too.

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
      millstream broker drain --machine machine-3 --unregister
    """
    admin = open_admin(bootstrap, timeout, settings)
    cluster = admin.read()
    cluster.check_quorum()
    brokers = _chosen(cluster, broker, machine)
    named = f"broker {brokers[0]}" if machine is None else f"machine {machine}"
    document = {"broker": brokers[0]} if machine is None else {"machine": machine, "brokers": brokers}
    if undo:
        for number in brokers:
            admin.uncordon(number)
        if json:
            print_json({**document, "cordoned": False})
        else:
            print(f"{named} gets new replicas again: `millstream cluster balance` moves some to it")
        return
    plan = _plan(cluster, brokers, named)
    if not dry_run:
        for number in brokers:
            admin.cordon(number)
        with mover(admin, cluster, throttle) as moving:
            moving.settle()
        cluster = admin.read()
        plan = _plan(cluster, brokers, named)
    if plan and not json:
        show_plan(plan)
    if plan and not dry_run:
        with mover(admin, cluster, throttle) as moving:
            moving.move(plan)
    if not dry_run:
        for number in brokers:
            _check_empty(admin, number)
    gone = False
    if not dry_run and unregister:
        for number in brokers:
            _unregister(admin, number, timeout)
        gone = True
    if json:
        executed = bool(plan) and not dry_run
        print_json({**document, "executed": executed, "unregistered": gone, "moves": plan_document(plan)})
    elif dry_run:
        print("nothing was moved: run it without --dry-run to move" if plan else f"{named} has no replicas")
    elif gone:
        print(f"{named} is unregistered")
    else:
        print(f"{named} has no replicas now: it can be stopped")


def _chosen(cluster: "ClusterState", broker: int | None, machine: str | None) -> list[int]:
    """The brokers to drain: one, or all of a machine."""
    if (broker is None) == (machine is None):
        raise CommandFailedError(
            "give a broker id, or --machine NAME; `millstream broker list` shows both", exit_codes.USAGE
        )
    if broker is not None:
        return [cluster.broker(broker).id]
    found = [each.id for each in cluster.brokers if each.machine == machine]
    if not found:
        known = ", ".join(sorted({each.machine for each in cluster.brokers}))
        raise CommandFailedError(f"there is no machine {machine}; the machines are {known}", exit_codes.NOT_FOUND)
    return found


def _plan(cluster: "ClusterState", brokers: list[int], named: str) -> "list[PlannedReassignment]":
    from millstream.admin.moves import MoveError, drain_plan

    try:
        return drain_plan(cluster, brokers)
    except MoveError as error:
        raise CommandFailedError(f"{named} cannot be drained: {error}") from error


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
        time.sleep(_POLL_INTERVAL_SECONDS)
