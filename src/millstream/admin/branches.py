"""Branches of topics: a topic that begins with the records of another one, and shares its files (docs/branches.md).

A plan has the point of each partition: the offset where the records of the parent end, and those of the branch begin.
It is never after the last stable offset, so that no transaction is open there, and never within a batch.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from millstream.admin.errors import GroupNotEmptyError, InvalidArgumentError
from millstream.formats.model.errors import ErrorCode
from millstream.formats.model.identifiers import BRANCHES
from millstream.formats.protocol.schema import Message
from millstream.formats.records.batch import HEADER, HEADER_SIZE
from millstream.raw_client import EARLIEST, LATEST, Cluster, RefusedError, TopicInfo, TopicPartition
from millstream.raw_client.deadline import Deadline
from millstream.raw_client.errors import RetriableError, SetupError, error_code, refusal
from millstream.raw_client.routing import CoordinatorKind

_CHANGE_TIMEOUT_MS = 30_000
_BATCH_BYTES = 1
"""A fetch responds with at least one batch, whatever its size."""


@dataclass(frozen=True, slots=True)
class BranchPoint:
    """Where a branch leaves its parent, in one partition."""

    partition: int
    start: int
    """Where the log of the parent begins."""
    offset: int
    """The branch has the parent's records before this offset."""
    note: str = ""
    """Why it is not the offset that was asked for; empty if it is."""

    @property
    def records(self) -> int:
        """How many offsets the branch shares with its parent."""
        return self.offset - self.start


@dataclass(frozen=True, slots=True)
class Branching:
    """A branch that was created."""

    topic: str
    parent: str
    points: list[BranchPoint]
    groups: dict[str, dict[int, int]]
    """The committed offsets that were copied, by group and partition."""


def plan_branch(
    cluster: Cluster, parent: str, *, at_ms: int | None = None, offsets: Mapping[TopicPartition, int] | None = None
) -> list[BranchPoint]:
    """The points of a branch: the end now, the first records at or after a time, or the given offsets."""
    if at_ms is not None and offsets is not None:
        raise InvalidArgumentError("give a time or offsets, not both")
    topic = _topic(cluster, parent)
    places = [TopicPartition(parent, each.index) for each in topic.partitions]
    lows = cluster.offsets(dict.fromkeys(places, EARLIEST))
    highs = cluster.offsets(dict.fromkeys(places, LATEST))
    wanted = {place: highs[place].offset for place in places}
    if at_ms is not None:
        for place, found in cluster.offsets(dict.fromkeys(places, at_ms)).items():
            wanted[place] = found.offset if found.offset >= 0 else wanted[place]
    elif offsets is not None:
        _check_offsets(parent, places, offsets)
        wanted = {place: offsets[place] for place in places}
    return [_point(cluster, place, wanted[place], lows[place].offset, highs[place].offset) for place in places]


def create_branch(
    cluster: Cluster,
    parent: str,
    name: str,
    points: Iterable[BranchPoint],
    *,
    configs: Mapping[str, str] | None = None,
    groups: Mapping[str, str] | None = None,
) -> Branching:
    """Creates a branch, and waits until its leaders have the shared records on all in-sync replicas.

    `groups`: the committed offsets of these groups are copied to the groups that they are mapped to.
    """
    planned = sorted(points, key=lambda each: each.partition)
    topic = _topic(cluster, parent)
    _check_support(cluster)
    if name in cluster.topics([name]):
        raise refusal(f"topic {name!r}", ErrorCode.TOPIC_ALREADY_EXISTS)
    copied = {source: _committed(cluster, source, target, topic) for source, target in (groups or {}).items()}
    row = {
        "name": name,
        "num_partitions": -1,
        "replication_factor": -1,
        "assignments": [],
        "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
        "branch_of": parent,
        "branch_of_id": topic.topic_id,
        "branch_offsets": [each.offset for each in planned],
    }
    response = cluster.call("create_topics", topics=[row], timeout_ms=_CHANGE_TIMEOUT_MS)
    _check_created(cluster, response.topics[0], topic, name, planned)
    _wait_until_made(cluster, name, planned)
    moved: dict[str, dict[int, int]] = {}
    for source, target in (groups or {}).items():
        ends = {each.partition: each.offset for each in planned}
        moved[target] = {index: min(offset, ends[index]) for index, offset in copied[source].items() if index in ends}
        cluster.commit_offsets(target, {TopicPartition(name, index): at for index, at in moved[target].items()})
    return Branching(name, parent, planned, moved)


def _topic(cluster: Cluster, name: str) -> TopicInfo:
    found = cluster.topics([name]).get(name)
    if found is None:
        raise refusal(f"topic {name!r}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return found


def _check_offsets(parent: str, places: list[TopicPartition], offsets: Mapping[TopicPartition, int]) -> None:
    missing = [place for place in places if place not in offsets]
    if missing:
        raise InvalidArgumentError(
            f"there is no offset for partition {missing[0].partition} of {parent!r}: give one for each of its "
            f"{len(places)} partitions"
        )
    unknown = [place for place in offsets if place not in places]
    if unknown:
        raise InvalidArgumentError(f"{unknown[0]} is no partition of {parent!r}, which has {len(places)}")


def _point(cluster: Cluster, place: TopicPartition, wanted: int, low: int, high: int) -> BranchPoint:
    if wanted > high:
        return BranchPoint(place.partition, low, high, f"{wanted} is after the last stable offset")
    if wanted <= low:
        note = f"{wanted} is before the start of the log" if wanted < low else ""
        return BranchPoint(place.partition, low, low, note)
    if wanted == high:
        return BranchPoint(place.partition, low, high)
    begin = _begin_of_batch(cluster, place, wanted)
    if low < begin < wanted:
        return BranchPoint(place.partition, low, begin, f"{wanted} is within a batch")
    if begin <= low:
        return BranchPoint(place.partition, low, low, f"{wanted} is within the first batch")
    return BranchPoint(place.partition, low, wanted)


def _begin_of_batch(cluster: Cluster, place: TopicPartition, offset: int) -> int:
    """The first offset of the batch that has `offset`; `offset` if compaction has removed that."""
    deadline = Deadline(cluster.timeout_s)

    def attempt() -> int:
        fetched = cluster.fetch(place, offset, max_bytes=_BATCH_BYTES, max_wait_ms=500, read_committed=False)
        if len(fetched.data) < HEADER_SIZE:  # the records come from the tier
            raise RetriableError(f"{place}: the batch with offset {offset}", ErrorCode.OFFSET_NOT_AVAILABLE)
        return int(HEADER.unpack_from(fetched.data)[0])

    return min(deadline.retry(attempt), offset)


def _check_support(cluster: Cluster) -> None:
    """A broker that does not know branches would create an empty topic."""
    for broker in cluster.brokers():
        with cluster.connection(broker.node_id) as connection:
            if BRANCHES not in connection.supported:
                raise SetupError(
                    f"broker {broker.node_id} cannot create branches: it has no feature {BRANCHES}. All brokers must "
                    "be Millstream brokers of this version or a later one"
                )


def _committed(cluster: Cluster, source: str, target: str, topic: TopicInfo) -> dict[int, int]:
    """The committed offsets of a group for the parent. Found before the branch is created, with all that may fail."""
    response = cluster.call_coordinator(target, CoordinatorKind.GROUP, "describe_groups", groups=[target])
    if response.groups[0].members:
        raise GroupNotEmptyError(
            f"group {target!r} has members, which commit offsets themselves: stop them, or copy the offsets to another "
            f"group ({source}=NEW-NAME)"
        )
    places = [TopicPartition(topic.name, each.index) for each in topic.partitions]
    return {place.partition: offset for place, offset in cluster.committed_offsets(source, places).items()}


def _check_created(cluster: Cluster, row: Message, parent: TopicInfo, name: str, points: list[BranchPoint]) -> None:
    code = error_code(row.error_code)
    if code is ErrorCode.TOPIC_ALREADY_EXISTS:
        # A request before this one may have been successful, and its response lost.
        found = cluster.topics([name]).get(name)
        if (
            found is not None
            and found.branch_of_id == parent.topic_id
            and found.branch_offsets == tuple(each.offset for each in points)
        ):
            return
    if code is not ErrorCode.NONE:
        raise refusal(f"topic {name!r}", code, row.error_message)
    if row.branch_of is None:
        raise RefusedError(
            f"topic {name!r} was created without the records of {parent.name!r}, because the controller is of an older "
            "version: delete it, and update the controllers",
            ErrorCode.UNSUPPORTED_VERSION,
        )


def _wait_until_made(cluster: Cluster, name: str, points: list[BranchPoint]) -> None:
    deadline = Deadline(cluster.timeout_s)

    def attempt() -> None:
        ends = cluster.offsets({TopicPartition(name, each.partition): LATEST for each in points}, read_committed=False)
        for each in points:
            if ends[TopicPartition(name, each.partition)].offset < each.offset:
                raise RetriableError(f"partition {each.partition} of {name!r}", ErrorCode.OFFSET_NOT_AVAILABLE)

    deadline.retry(attempt)
