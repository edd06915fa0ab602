"""Members of a classic group, a consumer group (KIP-848) and a share group, which check that acknowledged state
persists.

Downtimes are much shorter than the session timeouts. So if all responses of a member arrived, and it is then unknown or
in an earlier epoch, the coordinator has lost acknowledged state.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from millstream.formats.model.errors import ErrorCode
from millstream.formats.records.record import read_batches
from millstream.simulator.clients.acknowledged_state import (
    CheckingClient,
    GroupOffset,
    Progress,
    RecordDeleter,
    SchemaWriter,
)
from millstream.simulator.clients.streams_members import StreamsMembers
from millstream.simulator.clients.transaction_tracker import At
from millstream.simulator.clients.workload import Workload
from millstream.simulator.machine import Process

CLASSIC_GROUP, CONSUMER_GROUP, SHARE_GROUP = "classic", "kip848", "queue"
_AT: At = ("orders", 1)
_SESSION_MS = 40_000
_REBALANCE_MS = 20_000
_ACCEPT, _RELEASE, _REJECT = 1, 2, 3
_GROUP_RESOURCE = 32
_NOT_A_MEMBER = frozenset((ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_MEMBER_EPOCH))


class ClassicMember(CheckingClient):
    """The only member of a classic group: it joins and commits offsets."""

    def __init__(
        self, process: Process, bootstrap: list[tuple[str, int]], workload: Workload, progress: Progress
    ) -> None:
        super().__init__(process, bootstrap, workload, progress)
        self._offset = GroupOffset(self, CLASSIC_GROUP, _AT)
        self._member_id = ""
        self._generation = -1
        self._kept_generation = -1
        """The last generation that a SyncGroup response confirmed."""

    async def step(self) -> None:
        chance = self.randomness.random()
        if self._generation < 0 or chance < 0.05:
            await self._join()
        elif chance < 0.2:
            await self._beat()
        elif chance < 0.4:
            await self._offset.check()
        else:
            self._take(await self._offset.commit(self._member_id, self._generation))

    async def _join(self) -> None:
        self._generation = -1
        fields: dict[str, Any] = {
            "group_id": CLASSIC_GROUP,
            "session_timeout_ms": _SESSION_MS,
            "rebalance_timeout_ms": _REBALANCE_MS,
            "member_id": self._member_id,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"x"}],
        }
        error, joined = await self.request_coordinator(CLASSIC_GROUP, "join_group", fields)
        if error == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = joined.member_id
            return
        if error == ErrorCode.UNKNOWN_MEMBER_ID:
            self._member_id = ""  # its join was never acknowledged
            return
        if error != ErrorCode.NONE:
            return
        self._member_id, generation = joined.member_id, joined.generation_id
        if generation < self._kept_generation:
            self.report_loss(f"got generation {generation}, but generation {self._kept_generation} was acknowledged")
        await self._sync(generation)

    async def _sync(self, generation: int) -> None:
        fields = {
            "group_id": CLASSIC_GROUP,
            "generation_id": generation,
            "member_id": self._member_id,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [{"member_id": self._member_id, "assignment": b"all"}],
        }
        error, _ = await self.request_coordinator(CLASSIC_GROUP, "sync_group", fields)
        if error == ErrorCode.NONE:
            self._generation = self._kept_generation = generation
            self.acked(f"generation {generation}")

    async def _beat(self) -> None:
        fields = {"group_id": CLASSIC_GROUP, "generation_id": self._generation, "member_id": self._member_id}
        error, _ = await self.request_coordinator(CLASSIC_GROUP, "heartbeat", fields)
        self._take(error)

    def _take(self, error: ErrorCode) -> None:
        if error in _NOT_A_MEMBER:
            self.report_loss(f"got {error.name} as a member of generation {self._generation}, which was acknowledged")
        if error != ErrorCode.NONE:
            self._generation = -1


class ConsumerMember(CheckingClient):
    """One of two members of a KIP-848 group. One of them leaves and rejoins, so that epochs and assignments change."""

    def __init__(
        self, process: Process, bootstrap: list[tuple[str, int]], workload: Workload, progress: Progress, *, stays: bool
    ) -> None:
        super().__init__(process, bootstrap, workload, progress)
        self._offset = GroupOffset(self, CONSUMER_GROUP, (_AT[0], 0 if stays else 2))
        self._stays = stays
        self._lives = 0
        self._start_again()

    def _start_again(self) -> None:
        self._lives += 1
        self._member_id = f"{self.name}-{self._lives}"
        self._epoch = 0
        self._owned: list[dict[str, Any]] = []
        self._is_certain = True
        """Whether the response to its last heartbeat arrived."""

    async def step(self) -> None:
        chance = self.randomness.random()
        if self._epoch == 0 or chance < 0.4:
            await self._beat()
        elif chance < 0.5 and not self._stays:
            await self._leave()
        elif chance < 0.65:
            await self._offset.check()
        else:
            error = await self._offset.commit(self._member_id, self._epoch)
            if error in _NOT_A_MEMBER and self._is_certain:
                self.report_loss(
                    f"got {error.name} as {self._member_id} in epoch {self._epoch}, which was acknowledged"
                )

    async def _beat(self) -> None:
        fields = {
            "group_id": CONSUMER_GROUP,
            "member_id": self._member_id,
            "member_epoch": self._epoch,
            "rebalance_timeout_ms": _REBALANCE_MS,
            "subscribed_topic_names": [_AT[0]],
            "topic_partitions": self._owned,
        }
        was_certain, self._is_certain = self._is_certain, False
        error, response = await self.request_coordinator(CONSUMER_GROUP, "consumer_group_heartbeat", fields)
        self._is_certain = True
        if error in _NOT_A_MEMBER:
            if was_certain and self._epoch > 0:
                self.report_loss(
                    f"got {error.name} as {self._member_id} in epoch {self._epoch}, which was acknowledged"
                )
            self._epoch, self._owned = 0, []
        elif error == ErrorCode.NONE:
            if response.member_epoch < self._epoch:
                self.report_loss(f"{self._member_id} got epoch {response.member_epoch}, but had {self._epoch}")
            self._epoch = response.member_epoch
            if response.assignment is not None:
                self._owned = [
                    {"topic_id": each.topic_id, "partitions": list(each.partitions)}
                    for each in response.assignment.topic_partitions
                ]
            self.acked(f"{self._member_id} is in epoch {self._epoch}")

    async def _leave(self) -> None:
        fields = {
            "group_id": CONSUMER_GROUP,
            "member_id": self._member_id,
            "member_epoch": -1,
            "subscribed_topic_names": None,
            "topic_partitions": None,
        }
        self._start_again()
        await self.request_coordinator(CONSUMER_GROUP, "consumer_group_heartbeat", fields)


class ShareMember(CheckingClient):
    """A member of a share group. A record that was accepted or rejected must not be delivered again."""

    def __init__(
        self, process: Process, bootstrap: list[tuple[str, int]], workload: Workload, progress: Progress
    ) -> None:
        super().__init__(process, bootstrap, workload, progress)
        self._is_configured = False
        self._lives = 1
        self._member_epoch = 0
        self._session_epoch = 0
        self._is_certain = True
        self._done: dict[int, bytes] = {}
        """Records with an acknowledged accept or reject, by offset."""

    @property
    def _member_id(self) -> str:
        return f"{self.name}-{self._lives}"

    async def step(self) -> None:
        if not self._is_configured:
            await self._configure()
        elif self._member_epoch == 0 or self.randomness.random() < 0.2:
            await self._beat()
        else:
            await self._take_some()

    async def _configure(self) -> None:
        row = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
        resource = {"resource_type": _GROUP_RESOURCE, "resource_name": SHARE_GROUP, "configs": [row]}
        fields = {"resources": [resource], "validate_only": False}
        response = await self.client.request_any("incremental_alter_configs", fields)
        self._is_configured = response.responses[0].error_code == 0

    async def _beat(self) -> None:
        fields = {
            "group_id": SHARE_GROUP,
            "member_id": self._member_id,
            "member_epoch": self._member_epoch,
            "subscribed_topic_names": [_AT[0]],
        }
        was_certain, self._is_certain = self._is_certain, False
        error, response = await self.request_coordinator(SHARE_GROUP, "share_group_heartbeat", fields)
        self._is_certain = True
        if error in _NOT_A_MEMBER:
            if was_certain and self._member_epoch > 0:
                self.report_loss(f"got {error.name} as a member in epoch {self._member_epoch}, which was acknowledged")
            self._member_epoch = 0
        elif error == ErrorCode.NONE:
            if response.member_epoch < self._member_epoch:
                self.report_loss(f"got epoch {response.member_epoch}, but had {self._member_epoch}")
            self._member_epoch = response.member_epoch

    async def _take_some(self) -> None:
        epoch, self._session_epoch = self._session_epoch, 0  # without a response the session is lost
        fields = {
            **self._identity(epoch),
            "max_wait_ms": 50,
            "min_bytes": 1,
            "max_bytes": 1 << 18,
            "max_records": 20,
            "batch_size": 20,
            "topics": self._topics([]),
            "forgotten_topics_data": [],
        }
        response = await self.client.request(self.leader(_AT).node_id, "share_fetch", fields)
        if response.error_code:
            raise ConnectionError(ErrorCode(response.error_code).name)
        self._session_epoch = epoch + 1
        if not response.responses:
            return
        row = response.responses[0].partitions[0]
        if self.certain("share_fetch", row.error_code):
            return
        acquired = [
            offset for each in row.acquired_records for offset in range(each.first_offset, each.last_offset + 1)
        ]
        values = {
            record.offset: record.value or b""
            for _, records in read_batches(bytes(row.records or b""))
            for record in records
        }
        for offset in acquired:
            if offset in self._done:
                self.report_loss(f"offset {offset} was accepted as {self._done[offset]!r}, but is delivered again")
        if acquired:
            await self._acknowledge({offset: values[offset] for offset in acquired if offset in values})

    async def _acknowledge(self, records: dict[int, bytes]) -> None:
        kinds = {
            offset: self.randomness.choices((_ACCEPT, _RELEASE, _REJECT), (8, 2, 1))[0] for offset in sorted(records)
        }
        batches = [
            {"first_offset": offset, "last_offset": offset, "acknowledge_types": [kind]}
            for offset, kind in kinds.items()
        ]
        epoch, self._session_epoch = self._session_epoch, 0
        fields = {**self._identity(epoch), "topics": self._topics(batches)}
        response = await self.client.request(self.leader(_AT).node_id, "share_acknowledge", fields)
        if response.error_code:
            raise ConnectionError(ErrorCode(response.error_code).name)
        self._session_epoch = epoch + 1
        if self.certain("share_acknowledge", response.responses[0].partitions[0].error_code):
            return
        self._done |= {offset: records[offset] for offset, kind in kinds.items() if kind != _RELEASE}
        self.acked(f"{len(kinds)} records from offset {min(kinds)} on")

    def _identity(self, epoch: int) -> dict[str, Any]:
        return {"group_id": SHARE_GROUP, "member_id": self._member_id, "share_session_epoch": epoch}

    def _topics(self, batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
        topic_id = self.leader(_AT).topic_id
        return [
            {
                "topic_id": topic_id,
                "partitions": [{"partition_index": _AT[1], "acknowledgement_batches": batches}],
            }
        ]


CHECKING_CLIENTS: dict[str, Callable[..., CheckingClient]] = {
    "classic": ClassicMember,
    "kip848-1": partial(ConsumerMember, stays=True),
    "kip848-2": partial(ConsumerMember, stays=False),
    "queue": ShareMember,
    "streams": StreamsMembers,
    "registrar": SchemaWriter,
    "shortener": RecordDeleter,
}
"""Clients that check all kinds of acknowledged state, in the power scenario."""
