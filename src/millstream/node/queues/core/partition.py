"""One partition for one share group: acknowledgements, releases, archiving, as transitions that are persisted first.

Pure: the leader passes in the records of the log, the member and the time. An acquisition (`in_flight.py`) changes only
memory. A change that must survive (acknowledged, released with a count, archived) is a `Transition`: its batches are
persisted, and then it takes effect. So a crash never undoes what a response has confirmed.
"""

from collections.abc import Sequence
from dataclasses import field

from millstream.common.lazy_dataclass import dataclass
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.queues.core.in_flight import InFlight
from millstream.node.queues.core.runs import (
    LIMIT_REACHED,
    NO_MEMBER,
    REJECTED,
    Acknowledgement,
    DeadLetter,
    RecordState,
    Run,
    StateBatch,
)

AckRange = tuple[int, int, int]
"""First offset, last offset, acknowledgement."""


@dataclass(slots=True, eq=False)
class Transition:
    """A change that takes effect when it is persisted: call `commit` or `roll_back` with it."""

    batches: list[StateBatch] = field(default_factory=list)
    start: int = 0
    """The new start offset."""
    complete_count: int = 0
    """The new number of final records from there on."""
    runs: list[Run] = field(default_factory=list)
    dead: list[DeadLetter] = field(default_factory=list)


class SharePartition(InFlight):
    def acknowledge(self, member: str, ranges: Sequence[AckRange], now_ms: int) -> Transition:
        """The acknowledgements of a member; all of them apply or, with a KafkaError, none.

        Renewals apply at once: a lock is not persisted.
        """
        pieces: list[AckRange] = []
        for first, last, kind in ranges:
            first = max(first, self.start)  # earlier offsets are final already
            if first > last:
                continue
            if last >= self.end:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"offset {last} is above all acquired offsets")
            position = first
            for run in self._runs.overlapping(first, last):
                if run.first > position or run.state is not RecordState.ACQUIRED or run.transition is not None:
                    break
                if run.member != member:
                    raise KafkaError(
                        ErrorCode.INVALID_RECORD_STATE, f"offset {position} is held by another member of the group"
                    )
                pieces.append((max(run.first, first), min(run.last, last), kind))
                position = run.last + 1
            if position <= last:
                raise KafkaError(ErrorCode.INVALID_RECORD_STATE, f"offset {position} is not acquired by this member")
        renewed_until_ms = now_ms + self.limits.lock_ms
        transition = Transition()
        for first, last, kind in pieces:
            whole = self._runs.find(first)  # an earlier range may have split the run
            assert whole is not None
            run = self._runs.cut_out(whole, first, last)
            if kind == Acknowledgement.RENEW:
                run.deadline_ms = renewed_until_ms
            elif kind == Acknowledgement.ACCEPT:
                self._plan(transition, run, RecordState.ACKNOWLEDGED)
            elif kind == Acknowledgement.GAP:
                self._plan(transition, run, RecordState.ARCHIVED)
            elif kind == Acknowledgement.REJECT:
                self._plan_dead(transition, run, REJECTED)
            else:
                self._plan_release(transition, run)
        return self._planned(transition)

    def release_member(self, member: str) -> Transition:
        """Releases the records of a member that has left."""
        transition = Transition()
        for run in list(self._runs):
            if run.state is RecordState.ACQUIRED and run.transition is None and run.member == member:
                self._plan_release(transition, run)
        return self._planned(transition)

    def expire(self, now_ms: int) -> Transition:
        """Releases the records whose locks have expired."""
        transition = Transition()
        if self._earliest_deadline_ms is None or self._earliest_deadline_ms > now_ms:
            return transition
        earliest: int | None = None
        for run in list(self._runs):
            if run.state is not RecordState.ACQUIRED or run.transition is not None:
                continue
            if run.deadline_ms <= now_ms:
                self._plan_release(transition, run)
            elif earliest is None or run.deadline_ms < earliest:
                earliest = run.deadline_ms
        self._earliest_deadline_ms = earliest
        return self._planned(transition)

    def archiving(self) -> list[DeadLetter]:
        """Records whose dead letters were not confirmed when the state was last persisted."""
        limit = self.limits.delivery_count
        return [
            DeadLetter(run.first, run.last, run.deliveries, LIMIT_REACHED if run.deliveries >= limit else REJECTED)
            for run in self._runs
            if run.state is RecordState.ARCHIVING and run.transition is None
        ]

    def finish_archiving(self, first: int, last: int) -> Transition:
        """The dead letters of these records are written."""
        transition = Transition()
        for run in self._runs.overlapping(first, last):
            if run.state is RecordState.ARCHIVING and run.transition is None:
                part = self._runs.cut_out(run, max(run.first, first), min(run.last, last))
                self._plan(transition, part, RecordState.ARCHIVED)
        return self._planned(transition)

    def _plan_release(self, transition: Transition, run: Run) -> None:
        if run.deliveries >= self.limits.delivery_count:
            self._plan_dead(transition, run, LIMIT_REACHED)
        else:
            self._plan(transition, run, RecordState.AVAILABLE)

    def _plan_dead(self, transition: Transition, run: Run, reason: str) -> None:
        if self.limits.dead_letters:
            self._plan(transition, run, RecordState.ARCHIVING)
            transition.dead.append(DeadLetter(run.first, run.last, run.deliveries, reason))
        else:
            self._plan(transition, run, RecordState.ARCHIVED)

    def _plan(self, transition: Transition, run: Run, target: RecordState) -> None:
        run.transition = transition
        run.target = target
        transition.runs.append(run)

    def _planned(self, transition: Transition) -> Transition:
        start = self.start
        for run in self._runs:
            state = run.target if run.transition is transition else run.state
            if run.first != start or not state.final:
                break
            start = run.last + 1
        complete = sum(len(run) for run in transition.runs if run.target.final)
        transition.start = start
        transition.complete_count = self.complete_count + complete - (start - self.start)
        transition.batches = [
            StateBatch(run.first, run.last, run.target, run.deliveries) for run in transition.runs if run.first >= start
        ]
        return transition

    def commit(self, transition: Transition, now_ms: int) -> None:
        """The transition is persisted: applies it."""
        for run in transition.runs:
            if run.transition is not transition:
                continue  # removed with its part of the log
            run.transition = None
            if run.state is RecordState.ACQUIRED:
                self.locks -= len(run)
            run.state = run.target
            run.member = NO_MEMBER
            if run.state is RecordState.AVAILABLE:
                self.deferred += self.inspected
                self._gate.release(run)
            else:
                if run.state.final:
                    self.complete_count += len(run)
                self._gate.finish(run, now_ms)
        for run in transition.runs:
            if run.state.final and run.last >= self.start:
                self._runs.join_final(run)
        self._advance()

    def roll_back(self, transition: Transition) -> None:
        """The transition could not be persisted: restores the state before it."""
        for run in transition.runs:
            if run.transition is transition:
                run.transition = None
                run.target = run.state
                if run.state is RecordState.ACQUIRED:
                    self._watch(run.deadline_ms)
