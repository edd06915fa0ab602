"""The delivery state of a share group, read from its share coordinators: records for redelivery, done and archived.

Read-only: the state is requested with its current leader epoch, so nothing is written.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from millstream.console.live.snapshot import Topic
from millstream.formats.protocol.schema import Message
from millstream.raw_client import Cluster, CoordinatorKind, TopicPartition
from millstream.raw_client.errors import error_code, refusal

_AVAILABLE, _DONE, _GIVING_UP, _GIVEN_UP = 0, 2, 3, 4
_GROUP_RESOURCE = 32
_OF_SHARE_GROUPS = ("share.", "errors.")
DEAD_LETTER_TOPIC = "errors.deadletterqueue.topic.name"


@dataclass(frozen=True, slots=True)
class Delivery:
    """Of one partition, from where the group begins: counts of records."""

    start: int
    redelivered: int
    """Given back, or their lock ran out: they wait for another try."""
    most_deliveries: int
    done: int
    """Out of turn: before them there is one that is not."""
    given_up: int


def read_delivery(
    cluster: Cluster, group: str, places: Mapping[TopicPartition, int], topics: Mapping[str, Topic]
) -> dict[TopicPartition, Delivery]:
    """Partitions whose topic is gone, or that nobody has read yet, are absent."""
    found = {}
    for place in places:
        topic = topics.get(place.topic)
        if topic is None:
            continue
        row = _read(cluster, group, topic.id, place)
        if row is not None:
            found[place] = _counted(row)
    return found


def _read(cluster: Cluster, group: str, topic_id: UUID, place: TopicPartition) -> Message | None:
    def ask(api: str, epoch: int) -> Message:
        key = f"{group}:{base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip('=')}:{place.partition}"
        partitions = [{"partition": place.partition, "leader_epoch": epoch}]
        answer = cluster.call_coordinator(
            key,
            CoordinatorKind.SHARE,
            api,
            group_id=group,
            topics=[{"topic_id": topic_id, "partitions": partitions}],
        )
        row: Message = answer.results[0].partitions[0]
        if row.error_code:
            raise refusal(f"the state of {group} in {place}", error_code(row.error_code), row.error_message)
        return row

    summary = ask("read_share_group_state_summary", -1)
    return None if summary.start_offset < 0 else ask("read_share_group_state", summary.leader_epoch)


def _counted(row: Message) -> Delivery:
    counts = {_AVAILABLE: 0, _DONE: 0, _GIVING_UP: 0, _GIVEN_UP: 0}
    most = 0
    for batch in row.state_batches:
        size = batch.last_offset - batch.first_offset + 1
        if batch.delivery_state == _AVAILABLE and not batch.delivery_count:
            continue
        counts[batch.delivery_state] = counts.get(batch.delivery_state, 0) + size
        if batch.delivery_state == _AVAILABLE:
            most = max(most, batch.delivery_count)
    return Delivery(row.start_offset, counts[_AVAILABLE], most, counts[_DONE], counts[_GIVING_UP] + counts[_GIVEN_UP])


def read_settings(cluster: Cluster, group: str) -> dict[str, str]:
    """The settings of a share group, as they hold for it; those that only concern other groups are left out."""
    resource = {"resource_type": _GROUP_RESOURCE, "resource_name": group, "configuration_keys": None}
    answer = cluster.call("describe_configs", resources=[resource])
    (row,) = answer.results
    if row.error_code:
        raise refusal(f"the settings of group {group!r}", error_code(row.error_code), row.error_message)
    return {config.name: config.value or "" for config in row.configs if config.name.startswith(_OF_SHARE_GROUPS)}
