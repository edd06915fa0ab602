"""A client of the simulated cluster: Kafka's wire over simulated streams, with the metadata every client keeps."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from millstream.net.channel import Channel
from millstream.protocol.schema import Message
from millstream.testing.simulation.machine import Process

REQUEST_SECONDS = 3.0


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
        """Whose metadata it keeps."""

    def leader(self, topic: str, partition: int) -> Leader | None:
        return self._leaders.get((topic, partition))

    async def refresh(self) -> None:
        """Asks some node for the metadata; who asks while that is under way shares the answer. OSError if it failed."""
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
        answer = await self.ask_any("metadata", fields, timeout_s=1.0)
        for broker in answer.brokers:
            self._addresses[broker.node_id] = (broker.host, broker.port)
        for topic in answer.topics:
            for partition in topic.partitions:
                at = (topic.name, partition.partition_index)
                known = self._leaders.get(at)
                if known is not None and known.topic_id == topic.topic_id and known.epoch > partition.leader_epoch:
                    continue  # from a node that is behind
                if partition.leader_id >= 0:
                    self._leaders[at] = Leader(partition.leader_id, partition.leader_epoch, topic.topic_id)
                elif known is not None:
                    del self._leaders[at]

    async def ask_any(self, api: str, fields: Mapping[str, Any], *, timeout_s: float = REQUEST_SECONDS) -> Message:
        """A request that any broker takes."""
        return await self._ask(self.randomness.choice(self._bootstrap), api, fields, timeout_s)

    async def ask(
        self, node_id: int, api: str, fields: Mapping[str, Any], *, timeout_s: float = REQUEST_SECONDS
    ) -> Message:
        address = self._addresses.get(node_id)
        if address is None:
            raise ConnectionError(f"it is not known where node {node_id} is")
        return await self._ask(address, api, fields, timeout_s)

    async def _ask(self, address: tuple[str, int], api: str, fields: Mapping[str, Any], timeout_s: float) -> Message:
        channel = self._channels.get(address)
        if channel is None:
            host, port = address
            channel = self._channels[address] = Channel(
                host, port, self.process.network, self.loop, client_id=self._client_id
            )
        return await channel.request(api, fields, timeout_s=timeout_s)

    async def rest(self, low: float, high: float) -> None:
        await asyncio.sleep(self.randomness.uniform(low, high))
