"""Committed offsets of groups at the source, committed here too: they mean the same records, because offsets are equal.

An offset beyond the end of the mirror is committed as the end: after a failover other records would have that offset.
A group with members here keeps its offsets. So does a group that was here and has left: offsets do not go back, except
where they went back at the source and no client has moved them here.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.schema import Message
from millstream.node.mirror.cluster_access import ClusterAccess
from millstream.node.mirror.core.links import Link, MirrorTopic
from millstream.node.mirror.source import SourceCluster, SourceMetadata

_log = logging.getLogger("millstream.mirror")
_GROUPS_AT_ONCE = 100
_GROUP_KEY = 0
_HAS_MEMBERS = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.STALE_MEMBER_EPOCH,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.FENCED_MEMBER_EPOCH,
)
Committed = dict[tuple[str, int], tuple[int, int, str | None]]
"""Offset, leader epoch and metadata by topic and partition."""


class GroupOffsets:
    def __init__(self, source: SourceCluster, cluster: ClusterAccess) -> None:
        self._source = source
        self._cluster = cluster
        self._done: dict[str, Committed] = {}
        """What was committed here last, by group."""

    async def run(self, link: Link, mirrors: Iterable[MirrorTopic], metadata: SourceMetadata) -> None:
        names = {mirror.source_name: mirror.name for mirror in mirrors}
        if not link.groups or not names:
            return
        groups = await self._groups(link, metadata)
        for gone in sorted(self._done.keys() - groups):
            del self._done[gone]
        for coordinator, ids in (await self._coordinators(sorted(groups))).items():
            fields = {"groups": [{"group_id": group, "topics": None} for group in ids], "require_stable": False}
            response = await self._source.request_as_of(coordinator, "offset_fetch", fields, 8)
            for row in response.groups:
                if not row.error_code:
                    await self._commit(row.group_id, _committed(row, names))

    async def _groups(self, link: Link, metadata: SourceMetadata) -> set[str]:
        found: set[str] = set()
        for broker_id in metadata.brokers:
            response = await self._source.request(broker_id, "list_groups", {"states_filter": [], "types_filter": []})
            if response.error_code in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE):
                continue
            found.update(
                row.group_id
                for row in response.groups
                if getattr(row, "group_type", "classic").lower() in ("classic", "consumer", "")
                and link.wants_group(row.group_id)
            )
        return found

    async def _coordinators(self, groups: list[str]) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        for start in range(0, len(groups), _GROUPS_AT_ONCE):
            fields = {"key_type": _GROUP_KEY, "coordinator_keys": groups[start : start + _GROUPS_AT_ONCE]}
            response = await self._source.any_request("find_coordinator", fields)
            for row in response.coordinators:
                if not row.error_code:
                    found.setdefault(row.node_id, []).append(row.key)
        return found

    async def _commit(self, group: str, committed: Committed) -> None:
        done = self._done.setdefault(group, {})
        wanted = {at: row for at, row in committed.items() if done.get(at) != row}
        if not wanted:
            return
        here = await self._cluster.committed_offsets(group)
        changed: Committed = {}
        for (topic, index), (offset, epoch, text) in wanted.items():
            end = await self._cluster.committed_end(topic, index)
            row = (offset, epoch, text) if offset <= end else (end, -1, text)
            if _may_commit(row[0], here.get((topic, index)), done.get((topic, index))):
                changed[topic, index] = row
            else:
                done[topic, index] = committed[topic, index]
        if not changed:
            return
        by_topic: dict[str, list[dict[str, Any]]] = {}
        for (topic, index), (offset, epoch, text) in changed.items():
            by_topic.setdefault(topic, []).append(
                {
                    "partition_index": index,
                    "committed_offset": offset,
                    "committed_leader_epoch": epoch,
                    "committed_metadata": text,
                }
            )
        rows = [{"name": topic, "partitions": partitions} for topic, partitions in by_topic.items()]
        for topic, index, error in await self._cluster.commit_offsets(group, rows):
            if error in _HAS_MEMBERS:
                return  # its members are here already
            if error:
                raise KafkaError(ErrorCode(error), f"offsets of group {group} cannot be committed here")
            if committed[topic, index] == changed[topic, index]:
                done[topic, index] = changed[topic, index]


def _may_commit(offset: int, here: int | None, last: tuple[int, int, str | None] | None) -> bool:
    """Whether the offset of the source replaces the one here: `last` is what was committed here before."""
    return here is None or offset > here or (offset < here and last is not None and last[0] == here)


def _committed(row: Message, names: Mapping[str, str]) -> Committed:
    return {
        (names[topic.name], each.partition_index): (
            each.committed_offset,
            each.committed_leader_epoch,
            each.metadata,
        )
        for topic in row.topics
        if topic.name in names
        for each in topic.partitions
        if not each.error_code and each.committed_offset >= 0
    }
