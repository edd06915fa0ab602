"""A Kafka client over the simulated network. It caches metadata as real clients do."""

import asyncio
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from millstream.common.lazy_dataclass import dataclass
from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.node.server.channel import Channel
from millstream.simulator.machine import Process

REQUEST_SECONDS = 3.0
GROUP, TRANSACTION = 0, 1
"""Key types of FindCoordinator."""


@dataclass(frozen=True, slots=True)
class Leader:
    node_id: int
    epoch: int
    topic_id: UUID


class SimulatedClient:
    def __init__(self, process: Process, bootstrap: list[tuple[str, int]], client_id: str) -> None:
        self.process = process
        self.loop = process.loop
        self.randomness = process.environment.randomness
        self._bootstrap = bootstrap
        self._client_id = client_id
        self._channels: dict[tuple[str, int], Channel] = {}
        self._addresses: dict[int, tuple[str, int]] = {}
        self._leaders: dict[tuple[str, int], Leader] = {}
        self._refreshing: asyncio.Future[None] | None = None
        self.topics: tuple[str, ...] = ()
        """Topics in its metadata requests."""
        self.compares_epochs = True
        """Whether it ignores metadata with an older leader epoch. Some clients accept it, and so return to a deposed
        leader that does not know it was deposed."""

    def leader(self, topic: str, partition: int) -> Leader | None:
        return self._leaders.get((topic, partition))

    async def refresh(self) -> None:
        """Requests metadata from a random broker. Concurrent callers share one request. OSError if it failed."""
        if self._refreshing is None:
            self._refreshing = asyncio.ensure_future(self._refresh())
            self._refreshing.add_done_callback(self._refreshed)
        await asyncio.shield(self._refreshing)

    def _refreshed(self, done: "asyncio.Future[None]") -> None:
        self._refreshing = None
        if not done.cancelled():
            done.exception()

    async def _refresh(self) -> None:
        fields = {
            "topics": [{"name": name, "topic_id": UUID(int=0)} for name in self.topics],
            "allow_auto_topic_creation": False,
        }
        response = await self.request_any("metadata", fields, timeout_s=1.0)
        for broker in response.brokers:
            self._addresses[broker.node_id] = (broker.host, broker.port)
        for topic in response.topics:
            for partition in topic.partitions:
                at = (topic.name, partition.partition_index)
                known = self._leaders.get(at)
                if self.compares_epochs and _is_newer(known, topic.topic_id, partition.leader_epoch):
                    continue  # the responding node has old metadata
                if partition.leader_id >= 0:
                    self._leaders[at] = Leader(partition.leader_id, partition.leader_epoch, topic.topic_id)
                elif known is not None:
                    del self._leaders[at]

    async def request_any(self, api: str, fields: Mapping[str, Any], *, timeout_s: float = REQUEST_SECONDS) -> Message:
        """Sends a request to a random bootstrap broker."""
        return await self._request(self.randomness.choice(self._bootstrap), api, fields, timeout_s)

    async def request(
        self,
        node_id: int,
        api: str,
        fields: Mapping[str, Any],
        *,
        timeout_s: float = REQUEST_SECONDS,
        version: int | None = None,
    ) -> Message:
        """Sends a request to one node, in the newest version unless one is given."""
        address = self._addresses.get(node_id)
        if address is None:
            raise ConnectionError(f"the address of node {node_id} is not known")
        return await self._request(address, api, fields, timeout_s, version)

    async def exchange(
        self, node_id: int, api: str, version: int, body: bytearray, *, timeout_s: float
    ) -> tuple[bytearray, int]:
        """Sends an encoded request to one node; returns the frame of the response, and the position of its body."""
        address = self._addresses.get(node_id)
        if address is None:
            raise ConnectionError(f"the address of node {node_id} is not known")
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = self._channel(address)
        return await channel.exchange(api, version, body, timeout_s=timeout_s)

    def new_channel(self, node_id: int) -> Channel | None:
        """A separate connection, which the caller must close. None if the address of the node is not known."""
        address = self._addresses.get(node_id)
        if address is None:
            return None
        return self._channel(address)

    async def find_coordinator(self, kind: int, key: str) -> int:
        """The coordinator of a group or a transactional id. OSError while there is none."""
        fields = {"key_type": kind, "coordinator_keys": [key], "key": key}
        row = (await self.request_any("find_coordinator", fields)).coordinators[0]
        if row.error_code:
            raise ConnectionError(ErrorCode(row.error_code).name)
        self._addresses[row.node_id] = (row.host, row.port)
        return int(row.node_id)

    async def fetch(
        self, topic: str, partition: int, position: int, *, committed_only: bool = False, wait_ms: int = 700
    ) -> tuple[ErrorCode, Message | None]:
        """Fetches from `position`, waiting up to `wait_ms` for records. Returns the partition row of the response."""
        leader = self.leader(topic, partition)
        if leader is None:
            return ErrorCode.LEADER_NOT_AVAILABLE, None
        wanted = {
            "partition": partition,
            "current_leader_epoch": leader.epoch,
            "fetch_offset": position,
            "partition_max_bytes": 1 << 18,
        }
        fields = {
            "max_wait_ms": wait_ms,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "isolation_level": int(committed_only),
            "topics": [{"topic": topic, "topic_id": leader.topic_id, "partitions": [wanted]}],
            "forgotten_topics_data": [],
            "rack_id": "",
        }
        try:
            response = await self.request(leader.node_id, "fetch", fields, timeout_s=2.5)
        except OSError:
            return ErrorCode.NETWORK_EXCEPTION, None
        if response.error_code or not response.responses:
            return ErrorCode(response.error_code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), None
        row = response.responses[0].partitions[0]
        return ErrorCode(row.error_code), row

    async def refresh_if_stale(self) -> None:
        """A client that accepts old metadata requests metadata all the time."""
        if not self.compares_epochs:
            try:
                await self.refresh()
            except OSError:
                pass

    async def recover(self) -> None:
        """After an error: waits, then refreshes the metadata."""
        await self.pause(0.05, 0.3)
        try:
            await self.refresh()
        except OSError:
            pass

    async def _request(
        self,
        address: tuple[str, int],
        api: str,
        fields: Mapping[str, Any],
        timeout_s: float,
        version: int | None = None,
    ) -> Message:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = self._channel(address)
        response = await channel.request(api, fields, timeout_s=timeout_s, version=version)
        if self.process.watch is not None:
            self.process.watch.look_at(api, response)
        return response

    def _channel(self, address: tuple[str, int]) -> Channel:
        process = self.process
        return Channel(*address, process.client_network, self.loop, client_id=self._client_id, login=process.watch)

    def look_at_error(self, api: str, error: ErrorCode) -> None:
        """For responses to requests on channels of the caller's own."""
        if self.process.watch is not None:
            self.process.watch.look_at_error(api, error)

    async def pause(self, low: float, high: float) -> None:
        await asyncio.sleep(self.randomness.uniform(low, high))


def _is_newer(known: Leader | None, topic_id: UUID, epoch: int) -> bool:
    return known is not None and known.topic_id == topic_id and known.epoch > epoch
