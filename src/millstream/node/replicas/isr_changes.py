"""Requests to the controller to confirm in-sync replicas: one AlterPartition at a time, with all pending proposals.

A proposal is sent until a response settles it, or the partition withdraws it.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol
from uuid import UUID

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.schema import Message
from millstream.node.environment import Environment
from millstream.node.replicas.core.leader import Confirmed, NextStep, Proposal
from millstream.node.replicas.partition import Partition

RETRY_SECONDS = 0.2
_log = logging.getLogger("millstream.replication")

Key = tuple[UUID, int]
Waiting = dict[Key, tuple[Partition, Proposal]]


class ControllerRequests(Protocol):
    async def request(self, api: str, fields: Mapping[str, Any]) -> Message: ...


class IsrChanges:
    def __init__(
        self, link: ControllerRequests, node_id: int, broker_epoch: Callable[[], int], environment: Environment
    ) -> None:
        self._link = link
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._loop = environment.loop
        self._waiting: Waiting = {}
        self._sending: asyncio.Task[None] | None = None
        self._closed = False

    def submit(self, partition: Partition, proposal: Proposal) -> None:
        self._waiting[partition.topic_id, partition.topic_partition.partition] = partition, proposal
        if self._sending is None and not self._closed:
            self._sending = asyncio.ensure_future(self._send_all(), loop=self._loop)

    def close(self) -> None:
        self._closed = True
        self._waiting.clear()
        if self._sending is not None:
            self._sending.cancel()

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, {}
                try:
                    again = self._settle(batch, await self._send(batch))
                except Exception:
                    # A dropped proposal would stay in flight, and the partition could propose no other.
                    _log.exception("isr_changes_failed")
                    again = batch
                if again:
                    await asyncio.sleep(RETRY_SECONDS)
                    self._waiting = again | self._waiting
        finally:
            self._sending = None

    async def _send(self, batch: Waiting) -> Message | None:
        topics: dict[UUID, list[dict[str, Any]]] = {}
        for (topic_id, index), (_, proposal) in batch.items():
            topics.setdefault(topic_id, []).append(_row(index, proposal))
        fields = {
            "broker_id": self._node_id,
            "broker_epoch": self._broker_epoch(),
            "topics": [{"topic_id": topic_id, "partitions": rows} for topic_id, rows in topics.items()],
        }
        try:
            response = await self._link.request("alter_partition", fields)
        except (KafkaError, OSError) as error:
            _log.warning("isr_change_not_sent error=%s", error)
            return None
        if response.error_code:
            # The controller has another registration of this node: this is settled by the next heartbeat.
            _log.warning("isr_change_refused error=%s", ErrorCode(response.error_code).name)
            return None
        return response

    def _settle(self, batch: Waiting, response: Message | None) -> Waiting:
        """Gives the responses to the partitions; returns the proposals to send again."""
        rows: dict[Key, Message] = {}
        for topic in response.topics if response is not None else ():
            for row in topic.partitions:
                rows[topic.topic_id, row.partition_index] = row
        again: Waiting = {}
        for key, (partition, proposal) in batch.items():
            found = rows.get(key)
            if found is None:
                error, confirmed = int(ErrorCode.REQUEST_TIMED_OUT), None
            else:
                error = found.error_code
                confirmed = Confirmed(found.leader_epoch, found.partition_epoch, tuple(found.isr))
            step = partition.on_proposal_response(proposal, error, confirmed)
            if error:
                _log.info(
                    "isr_change_pending partition=%s isr=%s error=%s",
                    partition.topic_partition,
                    proposal.members,
                    error,
                )
            else:
                _log.info("isr_changed partition=%s isr=%s", partition.topic_partition, confirmed and confirmed.isr)
            if step is NextStep.SEND_AGAIN:
                again[key] = partition, proposal
        return again


def _row(index: int, proposal: Proposal) -> dict[str, Any]:
    return {
        "partition_index": index,
        "leader_epoch": proposal.leader_epoch,
        "new_isr_with_epochs": [{"broker_id": broker, "broker_epoch": epoch} for broker, epoch in proposal.isr],
        "new_isr": list(proposal.members),
        # A leader after an unclean election needs no further recovery here.
        "leader_recovery_state": 0,
        "partition_epoch": proposal.partition_epoch,
    }
