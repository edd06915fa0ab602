"""The delivery state of a share group, read from its share coordinators: records for redelivery, done and archived.

Read-only: the state is requested with its current leader epoch, so nothing is written.
"""

import base64
from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

from millstream.formats.protocol.schema import Message
from millstream.raw_client import Cluster, CoordinatorKind, TopicPartition
from millstream.raw_client.errors import error_code, refusal

_AVAILABLE, _DONE, _GIVING_UP, _GIVEN_UP = 0, 2, 3, 4
_GROUP_RESOURCE = 32
_OF_SHARE_GROUPS = ("share.", "errors.")
DEAD_LETTER_TOPIC = "errors.deadletterqueue.topic.name"


@dataclass(frozen=True, slots=True)
class Delivery:
    """Counts of records of one partition, from the start offset of the group on."""

    start: int
    redelivered: int
    """Released, or their lock timed out: they wait for redelivery."""
    most_deliveries: int
    done: int
    """Acknowledged out of order: an earlier record is not."""
    given_up: int


def read_delivery(
    cluster: Cluster, group: str, topic_partitions: Collection[TopicPartition]
) -> dict[TopicPartition, Delivery]:
    """The delivery state by partition, without deleted topics and partitions that were never read."""
    topics = cluster.topics({each.topic for each in topic_partitions}) if topic_partitions else {}
    found = {}
    for topic_partition in topic_partitions:
        topic = topics.get(topic_partition.topic)
        if topic is None:
            continue
        row = _read(cluster, group, topic.topic_id, topic_partition)
        if row is not None:
            found[topic_partition] = _counted(row)
    return found


def _read(cluster: Cluster, group: str, topic_id: UUID, topic_partition: TopicPartition) -> Message | None:
    def send(api: str, epoch: int) -> Message:
        key = f"{group}:{base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip('=')}:{topic_partition.partition}"
        partitions = [{"partition": topic_partition.partition, "leader_epoch": epoch}]
        response = cluster.call_coordinator(
            key,
            CoordinatorKind.SHARE,
            api,
            group_id=group,
            topics=[{"topic_id": topic_id, "partitions": partitions}],
        )
        row: Message = response.results[0].partitions[0]
        if row.error_code:
            raise refusal(f"the state of {group} in {topic_partition}", error_code(row.error_code), row.error_message)
        return row

    summary = send("read_share_group_state_summary", -1)
    return None if summary.start_offset < 0 else send("read_share_group_state", summary.leader_epoch)


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
    """The settings of a share group, without those for other kinds of groups."""
    resource = {"resource_type": _GROUP_RESOURCE, "resource_name": group, "configuration_keys": None}
    response = cluster.call("describe_configs", resources=[resource])
    (row,) = response.results
    if row.error_code:
        raise refusal(f"the settings of group {group!r}", error_code(row.error_code), row.error_message)
    return {config.name: config.value or "" for config in row.configs if config.name.startswith(_OF_SHARE_GROUPS)}
