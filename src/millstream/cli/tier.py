"""`millstream tier`: shows what is in the store of tiered storage, gets segments, sweeps, and restores topics."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from millstream.cli import exit_codes
from millstream.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_SECONDS,
    Bootstrap,
    ClientSettings,
    Json,
    Timeout,
    open_cluster,
    parsed_duration,
)
from millstream.cli.terminal import CommandFailedError, note, print_json, print_table

if TYPE_CHECKING:
    from millstream.node.storage.object_store import ObjectStore
    from millstream.node.tier.core.manifest import Manifest
    from millstream.node.tier.encryption import Keyring
    from millstream.raw_client import Cluster, TopicInfo

app = typer.Typer(
    help="Look into the object store of tiered storage: status, segments, orphans, restore.", no_args_is_help=True
)
T = TypeVar("T")

Url = Annotated[
    str,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="MILLSTREAM_TIER_URL",
        help="The store, as in millstream.tier.url. Credentials come from the environment.",
    ),
]
ClusterId = Annotated[
    str | None,
    typer.Option("--cluster-id", metavar="ID", help="The cluster, if the store has several. [default: the only one]"),
]
KeyFile = Annotated[
    str | None,
    typer.Option("--key-file", metavar="FILE", help="The keys of encrypted objects, as a broker's key file has them."),
]
KeyCommand = Annotated[
    str | None, typer.Option("--key-command", metavar="COMMAND", help="A command that prints these keys.")
]


@app.command()
def status(
    url: Url,
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="Only this topic.")] = None,
    cluster_id: ClusterId = None,
    json: Json = False,
) -> None:
    """Show the partitions in the store: offsets, segments, bytes. Needs no broker.

    \b
    Examples:
      millstream tier status --url s3://bucket/prefix
      millstream tier status orders --url s3://bucket/prefix --json
    """

    async def read(store: "ObjectStore") -> "list[tuple[str, Manifest]]":
        return await _manifests(store, cluster_id)

    found = [(cluster, each) for cluster, each in _with_store(url, read) if topic in (None, each.topic)]
    if topic is not None and not found:
        raise CommandFailedError(f"the store has no objects of topic {topic}", exit_codes.NOT_FOUND)
    rows = [
        {
            "cluster": cluster,
            "topic": each.topic,
            "topic_id": str(each.topic_id),
            "partition": each.partition,
            "log_start_offset": each.log_start_offset,
            "end_offset": each.end_offset,
            "segments": len(each.readable),
            "deleting": len(each.deleting),
            "bytes": sum(segment.object_bytes for segment in each.segments),
            "leader_epoch": each.leader_epoch,
        }
        for cluster, each in found
    ]
    if json:
        print_json(rows)
    elif not rows:
        note("the store has no tiered partitions")
    else:
        shown = ("topic", "partition", "log_start_offset", "end_offset", "segments", "bytes", "cluster")
        print_table(shown, [tuple(str(row[name]) for name in shown) for row in rows])


@app.command()
def get(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic.", show_default=False)],
    url: Url,
    partition: Annotated[int, typer.Option("--partition", "-p", metavar="N", min=0, help="Partition.")] = 0,
    offset: Annotated[
        int | None, typer.Option("--offset", "-o", metavar="N", min=0, help="Only the segment with this offset.")
    ] = None,
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="Directory for the files.")] = ".",
    cluster_id: ClusterId = None,
    key_file: KeyFile = None,
    key_command: KeyCommand = None,
) -> None:
    """Get segments as the files of a broker's disk. Kafka's kafka-dump-log and `millstream log dump` read them.

    \b
    Examples:
      millstream tier get orders --url s3://bucket/prefix --to /tmp/orders-0
      millstream tier get orders -p 3 -o 1000000 --url s3://bucket/prefix --to /tmp/one
      millstream tier get orders --url s3://bucket/prefix --to /tmp/orders-0 --key-file tier.keys
    """
    if key_file is not None and key_command is not None:
        raise CommandFailedError("--key-file and --key-command: give one of them", exit_codes.USAGE)

    async def fetch(store: "ObjectStore") -> list[str]:
        from millstream.node.storage.object_store import NoObjectError
        from millstream.node.tier.encryption import WrongKeyError, open_keyring

        keyring = open_keyring(key_file, key_command)
        for _, each in await _manifests(store, cluster_id):
            if (each.topic, each.partition) == (topic, partition):
                segments = each.readable if offset is None else tuple(filter(None, [each.segment_of(offset)]))
                os.makedirs(to, exist_ok=True)
                try:
                    return [
                        path for segment in segments for path in await _get_segment(store, segment.name, to, keyring)
                    ]
                except WrongKeyError as error:
                    hint = "" if keyring else " Here: --key-file or --key-command."
                    raise CommandFailedError(f"{error}{hint}", exit_codes.FAILED) from None
                except NoObjectError as error:
                    raise CommandFailedError(
                        f"an object is missing in the store: {error}", exit_codes.NOT_FOUND
                    ) from None
        raise CommandFailedError(f"the store has no objects of {topic}-{partition}", exit_codes.NOT_FOUND)

    paths = _with_store(url, fetch)
    if not paths:
        raise CommandFailedError(f"no segment of {topic}-{partition} has offset {offset}", exit_codes.NOT_FOUND)
    for path in paths:
        print(path)


async def _get_segment(store: "ObjectStore", name: str, to: str, keyring: "Keyring | None") -> list[str]:
    from crc32c import crc32c

    from millstream.node.tier.core import object_format
    from millstream.node.tier.encryption import decrypt_object

    stored, _ = await store.read_whole(name)
    try:
        data = await asyncio.to_thread(decrypt_object, stored, name, keyring)
        footer = object_format.decode_footer(data)
        paths = []
        for section, place in footer.sections.items():
            part = data[place.position : place.position + place.length]
            if crc32c(part) != place.crc:
                raise object_format.DamagedObjectError(f"section {section} has a wrong checksum")
            if section in (object_format.ABORTED, object_format.PRODUCERS) or not part:
                continue
            base = footer.identity.end_offset if section == object_format.SNAPSHOT else footer.identity.base_offset
            file = section if section == object_format.EPOCHS else f"{base:020d}.{section}"
            paths.append(os.path.join(to, file))
            await asyncio.to_thread(_write, paths[-1], part)
        return paths
    except object_format.DamagedObjectError as error:
        raise CommandFailedError(f"{name} is damaged: {error}", exit_codes.DAMAGED) from None


def _write(path: str, data: bytes) -> None:
    with open(path, "wb") as out:
        out.write(data)


@app.command()
def sweep(
    url: Url,
    delete: Annotated[bool, typer.Option("--delete", help="Delete them. Without it, they are only shown.")] = False,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="TIME", help="Only objects of this age: 90m, 24h, 7d.")
    ] = "24h",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
    json: Json = False,
) -> None:
    """Find objects of the cluster that belong to no topic, and delete them with --delete.

    Uploads that were cut off are found too, in S3 and in directories: other stores do not list them.

    Brokers do it every hour, except for topics that the cluster does not have, but the store still knows, unless they
    have seen that they were deleted: such topics may be of a lost cluster with the same id, and can be restored until
    they are swept.

    \b
    Examples:
      millstream tier sweep --url s3://bucket/prefix
      millstream tier sweep --url s3://bucket/prefix --older-than 2h --delete
    """
    cluster = open_cluster(bootstrap, timeout, settings)
    known = cluster.topics().values()
    topics = {info.topic_id for info in known}
    own_id = _cluster_id(cluster)
    branches = _tiered_branches(cluster, known, own_id)
    before_ms = int(time.time() * 1000) - parsed_duration("--older-than", older_than)
    # A list of topics lacks those that the caller may not describe; a question for one of them is refused.
    named = _with_store(url, lambda store: _manifests(store, own_id))
    unlisted = {each.topic for _, each in named if each.topic_id not in topics}
    topics |= {info.topic_id for info in cluster.topics(unlisted).values()} if unlisted else set()

    async def run(store: "ObjectStore") -> tuple[list[str], list[str]]:
        from millstream.node.tier.sweeping import Sweeper

        sweeper = Sweeper(store, own_id)
        orphans = await sweeper.orphans(topics, before_ms, of_lost_topics=True, branches=branches)
        abandoned = await sweeper.abandoned(before_ms)
        if delete:
            await store.delete(orphans)
            await store.abort(abandoned)
        return orphans, [each.name for each in abandoned]

    orphans, abandoned = _with_store(url, run)
    if json:
        print_json({"deleted": delete, "objects": orphans, "uploads": abandoned})
        return
    for name in orphans:
        print(name)
    for name in abandoned:
        print(f"{name} (upload)")
    done = "deleted" if delete else "found"
    note(f"{len(orphans)} orphaned objects {done}, {len(abandoned)} uploads that were not completed")


def _tiered_branches(cluster: "Cluster", topics: "Iterable[TopicInfo]", cluster_id: str) -> list[str]:
    """The prefixes of the partitions of branches, which have a manifest as soon as they refer to their parent's."""
    from millstream.admin.topics import ConfigResource, TopicAdmin
    from millstream.node.tier.core.manifest import partition_prefix

    admin = TopicAdmin(cluster)
    return [
        partition_prefix(cluster_id, each.topic_id, index)
        for each in topics
        if each.branch_offsets
        and admin.setting(ConfigResource.TOPIC, each.name, "remote.storage.enable").value == "true"
        for index in range(len(each.branch_offsets))
    ]


@app.command()
def restore(
    url: Url,
    topics: Annotated[list[str] | None, typer.Argument(metavar="[TOPIC...]", help="Topics. [default: all]")] = None,
    cluster_id: ClusterId = None,
    replication_factor: Annotated[
        int, typer.Option("--replication-factor", metavar="N", help="Replicas; -1 leaves it to the brokers.")
    ] = -1,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Create topics of a lost cluster again in a new one, with all records that are in the store.

    The new cluster must have the same millstream.tier.url, and the old one must not run any more. Offsets, keys,
    timestamps and settings are kept. Records that were not in the store yet are lost with the disks of the old cluster.
    If the new cluster has the id of the old one, name it with --cluster-id.

    \b
    Examples:
      millstream tier restore --url s3://bucket/prefix --bootstrap new:9092
      millstream tier restore orders --url s3://bucket/prefix --cluster-id KQx2… --replication-factor 3
    """
    from millstream.config.table.topic import MILLSTREAM_TIER_RESTORE_FROM

    cluster = open_cluster(bootstrap, timeout, settings)
    own_id = _cluster_id(cluster)

    async def read(store: "ObjectStore") -> "list[tuple[str, Manifest]]":
        return await _manifests(store, cluster_id, other_than=own_id if cluster_id is None else None)

    present = {info.topic_id for info in cluster.topics().values()}
    found: dict[str, list[tuple[str, Manifest]]] = {}
    for source, each in _with_store(url, read):
        if (not topics or each.topic in topics) and each.topic_id not in present:
            found.setdefault(each.topic, []).append((source, each))
    missing = [name for name in topics or () if name not in found]
    if missing or not found:
        raise CommandFailedError(
            f"the store has no objects of {', '.join(missing) or 'a cluster'}", exit_codes.NOT_FOUND
        )
    for name, parts in sorted(found.items()):
        ids = {each.topic_id for _, each in parts}
        if len(ids) > 1:
            raise CommandFailedError(f"the store has {len(ids)} topics {name}: remove the older ones with tier sweep")
        source, first = parts[0]
        configs = {key: value for key, value in first.configs.items() if key != MILLSTREAM_TIER_RESTORE_FROM.name} | {
            "remote.storage.enable": "true",
            MILLSTREAM_TIER_RESTORE_FROM.name: f"{source}/{first.topic_id}",
        }
        count = max(first.partition_count, *(each.partition + 1 for _, each in parts))
        cluster.create_topic(name, count, replication_factor, configs)
        _await_restored(cluster, name, {each.partition: each.end_offset for _, each in parts}, timeout)
        note(f"restored {name}: {count} partitions, {sum(len(each.readable) for _, each in parts)} segments")


def _await_restored(cluster: "Cluster", topic: str, ends: dict[int, int], timeout: float) -> None:
    from millstream.raw_client import LATEST, TopicPartition, WireError

    deadline = time.monotonic() + max(timeout, 60.0)
    while True:
        try:
            latest = cluster.offsets({TopicPartition(topic, index): LATEST for index in ends})
            behind = [at.partition for at, found in latest.items() if found.offset < ends[at.partition]]
        except WireError:
            behind = list(ends)
        if not behind:
            return
        if time.monotonic() > deadline:
            raise CommandFailedError(
                f"{topic}: partitions {behind} are not restored; the logs of the brokers have the reason",
                exit_codes.TIMED_OUT,
            )
        time.sleep(0.2)


def _cluster_id(cluster: "Cluster") -> str:
    found: str = cluster.call("describe_cluster").cluster_id
    return found


async def _manifests(
    store: "ObjectStore", cluster_id: str | None, *, other_than: str | None = None
) -> "list[tuple[str, Manifest]]":
    """The manifests of a cluster, with its id; of the only one in the store if none is named.

    One that is gone after it was listed is left out: its topic was deleted meanwhile.
    """
    from millstream.node.storage.object_store import NoObjectError
    from millstream.node.tier.core.manifest import MANIFEST, DamagedManifestError, decode_manifest

    names = [each.name for each in await store.list(cluster_id or "") if each.name.endswith(f"/{MANIFEST}")]
    clusters = sorted({name.split("/", 1)[0] for name in names} - {other_than})
    if cluster_id is None and len(clusters) > 1:
        raise CommandFailedError(f"the store has several clusters: name one with --cluster-id ({', '.join(clusters)})")
    found = []
    for name in sorted(names):
        if name.split("/", 1)[0] in clusters:
            try:
                found.append((clusters[0], decode_manifest((await store.read_whole(name))[0])))
            except NoObjectError:
                continue
            except DamagedManifestError as error:
                raise CommandFailedError(f"{name}: {error}", exit_codes.DAMAGED) from None
    return sorted(found, key=lambda row: (row[1].topic, row[1].partition))


def _with_store(url: str, use: "Callable[[ObjectStore], Awaitable[T]]") -> T:
    from millstream.node.runtime.object_store import UNLIMITED, open_store
    from millstream.node.storage.object_store import StoreError, StoreRates

    async def run() -> T:
        rates = StoreRates(lambda: UNLIMITED, lambda: UNLIMITED)
        store = open_store(url, asyncio.get_running_loop(), rates)
        try:
            return await use(store)
        finally:
            store.close()

    try:
        return asyncio.run(run())
    except (StoreError, ValueError, OSError) as error:
        raise CommandFailedError(f"the store {url} cannot be used: {error}") from None
