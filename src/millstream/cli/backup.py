"""`millstream backup`: backups of a whole cluster in a directory or a bucket (docs/backups.md)."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    parsed_duration,
)
from millstream.cli.terminal import CommandFailedError, note, print_json, print_table, progress

if TYPE_CHECKING:
    from millstream.backup.repository import Manifest, Repository
    from millstream.backup.tier_objects import TierObjects
    from millstream.raw_client import Cluster

app = typer.Typer(
    help="Back a cluster up to a directory or a bucket, and restore it on new nodes.", no_args_is_help=True
)

To = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        envvar="MILLSTREAM_BACKUP_URL",
        help="Directory, or s3://, gs://, az:// as in millstream.tier.url. Credentials come from the environment.",
        show_default=False,
    ),
]
Id = Annotated[str | None, typer.Option("--id", metavar="ID", help="The backup. [default: the newest]")]
Rate = Annotated[
    str | None,
    typer.Option("--rate", metavar="SIZE", help="At most so many bytes per second: 50MB. [default: no limit]"),
]

TierUrl = Annotated[
    str | None,
    typer.Option(
        "--tier-url",
        metavar="URL",
        help="The tier with the objects to which the backup refers. [default: where it was when the backup was made]",
    ),
]
TierKeyFile = Annotated[
    str | None,
    typer.Option("--tier-key-file", metavar="FILE", help="The keys of encrypted objects of the tier."),
]
TierKeyCommand = Annotated[
    str | None, typer.Option("--tier-key-command", metavar="COMMAND", help="A command that prints these keys.")
]


@app.command()
def create(
    url: To,
    data_dir: Annotated[
        list[str] | None,
        typer.Option(
            "--data-dir",
            metavar="DIR",
            help="Data directory of a node on this machine: closed segments are linked, if the file system is the same."
            " Needed for a single node without a listener of controllers. Repeatable.",
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Store everything again, not only what is new.")] = False,
    tier_url: Annotated[
        str | None,
        typer.Option(
            "--tier-url",
            metavar="URL",
            help="The cluster's millstream.tier.url: records in it are not copied. The backup keeps their objects.",
        ),
    ] = None,
    rate: Rate = None,
    bootstrap_controller: Annotated[
        str | None,
        typer.Option("--bootstrap-controller", metavar="HOST:PORT", help="A controller. [default: found by itself]"),
    ] = None,
    controller_config: Annotated[
        str | None,
        typer.Option(
            "--controller-config", metavar="FILE", help="Client properties for controllers, if theirs are different."
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
    json: Json = False,
) -> None:
    """Back up a running cluster: topics, records, groups, transactions, schemas, users, ACLs, quotas, settings.

    Only segments that earlier backups at the same place do not have are stored. Transactions wait for a moment while
    the points are taken. An interrupted backup does not count, and leaves the earlier ones whole.

    \b
    Examples:
      millstream backup create /backups/west
      millstream backup create s3://bucket/west --bootstrap west-1:9092 --rate 50MB
      millstream backup create /data/backups --data-dir /data/node-1
      millstream backup create s3://backups/west --tier-url s3://tier/west
    """
    from millstream.backup.creating import Options, create_backup

    limit = _rate(rate)
    cluster = open_cluster(bootstrap, timeout, settings)
    controllers = _controllers(bootstrap_controller, controller_config, cluster, timeout)
    with (
        _failures(),
        _private_files(),
        _open(url, must_exist=False) as repository,
        _open_tier(tier_url) as tier,
        progress() as display,
    ):
        task = display.add_task("partitions", total=None, info="") if display is not None else None

        def report(done: int, total: int, size: int) -> None:
            if display is not None and task is not None:
                display.update(task, completed=done, total=total, info=f"{size / 1e6:,.1f} MB stored")

        options = Options(rate=limit, data_dirs=data_dir or (), controllers=controllers, full=full, tier=tier)
        made = create_backup(cluster, repository, options, report)
    if json:
        print_json(_document(made))
    else:
        print(made.id)
        note(f"{made.partition_count} partitions of {made.topics} topics, {made.size:,} bytes, {made.new_size:,} new")


@app.command("list")
def list_(url: To, json: Json = False) -> None:
    """List the complete backups, oldest first.

    \b
    Examples:
      millstream backup list /backups/west
      millstream backup list s3://bucket/west --json
    """
    with _failures(), _open(url) as repository:
        found = [_document(repository.manifest(each)) for each in repository.ids()]
    if json:
        print_json(found)
    elif not found:
        note("there are no backups")
    else:
        shown = ("id", "created", "cluster", "topics", "partitions", "bytes", "new_bytes", "version")
        print_table(shown, [tuple(str(row[name]) for name in shown) for row in found])


@app.command()
def verify(
    url: To,
    id_: Id = None,
    tier_url: TierUrl = None,
    tier_key_file: TierKeyFile = None,
    tier_key_command: TierKeyCommand = None,
    rate: Rate = None,
    json: Json = False,
) -> None:
    """Read a whole backup, and check every batch. Exit code 7 if something is damaged or missing.

    \b
    Examples:
      millstream backup verify /backups/west
      millstream backup verify s3://bucket/west --id 20260105T000000000Z-1a2b3c
    """
    from millstream.backup.restoring import verify_backup

    with _failures(), _open(url, _rate(rate)) as repository:
        manifest = _chosen(repository, id_)
        with (
            _open_tier(tier_url or manifest.tier, tier_key_file, tier_key_command, _rate(rate)) as tier,
            _bytes_shown("checked") as report,
        ):
            count = verify_backup(repository, manifest, report, tier)
    if json:
        print_json(_document(manifest) | {"segments": count})
    else:
        print(f"{manifest.id}: {count} segments with {manifest.size} bytes are whole")


@app.command()
def restore(
    url: To,
    node: Annotated[
        list[str] | None,
        typer.Option(
            "--node",
            metavar="ID=DIR",
            help="A broker of the new cluster and its data directory, which must be empty. Repeatable.",
        ),
    ] = None,
    controller: Annotated[
        list[str] | None,
        typer.Option(
            "--controller", metavar="ID=DIR", help="The same for a controller that is not a broker. Repeatable."
        ),
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option(
            "--nodes",
            metavar="ID,ID,...",
            help="All brokers of the new cluster, if others are restored on other machines. The same everywhere.",
        ),
    ] = None,
    cluster_id: Annotated[
        str | None,
        typer.Option(
            "--cluster-id", metavar="ID", help="The id of the new cluster: 22 characters. [default: a new one]"
        ),
    ] = None,
    id_: Id = None,
    all_to_disks: Annotated[
        bool,
        typer.Option("--all-to-disks", help="Write records that are in the tier to the disks, too, and do not use it."),
    ] = False,
    tier_url: TierUrl = None,
    tier_key_file: TierKeyFile = None,
    tier_key_command: TierKeyCommand = None,
    rate: Rate = None,
    json: Json = False,
) -> None:
    """Write the data directories of a new cluster from a backup. Then start its nodes on them.

    Records to which the backup refers in the tier stay there: start the new nodes with the same millstream.tier.url.

    \b
    Examples:
      millstream backup restore /backups/west --node 1=/data/restored
      millstream backup restore s3://bucket/west --node 4=/data --nodes 4,5,6 --cluster-id 4L6g3nShT-eMCtK--X86sw
    """
    from millstream.backup.restoring import restore_backup

    directories, controllers = _directories("--node", node), _directories("--controller", controller)
    if not directories and not controllers:
        raise CommandFailedError("name the nodes to restore: --node ID=DIR", exit_codes.USAGE)
    every = [_node_id("--nodes", each) for each in nodes.split(",")] if nodes else []
    if every and not set(directories) <= set(every):
        raise CommandFailedError(f"--nodes {nodes} must name all nodes of --node too", exit_codes.USAGE)
    if cluster_id is not None and not _is_id(cluster_id):
        raise CommandFailedError(
            f"--cluster-id {cluster_id}: an id is 22 characters of URL-safe base64, as 4L6g3nShT-eMCtK--X86sw",
            exit_codes.USAGE,
        )
    with _failures(), _open(url, _rate(rate)) as repository:
        manifest = _chosen(repository, id_)
        with (
            _open_tier(tier_url or manifest.tier, tier_key_file, tier_key_command, _rate(rate)) as tier,
            _bytes_shown("restored") as report,
        ):
            made = restore_backup(
                repository,
                manifest,
                directories,
                controllers=controllers,
                nodes=every,
                cluster_id=cluster_id,
                tier=tier,
                all_to_disks=all_to_disks,
                report=report,
            )
    document = {"id": manifest.id, "cluster": made.cluster_id, "replicas": made.partitions, "bytes": made.size}
    if json:
        print_json(document)
    else:
        print(f"restored {manifest.id} as cluster {made.cluster_id}: {made.partitions} replicas, {made.size} bytes")


@app.command()
def delete(
    url: To,
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID...]", help="Backups to delete.")] = None,
    keep: Annotated[
        int | None, typer.Option("--keep", metavar="N", min=1, help="Delete all but the newest N backups.")
    ] = None,
    unfinished: Annotated[
        str,
        typer.Option("--unfinished", metavar="TIME", help="Delete what interrupted backups of this age left, too."),
    ] = "24h",
    tier_url: TierUrl = None,
    json: Json = False,
) -> None:
    """Delete backups, and the segments that no other backup needs. Their objects of the tier are given free.

    \b
    Examples:
      millstream backup delete /backups/west 20260105T000000000Z-1a2b3c
      millstream backup delete s3://bucket/west --keep 7
    """
    import time

    from millstream.backup.repository import id_time

    if not ids and keep is None:
        raise CommandFailedError("name backups, or --keep N", exit_codes.USAGE)
    before_ms = int(time.time() * 1000) - parsed_duration("--unfinished", unfinished)
    with _failures(), _open(url) as repository:
        doomed = [repository.manifest(each).id for each in ids or ()]
        if keep is not None:
            doomed += [each for each in repository.ids()[:-keep] if each not in doomed]

        def release(backup_id: str) -> None:
            noted = repository.noted_tier(backup_id)
            if noted is not None:
                with _open_tier(tier_url or noted[0]) as tier:
                    assert tier is not None
                    tier.release(noted[1], backup_id)

        freed = repository.remove(doomed, id_time(before_ms), release)
    if json:
        print_json({"deleted": doomed, "bytes": freed})
    else:
        for each in doomed:
            print(each)
        note(f"{len(doomed)} backups deleted, {freed:,} bytes freed")


@contextmanager
def _failures() -> Iterator[None]:
    from millstream.backup.blocking_store import BackupError
    from millstream.backup.repository import DamagedBackupError, NoBackupError

    try:
        yield
    except NoBackupError as error:
        raise CommandFailedError(str(error), exit_codes.NOT_FOUND) from None
    except DamagedBackupError as error:
        raise CommandFailedError(str(error), exit_codes.DAMAGED) from None
    except (BackupError, OSError) as error:
        raise CommandFailedError(str(error)) from None


@contextmanager
def _private_files() -> Iterator[None]:
    """New files are for their owner alone: the metadata has keys of users."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _open(url: str, rate: int | None = None, *, must_exist: bool = True) -> "Repository":
    from millstream.backup.repository import Repository

    return Repository(url, rate=rate, must_exist=must_exist)


@contextmanager
def _open_tier(
    url: str | None, key_file: str | None = None, key_command: str | None = None, rate: int | None = None
) -> "Iterator[TierObjects | None]":
    if key_file is not None and key_command is not None:
        raise CommandFailedError("--tier-key-file and --tier-key-command: give one of them", exit_codes.USAGE)
    if url is None:
        yield None
        return
    from millstream.backup.tier_objects import TierObjects
    from millstream.node.tier.encryption import open_keyring

    with TierObjects(url, open_keyring(key_file, key_command), rate) as tier:
        yield tier


def _chosen(repository: "Repository", id_: str | None) -> "Manifest":
    from millstream.backup.repository import NoBackupError

    found = repository.manifest(id_) if id_ is not None else repository.newest()
    if found is None:
        raise NoBackupError(f"{repository.url} has no complete backup: check the address, or run `backup create`")
    return found


@contextmanager
def _bytes_shown(what: str) -> Iterator[Callable[[int, int], None]]:
    with progress(bytes_shown=True) as display:
        task = display.add_task(what, total=None, info="") if display is not None else None

        def report(done: int, total: int) -> None:
            if display is not None and task is not None:
                display.update(task, completed=done, total=total)

        yield report


def _controllers(address: str | None, config: str | None, cluster: "Cluster", timeout: float) -> "Cluster | None":
    if address is None and config is None:
        return None
    if address is None:
        raise CommandFailedError("--controller-config needs --bootstrap-controller", exit_codes.USAGE)
    if config is None:
        return cluster.only(address)
    from millstream.raw_client import Cluster
    from millstream.raw_client.client_properties import read_client_properties

    return Cluster(address, read_client_properties(config), client_id=CLIENT_ID, timeout_s=timeout)


def _rate(text: str | None) -> int | None:
    if text is None:
        return None
    from millstream.common.quantities import parse_size

    try:
        found = int(parse_size(text))
    except ValueError as error:
        raise CommandFailedError(f"--rate {error}", exit_codes.USAGE) from None
    if found <= 0:
        raise CommandFailedError("--rate must be more than 0", exit_codes.USAGE)
    return found


def _directories(option: str, words: list[str] | None) -> dict[int, str]:
    found: dict[int, str] = {}
    for word in words or ():
        number, equals, directory = word.partition("=")
        if not equals or not directory:
            raise CommandFailedError(f"{option} {word}: write ID=DIR", exit_codes.USAGE)
        node = _node_id(option, number)
        if node in found or os.path.abspath(directory) in map(os.path.abspath, found.values()):
            raise CommandFailedError(f"{option} {word}: each node has its own directory", exit_codes.USAGE)
        found[node] = directory
    return found


def _node_id(option: str, text: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise CommandFailedError(f"{option}: {text!r} is not a node id", exit_codes.USAGE)
    return int(text)


def _is_id(text: str) -> bool:
    return len(text) == 22 and text.isascii() and text.replace("-", "").replace("_", "").isalnum()


def _document(manifest: "Manifest") -> dict[str, object]:
    from datetime import UTC, datetime

    return {
        "id": manifest.id,
        "created": f"{datetime.fromtimestamp(manifest.created_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}",
        "cluster": manifest.cluster_id,
        "topics": manifest.topics,
        "partitions": manifest.partition_count,
        "bytes": manifest.size,
        "new_bytes": manifest.new_size,
        "version": manifest.version,
        "tier": manifest.tier,
    }
