"""Checks of transactions, of the offsets committed in them, and of copies made by consume-transform-produce loops."""

from collections import defaultdict
from collections.abc import Iterator

from millstream.simulator.history.checks import Check
from millstream.simulator.history.evidence import Anomaly, Evidence, Kind
from millstream.simulator.history.operations import Commit, CommittedRead, Fate, Send, Source, Transaction

_NOT_COMMITTED = (Fate.OPEN, Fate.ABORTED)


def aborted_reads(evidence: Evidence) -> Iterator[Anomaly]:
    """read_committed consumers get only records of committed transactions, and not before the commit request."""
    for here in evidence.partitions.values():
        for value, read_at in here.committed_read_at.items():
            send = here.sends.get(value)
            transaction = None if send is None else evidence.transaction_of(send)
            if transaction is None:
                continue
            where = f"{value} at {sorted(here.read_at[value])} of {transaction.name}"
            if transaction.fate in _NOT_COMMITTED:
                yield Anomaly(Kind.ABORTED_READ, here.name, f"{where}, which is {transaction.fate}")
            elif transaction.commit_invoked_at is not None and read_at < transaction.commit_invoked_at:
                before = transaction.commit_invoked_at - read_at
                yield Anomaly(Kind.DIRTY_READ, here.name, f"{where}, {before:.3f} s before its commit was requested")


def torn_transactions(evidence: Evidence) -> Iterator[Anomaly]:
    """If one record of a transaction is visible, all are."""
    superseded = {name: evidence.superseded(here) for name, here in evidence.partitions.items()}
    for name, sends in evidence.sends_of.items():
        visible = [send for send in sends if evidence.is_visible(send)]
        missing = [
            send
            for send in sends
            if not evidence.is_visible(send)
            and send.value not in superseded[send.partition]
            and _is_passed(evidence, send)
        ]
        if visible and missing:
            yield Anomaly(
                Kind.TORN_TRANSACTION,
                missing[0].partition,
                f"of {name} ({evidence.transactions[name].fate}) {len(visible)} records were read, such as "
                f"{visible[0].value} of {visible[0].partition}, and {len(missing)} were not, such as "
                f"{missing[0].value}",
            )


def _is_passed(evidence: Evidence, send: Send) -> bool:
    """Whether a consumer has read beyond it."""
    here = evidence.partitions[send.partition]
    if evidence.read_to_end:
        return True
    return send.offset is not None and here.highest_committed_read > send.offset


def torn_offsets(evidence: Evidence) -> Iterator[Anomaly]:
    """If the records of a transaction are visible, its offsets are committed.

    Only for transactions of unknown outcome; for others, a missing part is a lost write or a lost commit.
    """
    reads = _stable_reads(evidence)
    for commit, transaction in _commits_in_transactions(evidence):
        if transaction.fate is not Fate.UNKNOWN:
            continue
        sends = evidence.sends_of.get(transaction.name, [])
        seen_at = [
            at
            for send in sends
            if (at := evidence.partitions[send.partition].committed_read_at.get(send.value)) is not None
        ]
        for name, offset in commit.offsets.items():
            for read in reads.get((commit.group, name), ()):
                told = read.offsets[name]
                if seen_at and read.invoked_at > min(seen_at) and (told is None or told < offset):
                    yield Anomaly(
                        Kind.TORN_TRANSACTION,
                        name,
                        f"records of {transaction.name} were read, but the offset of {commit.group} is {told}, "
                        f"not {offset}, which was committed with them",
                    )
                    break


def dirty_offsets(evidence: Evidence) -> Iterator[Anomaly]:
    """A visible committed offset must come from a commit that is in effect at that time."""
    commits: dict[tuple[str, str, int], list[Commit]] = defaultdict(list)
    for commit in evidence.history.commits:
        for name, offset in commit.offsets.items():
            commits[commit.group, name, offset].append(commit)
    for read in evidence.history.committed_reads:
        for name, told in read.offsets.items():
            found = [] if told is None else commits.get((read.group, name, told), [])
            if found and not any(_explains(evidence, commit, read) for commit in found):
                made_by = ", ".join(str(commit.transaction or commit.consumer) for commit in found)
                yield Anomaly(
                    Kind.DIRTY_OFFSETS,
                    name,
                    f"{read.group} read offset {told}, which only the uncommitted {made_by} wrote",
                )


def _explains(evidence: Evidence, commit: Commit, read: CommittedRead) -> bool:
    if commit.invoked_at > read.finished_at:
        return False
    if commit.transaction is None:
        return True
    transaction = evidence.transactions[commit.transaction]
    if transaction.fate in _NOT_COMMITTED or transaction.commit_invoked_at is None:
        return False
    if transaction.commit_invoked_at > read.finished_at:
        return False
    # With unknown outcome, it is in effect unless its records are missing.
    sends = evidence.sends_of.get(transaction.name, [])
    return transaction.fate is Fate.COMMITTED or not (
        evidence.read_to_end and sends and not any(evidence.is_visible(send) for send in sends)
    )


def copies(evidence: Evidence) -> Iterator[Anomaly]:
    """Each input is in the output once, and copies keep the order of their inputs."""
    offsets_of: dict[Source, list[tuple[str, int]]] = defaultdict(list)
    order: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for send in _visible_copies(evidence):
        assert send.source is not None
        offset = min(evidence.partitions[send.partition].read_at[send.value])
        offsets_of[send.source].append((send.partition, offset))
        order[send.source.partition, send.partition].append((offset, send.source.offset))
    for source, places in offsets_of.items():
        if len(places) > 1:
            listed = ", ".join(f"{name} at {offset}" for name, offset in sorted(places))
            yield Anomaly(Kind.COPIED_TWICE, source.partition, f"offset {source.offset} is in {listed}")
    for (source_name, name), pairs in order.items():
        highest = -1
        for offset, source_offset in sorted(pairs):
            if source_offset < highest:
                yield Anomaly(
                    Kind.REORDERED,
                    name,
                    f"at {offset} is a copy of {source_offset} of {source_name}, after one of {highest}",
                )
            highest = max(highest, source_offset)


def offsets_and_output(evidence: Evidence) -> Iterator[Anomaly]:
    """All inputs below the last committed offset of a group are in the output, and no others."""
    if not evidence.read_to_end:
        return
    copied: dict[str, set[int]] = defaultdict(set)
    for send in _visible_copies(evidence):
        assert send.source is not None
        copied[send.source.partition].add(send.source.offset)
    for (group, name), reads in _stable_reads(evidence).items():
        if not any(
            commit.group == group and name in commit.offsets for commit, _ in _commits_in_transactions(evidence)
        ):
            continue
        last = reads[-1]
        told = last.offsets[name] or 0
        inputs = evidence.known_offsets(evidence.partition(name), committed_only=True)
        missing = [offset for offset in inputs if offset < told and offset not in copied[name]]
        beyond = sorted(offset for offset in copied[name] if offset >= told)
        for found, what in ((missing, "below it and not in the output"), (beyond, "beyond it and in the output")):
            if found:
                shown = ", ".join(map(str, found[:5]))
                yield Anomaly(
                    Kind.OFFSETS_DISAGREE,
                    name,
                    f"the offset of {group} is {told}; {len(found)} inputs are {what}: {shown}",
                )


def _visible_copies(evidence: Evidence) -> Iterator[Send]:
    return (send for send in evidence.history.sends if send.source is not None and evidence.is_visible(send))


def _commits_in_transactions(evidence: Evidence) -> Iterator[tuple[Commit, Transaction]]:
    for commit in evidence.history.commits:
        if commit.transaction is not None:
            yield commit, evidence.transactions[commit.transaction]


def _stable_reads(evidence: Evidence) -> dict[tuple[str, str], list[CommittedRead]]:
    """By group and partition: the stable reads of committed offsets, in order of time."""
    found: dict[tuple[str, str], list[CommittedRead]] = defaultdict(list)
    for read in sorted(evidence.history.committed_reads, key=lambda each: each.invoked_at):
        if read.stable and not evidence.stale_allowed(read.invoked_at, read.finished_at):
            for name in read.offsets:
                found[read.group, name].append(read)
    return found


ALL: tuple[Check, ...] = (
    aborted_reads,
    torn_transactions,
    torn_offsets,
    dirty_offsets,
    copies,
    offsets_and_output,
)
