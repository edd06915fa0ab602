"""This cluster, as mirroring uses it: requests to the controller and to other brokers, and offsets of logs."""

from collections.abc import Mapping, Sequence
from typing import Any

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.schema import Message
from millstream.node.cluster.cluster_view import BrokerChannels, ClusterView
from millstream.node.cluster.controller_link import ControllerLink
from millstream.node.data.internal_client import OffsetLookup
from millstream.node.groups.coordinator import GroupCoordinator
from millstream.node.metadata.configs import Operation
from millstream.node.metadata.image import MetadataImage, ResourceType
from millstream.node.metadata.topic_names import CONSUMER_OFFSETS_TOPIC
from millstream.node.metadata.topics import NewTopic

_TIMEOUT_SECONDS = 10.0


class ClusterAccess:
    def __init__(
        self,
        view: ClusterView,
        controller: ControllerLink,
        peers: BrokerChannels,
        offsets: OffsetLookup,
        groups: GroupCoordinator,
    ) -> None:
        self.view = view
        self._controller = controller
        self._peers = peers
        self._offsets = offsets
        self._groups = groups

    @property
    def image(self) -> MetadataImage:
        return self.view.image

    def is_responsible(self, link: str) -> bool:
        """Whether this broker keeps topics, settings and groups of a link in step: one broker does, by the metadata."""
        active = sorted(broker.id for broker in self.image.brokers.values() if broker.active)
        return bool(active) and active[sum(link.encode()) % len(active)] == self.view.node_id

    async def alter_topic(self, name: str, values: Mapping[str, str | None]) -> None:
        """Sets settings of a topic; None removes one. KafkaError if the controller refuses."""
        await self.alter_topics({name: values})

    async def alter_topics(self, topics: Mapping[str, Mapping[str, str | None]]) -> None:
        fields = {
            "resources": [
                {
                    "resource_type": int(ResourceType.TOPIC),
                    "resource_name": name,
                    "configs": [
                        {
                            "name": setting,
                            "config_operation": int(Operation.DELETE if value is None else Operation.SET),
                            "value": value,
                        }
                        for setting, value in values.items()
                    ],
                }
                for name, values in topics.items()
            ],
            "validate_only": False,
        }
        response = await self._controller.request("incremental_alter_configs", fields, timeout_s=_TIMEOUT_SECONDS)
        for row in response.responses:
            _check(row.error_code, row.error_message, f"settings of {row.resource_name}")

    async def create_topic(self, topic: NewTopic) -> None:
        (result,) = await self._controller.create_topics([topic])
        _check(result.error, result.message, f"topic {topic.name}")

    async def add_partitions(self, name: str, count: int) -> None:
        fields = {
            "topics": [{"name": name, "count": count, "assignments": None}],
            "timeout_ms": int(_TIMEOUT_SECONDS * 1000),
            "validate_only": False,
        }
        response = await self._controller.request("create_partitions", fields, timeout_s=_TIMEOUT_SECONDS)
        for row in response.results:
            _check(row.error_code, row.error_message, f"partitions of {name}")

    async def controller_request(self, api: str, fields: Mapping[str, Any]) -> Message:
        return await self._controller.request(api, fields, timeout_s=_TIMEOUT_SECONDS)

    async def committed_end(self, topic: str, index: int) -> int:
        """The high watermark of a partition."""
        return (await self._offsets.find(topic, index)).high_watermark

    async def _coordinator(self, group: str) -> int:
        await self._groups.ensure_topic()
        topic = self.image.topics.get(CONSUMER_OFFSETS_TOPIC)
        state = topic.partitions[self._groups.partition_of(group)] if topic is not None else None
        if state is None or not state.has_leader:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"group {group} has no coordinator now")
        return state.leader

    async def committed_offsets(self, group: str) -> dict[tuple[str, int], int]:
        """The committed offsets of a group here."""
        fields = {"groups": [{"group_id": group, "topics": None}], "require_stable": False}
        leader = await self._coordinator(group)
        response = await self._peers.request(leader, "offset_fetch", fields, timeout_s=_TIMEOUT_SECONDS, version=8)
        (row,) = response.groups
        _check(row.error_code, None, f"offsets of group {group}")
        return {
            (topic.name, each.partition_index): each.committed_offset
            for topic in row.topics
            for each in topic.partitions
            if not each.error_code and each.committed_offset >= 0
        }

    async def commit_offsets(self, group: str, rows: Sequence[dict[str, Any]]) -> list[tuple[str, int, int]]:
        """Commits offsets of a group without members; returns (topic, partition, error code) of each."""
        fields = {"group_id": group, "member_id": "", "topics": list(rows)}
        leader = await self._coordinator(group)
        response = await self._peers.request(leader, "offset_commit", fields, timeout_s=_TIMEOUT_SECONDS, version=9)
        return [
            (topic.name, row.partition_index, row.error_code) for topic in response.topics for row in topic.partitions
        ]


def _check(error: int, message: str | None, what: str) -> None:
    if error:
        code = ErrorCode(error)
        raise KafkaError(code, f"{what}: {message or code.name}")
