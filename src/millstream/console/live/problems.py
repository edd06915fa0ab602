"""Finds problems of a cluster in a snapshot, each with its reason and the next step. Pure functions."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from millstream.admin.cluster import Partition
from millstream.console.live.snapshot import Broker, Snapshot
from millstream.raw_client.model import NO_LEADER

_NAMED = 3
_DISK_NEARLY_FULL = 0.9
_VOTER_BEHIND_MS = 5_000
_SKEWED = 1.5
_FEW_LEADERS = 6
_EXPIRES_SOON_DAYS = 30
_DAY_SECONDS = 86_400
_OLD_SECONDS = 30.0


class Severity(IntEnum):
    INFO = 0
    WARNING = 1
    CRITICAL = 2


@dataclass(frozen=True, slots=True)
class Problem:
    severity: Severity
    what: str
    why: str
    next_step: str


def broker_state(snapshot: Snapshot, broker: Broker) -> tuple[str, str]:
    """The state of a broker in a few words, and its colour."""
    if failed := snapshot.failed_directories.get(broker.id):
        return f"disk offline: {', '.join(failed)}", "bad"
    if broker.error:
        return "no response", "bad"
    if broker.fenced:
        return "fenced", "bad"
    if broker.slow:
        return "slow", "warn"
    disk = snapshot.disks.get(broker.id)
    return ("cordoned", "warn") if disk is not None and disk.is_cordoned else ("up", "good")


def problems_of(snapshot: Snapshot) -> list[Problem]:
    """All problems, the most severe first."""
    return snapshot.once(_problems)


def _problems(snapshot: Snapshot) -> list[Problem]:
    if not snapshot.number:
        return []
    found = [
        *_cluster(snapshot),
        *_brokers(snapshot),
        *_old_topics(snapshot),
        *_partitions(snapshot),
        *_quorum(snapshot),
        *_disks(snapshot),
        *_certificates(snapshot),
        *_leaders(snapshot),
        *_machines(snapshot),
    ]
    return sorted(found, key=lambda problem: -problem.severity)


def _cluster(snapshot: Snapshot) -> Iterator[Problem]:
    if snapshot.error is not None:
        yield Problem(
            Severity.CRITICAL,
            "No broker responds",
            snapshot.error,
            "Start the brokers, or check the bootstrap address of the gateway. The page shows the last known state.",
        )


def _brokers(snapshot: Snapshot) -> Iterator[Problem]:
    for broker in snapshot.brokers:
        led = snapshot.leader_counts.get(broker.id, 0)
        failed = snapshot.failed_directories.get(broker.id)
        if failed:
            yield Problem(
                Severity.CRITICAL,
                f"A disk of broker {broker.id} is offline",
                f"The disk of {', '.join(failed)} fails. Other replicas take over its partitions, if there are any.",
                f"Check the disk of {broker.host}. The broker recovers by itself when the disk works again.",
            )
        elif broker.error is not None:
            waiting = (
                f" {_count(led, 'partition')} led by it cannot be read or written until another broker takes over."
            )
            is_empty = snapshot.topics_at > 0 and not snapshot.replica_counts.get(broker.id)
            restart = f"Check the process and the log of {broker.address}, and restart it. This page updates by itself."
            yield Problem(
                Severity.WARNING if is_empty else Severity.CRITICAL,
                f"Broker {broker.id} does not respond",
                f"{broker.error}.{waiting if led else ''}{' It has no replicas.' if is_empty else ''}",
                "Restart it. If it was stopped for good, unregister it on its page." if is_empty else restart,
            )
        elif broker.fenced:
            yield Problem(
                Severity.CRITICAL,
                f"Broker {broker.id} is fenced",
                "The controller gets no heartbeats from it, or it is still catching up after a start.",
                f"Wait a few seconds after a start. Then check the log of {broker.address}.",
            )
        elif broker.slow is not None:
            yield Problem(
                Severity.WARNING,
                f"Broker {broker.id} responds slowly",
                f"{broker.slow}. It is not down: the controller gets its heartbeats.",
                f"Check the load of {broker.host}: `millstream doctor` and the Clients page say what takes long.",
            )


def _old_topics(snapshot: Snapshot) -> Iterator[Problem]:
    age_s = snapshot.at - snapshot.topics_at
    if snapshot.topics_at and age_s > _OLD_SECONDS and snapshot.error is None:
        yield Problem(
            Severity.WARNING,
            f"Topics were last read {age_s:.0f} s ago",
            "The brokers take long to list them. Topics, leaders and sizes on these pages may have changed since.",
            "Check the load of the brokers and of the gateway.",
        )


def _partitions(snapshot: Snapshot) -> Iterator[Problem]:
    partitions = snapshot.partitions
    offline = [each for each in partitions if each.leader == NO_LEADER]
    if offline:
        needed = sorted({number for each in offline for number in (each.isr or each.replicas)})
        yield Problem(
            Severity.CRITICAL,
            f"{_count(len(offline), 'partition')} without a leader",
            f"{_names(offline)}: no in-sync replica is up.",
            f"Start {_brokers_named(needed)}. One of them has all committed records.",
        )
    few = [
        each
        for each in partitions
        if each.leader != NO_LEADER and len(each.isr) < min(snapshot.min_in_sync.get(each.topic, 1), len(each.replicas))
    ]
    if few:
        yield Problem(
            Severity.CRITICAL,
            f"{_count(len(few), 'partition')} below min.insync.replicas",
            f"{_names(few)}: writes with acks=all are rejected.",
            f"Restart {_brokers_named(_missing(few))}.",
        )
    refused = {each.topic_partition for each in few}
    behind = [
        each
        for each in partitions
        if each.is_under_replicated and each.leader != NO_LEADER and each.topic_partition not in refused
    ]
    if behind:
        yield Problem(
            Severity.WARNING,
            f"{_count(len(behind), 'partition')} under-replicated",
            f"{_names(behind)}: {_brokers_named(_missing(behind))} {'is' if len(_missing(behind)) == 1 else 'are'} "
            "not in sync.",
            "If the broker is up, wait until it has caught up. If it is down, start it.",
        )


def _quorum(snapshot: Snapshot) -> Iterator[Problem]:
    quorum = snapshot.quorum
    if quorum is None or snapshot.error is not None:
        return
    if quorum.leader == NO_LEADER:
        yield Problem(
            Severity.CRITICAL,
            "The metadata quorum has no leader",
            "No majority of the controllers is reachable, or an election is in progress.",
            "Start a majority of the controllers. Until then, topics and leaders cannot change.",
        )
    for node in quorum.nodes:
        late = node.behind_ms
        if node.is_voter and not node.is_leader and (late is None or late > _VOTER_BEHIND_MS) and node.lag != 0:
            since = "has never caught up" if late is None else f"has not caught up for {late // 1000} s"
            yield Problem(
                Severity.WARNING,
                f"Voter {node.id} of the quorum is behind",
                f"It {since}. Another failure may stop the quorum.",
                "Start it, or check its log and its connection to the leader.",
            )


def _disks(snapshot: Snapshot) -> Iterator[Problem]:
    for number, disk in sorted(snapshot.disks.items()):
        if disk.total_bytes and disk.free_bytes is not None:
            used = 1 - disk.free_bytes / disk.total_bytes
            if used > _DISK_NEARLY_FULL:
                yield Problem(
                    Severity.WARNING,
                    f"The disk of broker {number} is {used:.0%} full",
                    "A broker with a full disk accepts no records.",
                    "Lower retention.ms or retention.bytes of large topics, add space, or move partitions away.",
                )


def _certificates(snapshot: Snapshot) -> Iterator[Problem]:
    for each in sorted(snapshot.certificates, key=lambda certificate: certificate.ends_at):
        days = int((each.ends_at - snapshot.at) // _DAY_SECONDS)
        if days >= _EXPIRES_SOON_DAYS:
            continue
        who = "browsers and programs" if each.is_of_gateway else "clients"
        when = f"expires in {_count(days, 'day')}" if days > 0 else "expires in less than a day"
        yield Problem(
            Severity.CRITICAL if days < 1 else Severity.WARNING,
            f"The certificate of {each.owner} {when if each.ends_at > snapshot.at else 'has expired'}",
            f"Its end is {each.end_text}. After it, {who} refuse to connect.",
            "Write a new certificate and key into the files of --tls-cert and --tls-key. The gateway takes them over "
            "without a restart."
            if each.is_of_gateway
            else "Write a new certificate and key into the files of ssl.keystore.location. The broker takes them over "
            "without a restart.",
        )


def _machines(snapshot: Snapshot) -> Iterator[Problem]:
    machine = {broker.id: broker.machine for broker in snapshot.brokers}
    shared = [each for each in snapshot.partitions if len({machine.get(n) for n in each.replicas}) < len(each.replicas)]
    if shared:
        enough = len(set(machine.values())) >= max(len(each.replicas) for each in shared)
        yield Problem(
            Severity.WARNING,
            f"{_count(len(shared), 'partition')} with several replicas on one machine",
            f"{_names(shared)}: a machine that dies takes all its brokers.",
            "Run `millstream cluster balance`." if enough else "Add machines, or lower the replication factor.",
        )


def _leaders(snapshot: Snapshot) -> Iterator[Problem]:
    up = [broker.id for broker in snapshot.brokers if broker.is_up]
    if len(up) < len(snapshot.brokers) or len(up) < 2:
        return  # a broker that is down leads nothing, and is reported already
    counts = {number: snapshot.leader_counts.get(number, 0) for number in up}
    mean = sum(counts.values()) / len(counts)
    most = max(counts, key=lambda number: counts[number])
    if mean >= _FEW_LEADERS and counts[most] > _SKEWED * mean:
        yield Problem(
            Severity.INFO,
            f"Broker {most} leads {counts[most]} of {sum(counts.values())} partitions",
            "Leaders serve all reads and writes, so the load is uneven.",
            "Run `millstream cluster balance`, or elect the preferred leaders on the Cluster page.",
        )


def _missing(partitions: Iterable[Partition]) -> list[int]:
    return sorted({number for each in partitions for number in set(each.replicas) - set(each.isr)})


def _names(partitions: list[Partition]) -> str:
    shown = ", ".join(str(each.topic_partition) for each in partitions[:_NAMED])
    return shown if len(partitions) <= _NAMED else f"{shown} and {len(partitions) - _NAMED} more"


def _brokers_named(numbers: list[int]) -> str:
    return f"broker{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
