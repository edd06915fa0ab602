"""Checks for anomalies, one function per kind; each takes the evidence and yields anomalies.

Every offset below the end has a record, except in compacted partitions and in those with transactions, where markers
also take offsets. Checks of transactions are in `transaction_checks`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator

from millstream.simulator.history.evidence import (
    Anomaly,
    Evidence,
    Kind,
    PartitionEvidence,
    RisingBound,
    missing_between,
)
from millstream.simulator.history.operations import Assigned, Fate, Outcome, Send, Value

Check = Callable[[Evidence], Iterator[Anomaly]]


def lost_writes(evidence: Evidence) -> Iterator[Anomaly]:
    """Acknowledged records that were never read: lost if later offsets were read, else an unseen tail."""
    for here in evidence.partitions.values():
        superseded = evidence.superseded(here)
        for send in here.sends.values():
            if not evidence.must_be_readable(send) or evidence.is_visible(send) or send.value in superseded:
                continue
            passed = _passed(evidence, here, send)
            kind = Kind.LOST_WRITE if passed else Kind.UNSEEN_TAIL
            where = "at an unknown offset" if send.offset is None else f"at offset {send.offset}"
            within = "" if send.transaction is None else f", in committed transaction {send.transaction},"
            yield Anomaly(
                kind,
                here.name,
                f"{send.value} of {send.producer} was acknowledged {where}{within} and never read; "
                f"the highest offset read is {here.highest_read}",
            )


def _passed(evidence: Evidence, here: PartitionEvidence, send: Send) -> bool:
    if send.offset is not None:
        reads_committed = send.transaction is not None and here.has_committed_reader
        return (here.highest_committed_read if reads_committed else here.highest_read) > send.offset
    # Without an offset: a later record of the same producer was read.
    return any(
        other.producer == send.producer and other.invoked_at > send.invoked_at and evidence.is_visible(other)
        for other in here.sends.values()
    )


def duplicates(evidence: Evidence) -> Iterator[Anomaly]:
    for here in evidence.partitions.values():
        offsets_of: dict[Value, set[int]] = defaultdict(set)
        for offset, values in here.values_at.items():
            for value in sorted(values, key=str):  # any order: a history has numbers or texts
                offsets_of[value].add(offset)
        for value, offsets in offsets_of.items():
            if len(offsets) > 1:
                yield Anomaly(Kind.DUPLICATE, here.name, f"{value} is at offsets {sorted(offsets)}")


def inconsistent_offsets(evidence: Evidence) -> Iterator[Anomaly]:
    for here in evidence.partitions.values():
        for offset, values in here.values_at.items():
            if len(values) > 1:
                listed = sorted(values, key=str)  # any order
                yield Anomaly(Kind.INCONSISTENT_OFFSET, here.name, f"offset {offset} holds {listed}")


def reordering(evidence: Evidence) -> Iterator[Anomaly]:
    """The records of a producer must have rising offsets in the order of its sends, also those of unknown outcome."""
    last: dict[tuple[str, str], tuple[int, Send]] = {}
    for send in evidence.history.sends:
        offset = evidence.partitions[send.partition].offset_of(send)
        if offset is None:
            continue
        key = (send.producer, send.partition)
        before = last.get(key)
        if before is not None and before[0] > offset:
            yield Anomaly(
                Kind.REORDERED,
                send.partition,
                f"{send.producer} sent {before[1].value} before {send.value}, but they are at {before[0]} and {offset}",
            )
        else:
            last[key] = (offset, send)


def non_monotonic_sends(evidence: Evidence) -> Iterator[Anomaly]:
    """A send that starts after an acknowledgement gets a higher offset, also across producers."""
    for here in evidence.partitions.values():
        acked = [
            (send.finished_at, offset)
            for send in here.sends.values()
            if send.outcome is Outcome.ACKED
            and send.finished_at is not None
            and (offset := here.offset_of(send)) is not None
        ]
        bound = RisingBound(acked)
        for send in here.sends.values():
            offset = here.offset_of(send)
            highest = bound.before(send.invoked_at)
            if offset is not None and highest is not None and offset < highest:
                yield Anomaly(
                    Kind.NON_MONOTONIC_SEND,
                    here.name,
                    f"{send.value} is at {offset}, but {highest} was acknowledged before it was sent",
                )


def polls(evidence: Evidence) -> Iterator[Anomaly]:
    """Within one assignment, the offsets of a consumer rise and skip no known record."""
    known = {
        (name, committed_only): evidence.known_offsets(here, committed_only=committed_only)
        for name, here in evidence.partitions.items()
        for committed_only in (False, True)
    }
    for run in evidence.runs:
        previous = None if run.position is None else run.position - 1
        for offset in run.offsets:
            if previous is not None and offset <= previous:
                yield Anomaly(
                    Kind.NON_MONOTONIC_POLL,
                    run.partition,
                    f"{run.consumer} got offset {offset} after {previous}",
                )
            elif previous is not None and offset > previous + 1:
                passed = missing_between(known[run.partition, run.committed_only], previous, offset)
                if passed:
                    yield Anomaly(
                        Kind.POLL_SKIP,
                        run.partition,
                        f"{run.consumer} went from {previous} to {offset} and skipped {_some(passed)}",
                    )
            previous = offset


def group_skips(evidence: Evidence) -> Iterator[Anomaly]:
    """A group may get a record twice, after a rebalance, but must get each record. Groups start at offset 0."""
    delivered: dict[tuple[str, str, bool], set[int]] = defaultdict(set)
    for run in evidence.runs:
        if run.group is not None:
            delivered[run.group, run.partition, run.committed_only].update(run.offsets)
    for (group, name, committed_only), offsets in delivered.items():
        highest = max(offsets, default=-1)
        known = evidence.known_offsets(evidence.partition(name), committed_only=committed_only)
        passed = [x for x in known if x < highest and x not in offsets]
        if passed:
            yield Anomaly(
                Kind.GROUP_SKIP, name, f"{group} got records up to offset {highest}, but no member got {_some(passed)}"
            )


def gaps(evidence: Evidence) -> Iterator[Anomaly]:
    for here in evidence.partitions.values():
        if here.has_transactions or here.is_compacted:
            continue
        previous: int | None = None
        for offset in sorted(x for x in here.values_at if x <= here.highest_read):
            if offset != (0 if previous is None else previous + 1):
                since = 0 if previous is None else previous + 1
                yield Anomaly(Kind.GAP, here.name, f"no record was seen at offsets {since} to {offset - 1}")
            previous = offset


def phantoms(evidence: Evidence) -> Iterator[Anomaly]:
    for here in evidence.partitions.values():
        for value, offsets in here.read_at.items():
            send = here.sends.get(value)
            if send is None:
                yield Anomaly(Kind.PHANTOM, here.name, f"{value}, read at {sorted(offsets)}, was never sent there")
            elif send.outcome is Outcome.FAILED:
                yield Anomaly(Kind.PHANTOM, here.name, f"the send of {value}, read at {sorted(offsets)}, had failed")


def stale_reads(evidence: Evidence) -> Iterator[Anomaly]:
    """A reported end offset must be higher than all offsets acknowledged, read or reported before the request.

    For the last stable offset, only reads of read_committed consumers count: a commit is acknowledged before its
    markers are in all partitions.
    """
    for committed_only in (False, True):
        bounds = {name: RisingBound(points) for name, points in _known_ends(evidence, committed_only).items()}
        for read in evidence.history.end_reads:
            if read.committed_only is not committed_only:
                continue
            least = bounds[read.partition].before(read.invoked_at)
            if least is None or read.end_offset >= least or evidence.stale_allowed(read.invoked_at, read.finished_at):
                continue
            yield Anomaly(
                Kind.STALE_READ,
                read.partition,
                f"{read.reader} got end offset {read.end_offset}, "
                f"but the end was known to be at least {least} before the request",
            )


def _known_ends(evidence: Evidence, committed_only: bool) -> dict[str, list[tuple[float, int]]]:
    """By partition: (time, end offset known at that time)."""
    history = evidence.history
    known: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for send in () if committed_only else history.sends:
        if send.outcome is Outcome.ACKED and send.offset is not None and send.finished_at is not None:
            known[send.partition].append((send.finished_at, send.offset + 1))
    reads_committed: set[str] = set()
    for each in history.reading:
        if isinstance(each, Assigned):
            (reads_committed.add if each.committed_only else reads_committed.discard)(each.consumer)
        elif not committed_only or each.consumer in reads_committed:
            highest: dict[str, int] = {}
            for name, offset, _ in each.records:
                highest[name] = max(highest.get(name, -1), offset)
            for name, offset in highest.items():
                known[name].append((each.finished_at, offset + 1))
    for read in history.end_reads:
        if read.committed_only or not committed_only:
            known[read.partition].append((read.finished_at, read.end_offset))
    return known


def lost_commits(evidence: Evidence) -> Iterator[Anomaly]:
    """A read of a committed offset must return at least the offset acknowledged before.

    An offset committed in a transaction counts from the end of the transaction, for stable reads.
    """
    history = evidence.history
    acked: dict[tuple[str, str, bool], list[tuple[float, int]]] = defaultdict(list)
    for commit in history.commits:
        transaction = None if commit.transaction is None else evidence.transactions[commit.transaction]
        if transaction is None:
            at = commit.finished_at if commit.outcome is Outcome.ACKED else None
        else:
            at = transaction.ended_at if transaction.fate is Fate.COMMITTED else None
        if at is not None:
            for name, offset in commit.offsets.items():
                acked[commit.group, name, True].append((at, offset))
                if transaction is None:
                    acked[commit.group, name, False].append((at, offset))
    bounds = {key: RisingBound(points) for key, points in acked.items()}
    for read in history.committed_reads:
        if evidence.stale_allowed(read.invoked_at, read.finished_at):
            continue
        for name, found in read.offsets.items():
            bound = bounds.get((read.group, name, read.stable))
            least = None if bound is None else bound.before(read.invoked_at)
            if least is not None and (found is None or found < least):
                yield Anomaly(
                    Kind.LOST_COMMIT,
                    name,
                    f"{read.group} had committed {least}, but a later read returned {found}",
                )


def _some(offsets: list[int]) -> str:
    shown = ", ".join(map(str, offsets[:5]))
    return shown if len(offsets) <= 5 else f"{shown} and {len(offsets) - 5} more"


ALL: tuple[Check, ...] = (
    lost_writes,
    duplicates,
    inconsistent_offsets,
    reordering,
    non_monotonic_sends,
    polls,
    group_skips,
    gaps,
    phantoms,
    stale_reads,
    lost_commits,
)
