"""The machinery of a classic group between requests: sessions, joining phase, assignment phase, their time-outs.

Nothing here is durable before the leader's assignment is: generations that nobody could read records in may be lost.
"""

from typing import TYPE_CHECKING

from millstream.config.table import groups as settings
from millstream.formats.model.errors import ErrorCode
from millstream.node.coordination.core.operations import Outcome, Writes
from millstream.node.groups.core.classic.group import Answer, ClassicGroup, GroupState, Member

if TYPE_CHECKING:
    from millstream.node.groups.core.shard import GroupShard

NEW_MEMBER_TIMEOUT_MS = 5 * 60 * 1000
"""How long a member may wait in its first JoinGroup: its client may be gone and have tried again as another member."""


class Rebalance:
    def __init__(self, shard: "GroupShard") -> None:
        self._shard = shard
        self._timers = shard.timers

    # Sessions

    def extend_session(self, group: ClassicGroup, member: Member, now_ms: int, timeout_ms: int | None = None) -> None:
        """The member lives. Mostly this only notes the time: the timer that rings too early sets itself anew."""
        member.expires_at_ms = now_ms + (member.session_timeout_ms if timeout_ms is None else timeout_ms)
        if member.alarm_at_ms is None or member.alarm_at_ms > member.expires_at_ms:
            self._set_session_alarm(group, member)

    def _set_session_alarm(self, group: ClassicGroup, member: Member) -> None:
        member.alarm_at_ms = member.expires_at_ms
        key = ("classic session", group.group_id, member.id)
        self._timers.set(key, member.expires_at_ms, lambda now_ms: self._session_alarm(group, member, now_ms))

    def _session_alarm(self, group: ClassicGroup, member: Member, now_ms: int) -> Outcome[None] | None:
        member.alarm_at_ms = None
        if group.members.get(member.id) is not member or member.cannot_expire:
            return None
        if member.expires_at_ms > now_ms:
            self._set_session_alarm(group, member)
            return None
        writes = Writes()
        self.remove(group, member.id)
        self.after_removal(group, writes, now_ms)
        return writes.outcome(None)

    def expect(self, group: ClassicGroup, member_id: str, timeout_ms: int, now_ms: int) -> None:
        """A member id was handed out; it must be joined with in time."""
        group.pending.add(member_id)
        key = ("classic pending", group.group_id, member_id)
        self._timers.set(key, now_ms + timeout_ms, lambda at_ms: self._pending_alarm(group, member_id, at_ms))

    def _pending_alarm(self, group: ClassicGroup, member_id: str, now_ms: int) -> Outcome[None] | None:
        if member_id not in group.pending:
            return None
        writes = Writes()
        group.remove(member_id)
        if group.state is GroupState.PREPARING_REBALANCE:
            self.complete_join_if_all_have(group, writes, now_ms)
        elif group.is_simple and group.group_id not in self._shard.offsets.by_group:
            self._shard.groups.pop(group.group_id, None)  # nobody came, and nothing was written
        return writes.outcome(None)

    def remove(self, group: ClassicGroup, member_id: str) -> None:
        self._timers.cancel(("classic session", group.group_id, member_id))
        self._timers.cancel(("classic pending", group.group_id, member_id))
        group.remove(member_id)

    def after_removal(self, group: ClassicGroup, writes: Writes, now_ms: int) -> None:
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.prepare(group, writes, now_ms)
        elif group.state is GroupState.PREPARING_REBALANCE:
            self.complete_join_if_all_have(group, writes, now_ms)

    # The joining phase

    def prepare_or_complete(self, group: ClassicGroup, writes: Writes, now_ms: int) -> None:
        if group.can_rebalance:
            self.prepare(group, writes, now_ms)
        else:
            self.complete_join_if_all_have(group, writes, now_ms)

    def prepare(self, group: ClassicGroup, writes: Writes, now_ms: int) -> None:
        """All members must join again; those who wait for an assignment are told so."""
        if group.state is GroupState.COMPLETING_REBALANCE:
            for member in group.members.values():
                if member.answer_sync({"error_code": ErrorCode.REBALANCE_IN_PROGRESS}):
                    self.extend_session(group, member, now_ms)
        self._timers.cancel(("classic sync", group.group_id))
        is_first = group.state is GroupState.EMPTY
        group.move_to(GroupState.PREPARING_REBALANCE, now_ms)
        if is_first:
            delay_ms = self._shard.config()[settings.GROUP_INITIAL_REBALANCE_DELAY_MS]
            group.someone_joined = False
            self._wait_for_more(group, delay_ms, max(0, group.rebalance_timeout_ms - delay_ms), now_ms)
        elif group.all_have_joined:
            self.complete_join(group, writes, now_ms)
        else:
            self._set_join_alarm(group, now_ms)

    def _wait_for_more(self, group: ClassicGroup, delay_ms: int, left_ms: int, now_ms: int) -> None:
        """A new group gives others a while to come, and again a while if someone did."""

        def over(at_ms: int) -> Outcome[None] | None:
            if group.state is not GroupState.PREPARING_REBALANCE:
                return None
            if group.someone_joined and left_ms > 0:
                group.someone_joined = False
                next_delay_ms = min(delay_ms, left_ms)
                self._wait_for_more(group, next_delay_ms, left_ms - next_delay_ms, at_ms)
                return None
            writes = Writes()
            self.complete_join(group, writes, at_ms)
            return writes.outcome(None)

        self._timers.set(("classic join", group.group_id), now_ms + delay_ms, over)

    def _set_join_alarm(self, group: ClassicGroup, now_ms: int) -> None:
        def over(at_ms: int) -> Outcome[None] | None:
            if group.state is not GroupState.PREPARING_REBALANCE:
                return None
            writes = Writes()
            self.complete_join(group, writes, at_ms)
            return writes.outcome(None)

        self._timers.set(("classic join", group.group_id), now_ms + group.rebalance_timeout_ms, over)

    def complete_join_if_all_have(self, group: ClassicGroup, writes: Writes, now_ms: int) -> None:
        # A group's first rebalance has its own delay, which must pass even if all who are there have joined.
        if (
            group.state is GroupState.PREPARING_REBALANCE
            and group.previous_state is not GroupState.EMPTY
            and group.all_have_joined
        ):
            self.complete_join(group, writes, now_ms)

    def complete_join(self, group: ClassicGroup, writes: Writes, now_ms: int) -> None:
        """Whoever has not joined by now is out, static members excepted; the others begin a generation."""
        self._timers.cancel(("classic join", group.group_id))
        for member in list(group.members.values()):
            if not member.is_joining and not member.is_static:
                self.remove(group, member.id)
        if group.members and not group.elect_leader_among_joined():
            self._set_join_alarm(group, now_ms)  # only static members, none of them here: their sessions decide
            return
        group.begin_generation(now_ms)
        if group.state is GroupState.EMPTY:
            writes.add(group.metadata_record({}))
            return
        self._set_sync_alarm(group, now_ms)
        for member in group.members.values():
            group.not_synced.add(member.id)
            was_joining = member.is_joining
            member.answer_join(joined_answer(group, member))
            member.is_new = False
            if was_joining:
                self.extend_session(group, member, now_ms)

    # The assignment phase

    def _set_sync_alarm(self, group: ClassicGroup, now_ms: int) -> None:
        generation = group.generation

        def over(at_ms: int) -> Outcome[None] | None:
            waits = group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE)
            if group.generation != generation or not waits or not group.not_synced:
                return None
            for member_id in tuple(group.not_synced):
                self.remove(group, member_id)
            writes = Writes()
            self.prepare(group, writes, at_ms)
            return writes.outcome(None)

        self._timers.set(("classic sync", group.group_id), now_ms + group.rebalance_timeout_ms, over)

    def has_synced(self, group: ClassicGroup, member_id: str) -> None:
        group.not_synced.discard(member_id)
        if not group.not_synced:
            self._timers.cancel(("classic sync", group.group_id))

    def give_assignments(self, group: ClassicGroup, assignments: dict[str, bytes], now_ms: int) -> None:
        group.move_to(GroupState.STABLE, now_ms)
        for member in group.members.values():
            member.assignment = assignments.get(member.id, b"")
            if member.answer_sync(synced_answer(group, member)):
                self.extend_session(group, member, now_ms)

    def refuse_assignments(self, group: ClassicGroup, code: ErrorCode, now_ms: int) -> None:
        """The assignment could not be written: everyone is told, and the group begins again."""
        for member in group.members.values():
            member.assignment = b""
            if member.answer_sync({"error_code": code}):
                self.extend_session(group, member, now_ms)
        self.prepare(group, Writes(), now_ms)


def joined_answer(group: ClassicGroup, member: Member) -> Answer:
    """The answer to JoinGroup; only the leader learns who the members are."""
    return {
        "error_code": ErrorCode.NONE,
        "generation_id": group.generation,
        "protocol_type": group.kind,
        "protocol_name": group.protocol or "",
        "leader": group.leader or "",
        "member_id": member.id,
        "members": members_for_leader(group) if group.leader == member.id else [],
    }


def members_for_leader(group: ClassicGroup) -> list[Answer]:
    return [
        {
            "member_id": member.id,
            "group_instance_id": member.instance_id,
            "metadata": member.metadata(group.protocol),
        }
        for member in group.members.values()
    ]


def synced_answer(group: ClassicGroup, member: Member) -> Answer:
    return {
        "error_code": ErrorCode.NONE,
        "protocol_type": group.kind,
        "protocol_name": group.protocol,
        "assignment": member.assignment,
    }
