"""StreamsGroupHeartbeat and StreamsGroupDescribe, for the streams groups of a shard; sessions of members.

The functions at the top check a heartbeat request independently of the group's state. As in Kafka 4.3, static members,
source topics by regular expression, task offsets and a change of the topology are refused.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.wire_types import StreamsGroupHeartbeatRequest
from millstream.node.coordination.core.state_machine import CoordinatorResult, TopicCatalog, Writes
from millstream.node.groups.core.classic.group import ClassicGroup, Client
from millstream.node.groups.core.group import MAX_TEXT_LENGTH
from millstream.node.groups.core.streams.group import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    Endpoint,
    Member,
    MemberState,
    StreamsGroup,
    StreamsSettings,
    task_fields,
)
from millstream.node.groups.core.streams.rebalance import GroupChange
from millstream.node.groups.core.streams.replay import StreamsReplay
from millstream.node.groups.core.streams.tasks import Tasks, each, read_rows
from millstream.node.groups.core.streams.topology import (
    ConfiguredTopology,
    InternalTopic,
    Status,
    StatusCode,
    check_topology,
    topic_names_problem,
    topics_of,
)

if TYPE_CHECKING:
    from millstream.node.groups.core.shard import GroupShard, Replayer


def check_heartbeat(request: StreamsGroupHeartbeatRequest) -> None:
    """KafkaError for a request that is invalid in any state of the group."""
    topology = request.topology
    if topology is not None and (problem := topic_names_problem(topics_of(topology))):
        raise KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, problem)
    _refuse_if(request.instance_id is not None, "Static membership is not yet supported.")
    _refuse_if(request.task_offsets is not None, "TaskOffsets are not supported yet.")
    _refuse_if(request.task_end_offsets is not None, "TaskEndOffsets are not supported yet.")
    _refuse_if(bool(request.warmup_tasks), "WarmupTasks are not supported yet.")
    _refuse_if(
        topology is not None and any(row.source_topic_regex for row in topology.subtopologies),
        "Regular expressions for source topics are not supported yet.",
    )
    _refuse_if(not request.member_id.strip(), "MemberId can't be empty.")
    _refuse_if(not request.group_id.strip(), "GroupId can't be empty.")
    _refuse_if(request.rack_id is not None and not request.rack_id.strip(), "RackId can't be empty.")
    epoch = request.member_epoch
    owned = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    if epoch == JOIN_EPOCH:
        _refuse_if(request.rebalance_timeout_ms == -1, "RebalanceTimeoutMs must be provided in first request.")
        for name, tasks in zip(("ActiveTasks", "StandbyTasks", "WarmupTasks"), owned, strict=True):
            _refuse_if(tasks is None or bool(tasks), f"{name} must be empty when (re-)joining.")
        _refuse_if(topology is None, "Topology must be non-null when (re-)joining.")
        check_topology(topology)
    elif epoch == LEAVE_STATIC_EPOCH:
        _refuse_if(True, "InstanceId can't be null.")
    elif epoch < LEAVE_STATIC_EPOCH:
        _refuse_if(True, f"MemberEpoch is {epoch}, but must be greater than or equal to -2.")
    reported = [tasks is not None for tasks in owned]
    _refuse_if(any(reported) and not all(reported), "If one task-type is non-null, all must be non-null.")
    _refuse_if(epoch != JOIN_EPOCH and topology is not None, "Topology can only be provided when (re-)joining.")
    texts = [request.member_id, request.rack_id, request.process_id]
    texts += [] if request.user_endpoint is None else [request.user_endpoint.host]
    texts += [text for tag in request.client_tags or () for text in (tag.key, tag.value)]
    _refuse_if(any(text is not None and len(text) > MAX_TEXT_LENGTH for text in texts), "A name is too long.")


def _refuse_if(wrong: bool, message: str) -> None:
    if wrong:
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def owned_tasks(request: StreamsGroupHeartbeatRequest) -> Tasks | None:
    """The tasks that the member reports; None if it reports none."""
    if request.active_tasks is None or request.standby_tasks is None or request.warmup_tasks is None:
        return None
    return Tasks(read_rows(request.active_tasks), read_rows(request.standby_tasks), read_rows(request.warmup_tasks))


def check_member_epoch(member: Member, epoch: int, owned: Tasks | None) -> None:
    """FENCED_MEMBER_EPOCH unless the member has its current epoch, or missed only the last response."""
    if epoch in (member.epoch, JOIN_EPOCH):
        return
    missed_one = epoch == member.previous_epoch and epoch < member.epoch
    if missed_one and owned is not None and member.assigned.contains(owned):
        return
    relation = "greater" if epoch > member.epoch else "smaller"
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The streams group member has a {relation} member epoch ({epoch}) than the one known by the group "
        f"coordinator ({member.epoch}). The member must abandon all its partitions and rejoin.",
    )


def _check_tasks(member: Member, owned: Tasks | None, configured: ConfiguredTopology) -> None:
    """INVALID_REQUEST if the member reports tasks that the topology does not have.

    It may have such tasks if a topic was deleted and created again with fewer partitions: then it must revoke them.
    """
    if owned is None or not configured.is_ready:
        return
    known = {task for had in (member.assigned, member.revoking) for role in had for task in each(role)}
    for tasks in owned:
        for subtopology, number in each(tasks):
            if (subtopology, number) in known:
                continue
            found = configured.subtopologies.get(subtopology)
            _refuse_if(found is None, f"Subtopology {subtopology} does not exist in the topology.")
            count = 0 if found is None else found.task_count
            _refuse_if(
                not 0 <= number < count,
                f"Task {number} for subtopology {subtopology} is invalid. Number of tasks for this subtopology: "
                f"{count}",
            )


ResponseFields = dict[str, Any]
_WAITING_HEARTBEAT_MS = 1000
"""The heartbeat interval of a member that waits: for tasks of others, for an assignment, or for topics."""


class HeartbeatResult(NamedTuple):
    response: ResponseFields
    missing: tuple[InternalTopic, ...] = ()
    """Internal topics that must be created."""


class StreamsGroups:
    def __init__(self, shard: "GroupShard") -> None:
        self._shard = shard
        self._replay = StreamsReplay(shard)
        self.settings = StreamsSettings(shard)

    @property
    def topics(self) -> TopicCatalog:
        return self._shard.topics

    # Records

    def replayers(self) -> "Mapping[int, Replayer]":
        return self._replay.replayers()

    def loaded(self, now_ms: int) -> None:
        for group in self._shard.groups.values():
            if isinstance(group, StreamsGroup):
                for member in group.members.values():
                    self._extend_session(group, member.id, now_ms)
                    self._watch_revocation(group, member, now_ms)

    def topics_changed(self, deleted: Collection[str], writes: Writes, now_ms: int) -> None:
        return  # the next heartbeat of a group compares the version of the catalog

    # StreamsGroupHeartbeat

    def heartbeat(
        self, request: StreamsGroupHeartbeatRequest, client: Client, now_ms: int
    ) -> CoordinatorResult[HeartbeatResult]:
        check_heartbeat(request)
        if request.member_epoch == LEAVE_EPOCH:
            return self._leave(request, now_ms)
        writes = Writes()
        joins = request.member_epoch == JOIN_EPOCH
        group = self._group_to_join(request, writes) if joins else self.find(request.group_id)
        is_known_group = self._shard.groups.get(group.group_id) is group
        owned = owned_tasks(request)
        before = group.members.get(request.member_id)
        if before is None:
            before = Member(request.member_id) if joins else group.find_member(request.member_id)
        check_member_epoch(before, request.member_epoch, owned)
        updated = _updated_member(before, request, client)
        change = GroupChange(group, self, writes, now_ms)
        change.put(updated)
        change.use_topology(request.topology, updated)
        configured = change.refresh()
        _check_tasks(before, owned, configured)
        self._assign(change)
        member = change.step(updated, owned)
        has_new_tasks = joins or member.assigned != before.assigned
        endpoint_epoch = group.endpoint_epoch + (has_new_tasks and member.endpoint is not None)
        shutdown_member = group.shutdown_member or (member.id if request.shutdown_application else None)

        def written(error: KafkaError | None) -> None:
            if error is None:
                known = self.find(group.group_id)  # replayed records may have created it
                known.endpoint_epoch = endpoint_epoch
                known.shutdown_member = shutdown_member
                self._extend_session(known, member.id, now_ms)
                if member != updated:
                    self._watch_revocation(known, member, now_ms)

        writes.add(then=written)
        if configured.status is not None:
            change.statuses.append(configured.status)
        if shutdown_member is not None:
            detail = (
                f"Streams group member {shutdown_member} encountered a fatal error and requested a shutdown for the "
                "entire application."
            )
            change.statuses.append(Status(StatusCode.SHUTDOWN_APPLICATION, detail))
        response: ResponseFields = {
            "member_id": member.id,
            "member_epoch": member.epoch,
            "heartbeat_interval_ms": self._next_heartbeat_ms(change, member),
            "status": [status.row() for status in change.statuses],
            "active_tasks": None,
            "standby_tasks": None,
            "warmup_tasks": None,
            "endpoint_information_epoch": endpoint_epoch if is_known_group else 0,
            "partitions_by_user_endpoint": None,
        }
        # A member that reports other tasks has missed a response.
        if has_new_tasks or (owned is not None and not member.assigned.equals(owned)):
            response |= task_fields(member.assigned)
        if endpoint_epoch != request.endpoint_information_epoch:
            response["partitions_by_user_endpoint"] = self._endpoints(change, configured)
        return writes.result(HeartbeatResult(response, tuple(configured.missing)))

    def _assign(self, change: GroupChange) -> None:
        """A group that was empty waits for more members, so that the first ones do not get all tasks."""
        group_id = change.group.group_id
        key = ("streams initial delay", group_id)
        delay_ms = self.settings.initial_delay_ms(group_id)
        if change.group.is_empty and delay_ms > 0 and key not in self._shard.timers:
            deadline_ms = change.now_ms + delay_ms

            def start(error: KafkaError | None) -> None:
                if error is None:
                    self._shard.timers.set(key, deadline_ms, lambda at_ms: self._assign_now(group_id, at_ms))

            change.writes.add(then=start)
            change.wait_for_members()
        elif key in self._shard.timers:
            change.wait_for_members()
        else:
            change.assign()

    def _assign_now(self, group_id: str, now_ms: int) -> CoordinatorResult[None] | None:
        group = self.known(group_id)
        if group is None or group.is_empty or group.topology is None:
            return None
        writes = Writes()
        change = GroupChange(group, self, writes, now_ms)
        change.refresh()
        change.assign()
        return writes.result(None)

    def _next_heartbeat_ms(self, change: GroupChange, member: Member) -> int:
        interval_ms = self.settings.heartbeat_interval_ms(change.group.group_id)
        waits = bool(change.statuses) or member.state is not MemberState.STABLE
        return min(interval_ms, _WAITING_HEARTBEAT_MS) if waits else interval_ms

    def _group_to_join(self, request: StreamsGroupHeartbeatRequest, writes: Writes) -> StreamsGroup:
        group_id = request.group_id
        known = self._shard.groups.get(group_id)
        if isinstance(known, ClassicGroup) and known.is_empty:
            writes.extend(known.deletion_records())
            known = None
        group = StreamsGroup(group_id) if known is None or known.is_simple else known
        if not isinstance(group, StreamsGroup):
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a streams group.")
        limit = self.settings.max_size
        if len(group.members) >= limit and request.member_id not in group.members:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The streams group has reached its maximum capacity of {limit} members.",
            )
        return group

    def known(self, group_id: str) -> StreamsGroup | None:
        group = self._shard.groups.get(group_id)
        return group if isinstance(group, StreamsGroup) else None

    def find(self, group_id: str) -> StreamsGroup:
        group = self._shard.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Streams group {group_id} not found.")
        if not isinstance(group, StreamsGroup):
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a streams group.")
        return group

    # Endpoints for interactive queries

    def _endpoints(self, change: GroupChange, configured: ConfiguredTopology) -> list[ResponseFields]:
        return [
            {
                "user_endpoint": member.endpoint._asdict(),
                "active_partitions": self._partitions(member.assigned.active, configured),
                "standby_partitions": self._partitions(member.assigned.standby, configured),
            }
            for member in change.members.values()
            if member.endpoint is not None
        ]

    def _partitions(self, tasks: Mapping[str, Collection[int]], configured: ConfiguredTopology) -> list[ResponseFields]:
        rows = []
        for subtopology, numbers in sorted(tasks.items()):
            found = configured.subtopologies.get(subtopology)
            for name in found.inputs if found is not None else ():
                topic = self.topics.get(name)
                count = 0 if topic is None else topic.partition_count
                partitions = [number for number in sorted(numbers) if number < count]
                if partitions:
                    rows.append({"topic": name, "partitions": partitions})
        return rows

    # Leaving

    def _leave(self, request: StreamsGroupHeartbeatRequest, now_ms: int) -> CoordinatorResult[HeartbeatResult]:
        group = self.find(request.group_id)
        member = group.find_member(request.member_id)
        writes = Writes()
        if request.shutdown_application:
            group.shutdown_member = group.shutdown_member or member.id
        GroupChange(group, self, writes, now_ms).remove(member)
        return writes.result(
            HeartbeatResult({"member_id": member.id, "member_epoch": request.member_epoch, "status": []})
        )

    # Sessions

    def _extend_session(self, group: StreamsGroup, member_id: str, now_ms: int) -> None:
        """Extends the member's session. Usually this only notes the time: a timer that runs too early sets itself
        again."""
        deadline_ms = now_ms + self.settings.session_timeout_ms(group.group_id)
        group.sessions[member_id] = deadline_ms
        if ("streams session", group.group_id, member_id) not in self._shard.timers:
            self._set_session_timer(group.group_id, member_id, deadline_ms)

    def _set_session_timer(self, group_id: str, member_id: str, deadline_ms: int) -> None:
        key = ("streams session", group_id, member_id)
        self._shard.timers.set(key, deadline_ms, lambda now_ms: self._session_over(group_id, member_id, now_ms))

    def _session_over(self, group_id: str, member_id: str, now_ms: int) -> CoordinatorResult[None] | None:
        group = self.known(group_id)
        if group is None or member_id not in group.members:
            return None
        deadline_ms = group.sessions.get(member_id, now_ms)
        if deadline_ms > now_ms:
            self._set_session_timer(group_id, member_id, deadline_ms)
            return None
        return self._expire(group_id, member_id, now_ms)

    def _watch_revocation(self, group: StreamsGroup, member: Member, now_ms: int) -> None:
        """A member must revoke tasks within its rebalance timeout. Called when its state has changed."""
        group_id, member_id, epoch = group.group_id, member.id, member.epoch
        key = ("streams revocation", group_id, member_id)
        if member.state is not MemberState.UNREVOKED:
            self._shard.timers.cancel(key)
            return

        def over(at_ms: int) -> CoordinatorResult[None] | None:
            known = self.known(group_id)
            late = None if known is None else known.members.get(member_id)
            if late is None or late.state is not MemberState.UNREVOKED or late.epoch != epoch:
                return None
            return self._expire(group_id, member_id, at_ms)

        self._shard.timers.set(key, now_ms + max(0, member.rebalance_timeout_ms), over)

    def _expire(self, group_id: str, member_id: str, now_ms: int) -> CoordinatorResult[None] | None:
        group = self.known(group_id)
        if group is None or member_id not in group.members:
            return None
        writes = Writes()
        # A timer runs once. If the write fails, this one retries.
        group.sessions[member_id] = now_ms
        self._set_session_timer(group_id, member_id, now_ms + self.settings.session_timeout_ms(group_id))
        GroupChange(group, self, writes, now_ms).remove(group.members[member_id])
        return writes.result(None)

    # StreamsGroupDescribe

    def describe(self, group_id: str) -> ResponseFields:
        """KafkaError (GROUP_ID_NOT_FOUND) if there is no such streams group."""
        group = self.find(group_id)
        return group.describe()


def _updated_member(before: Member, request: StreamsGroupHeartbeatRequest, client: Client) -> Member:
    """The member with the fields of the request; fields that the request leaves out stay."""
    endpoint, tags = request.user_endpoint, request.client_tags
    return replace(
        before,
        rack=before.rack if request.rack_id is None else request.rack_id,
        client_id=client.client_id,
        client_host=client.host,
        rebalance_timeout_ms=(
            before.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms
        ),
        topology_epoch=before.topology_epoch if request.topology is None else request.topology.epoch,
        process_id=before.process_id if request.process_id is None else request.process_id,
        endpoint=before.endpoint if endpoint is None else Endpoint(endpoint.host, endpoint.port),
        client_tags=before.client_tags if tags is None else tuple(sorted((tag.key, tag.value) for tag in tags)),
    )
