"""One partition as one share group sees it: which records are whose, how often they were delivered, what is done with.

Pure: the leader tells it what lies in the log, who asks and what time it is. Handing records out (`in_flight`) changes
only memory; whatever must survive (acknowledged, released with a count, archived) is a `Transition`: its batches are
persisted first, and only then does it take effect, so no answer ever speaks of something that a crash could undo.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

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
    """A change that takes effect once it is persisted: call `commit` or `roll_back` with it."""

    batches: list[StateBatch] = field(default_factory=list)
    start: int = 0
    """The start offset that will hold."""
    complete_count: int = 0
    """How many records from there on will be done with."""
    runs: list[Run] = field(default_factory=list)
    dead: list[DeadLetter] = field(default_factory=list)


class SharePartition(InFlight):
    def acknowledge(self, member: str, ranges: Sequence[AckRange], now_ms: int) -> Transition:
        """What a member says of records it holds; all of it counts or, with a KafkaError, nothing.

        Renewals take effect at once: a lock is not persisted.
        """
        pieces: list[AckRange] = []
        for first, last, kind in ranges:
            first = max(first, self.start)  # what lies before the start is done with, whoever decided it
            if first > last:
                continue
            if last >= self.end:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"offset {last} lies behind all that were acquired")
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
            whole = self._runs.find(first)  # an earlier piece may have cut the run that was found
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
        """The member is gone: what it holds is free again."""
        transition = Transition()
        for run in list(self._runs):
            if run.state is RecordState.ACQUIRED and run.transition is None and run.member == member:
                self._plan_release(transition, run)
        return self._planned(transition)

    def expire(self, now_ms: int) -> Transition:
        """Frees the records whose locks have expired."""
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
        """Records that were on their way to the dead-letter topic when the state was last persisted."""
        limit = self.limits.delivery_count
        return [
            DeadLetter(run.first, run.last, run.deliveries, LIMIT_REACHED if run.deliveries >= limit else REJECTED)
            for run in self._runs
            if run.state is RecordState.ARCHIVING and run.transition is None
        ]

    def finish_archiving(self, first: int, last: int) -> Transition:
        """They are in the dead-letter topic."""
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
        """It is persisted: let it be so."""
        for run in transition.runs:
            if run.transition is not transition:
                continue  # dropped meanwhile, with all of its log
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
        """It could not be persisted: everything is as before."""
        for run in transition.runs:
            if run.transition is transition:
                run.transition = None
                run.target = run.state
                if run.state is RecordState.ACQUIRED:
                    self._watch(run.deadline_ms)
