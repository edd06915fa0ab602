"""Output of the cluster and broker commands: the state of a cluster, a plan, a quorum."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from millstream.cli.terminal import note, print_json, print_table
from millstream.formats.model.placement import default_machine
from millstream.node.metadata.topology import BrokerAddress, topology_warnings

if TYPE_CHECKING:
    from millstream.admin.balance import PlannedReassignment
    from millstream.admin.cluster import Broker, ClusterState, LogDirectories, Partition, Quorum
    from millstream.admin.features import Change, Feature

_SHOWN_PROBLEMS = 20
_BEHIND_MS = 5000
"""A voter behind for so long does not run, or cannot keep up: voters fetch twice a second."""
_UNITS = ("B", "kB", "MB", "GB", "TB")


def shown_bytes(count: int | None) -> str:
    if count is None:
        return "?"
    size = float(count)
    for unit in _UNITS:
        if size < 1000 or unit == _UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError


class Health:
    """The problems of a cluster."""

    def __init__(self, cluster: "ClusterState") -> None:
        partitions = cluster.partitions
        self.offline = [each for each in partitions if each.is_offline]
        self.under_min_in_sync = [each for each in partitions if cluster.is_under_min_in_sync(each)]
        self.under_replicated = [each for each in partitions if each.is_under_replicated]
        self.fenced = [broker.id for broker in cluster.brokers if broker.fenced]
        self.unresponsive = cluster.unresponsive
        self.offline_directories = cluster.offline_directories
        self.lagging_voters = [
            node.id for node in cluster.quorum.voters if node.behind_ms is None or node.behind_ms > _BEHIND_MS
        ]
        self.no_quorum_leader = cluster.quorum.leader < 0
        self.not_preferred = [each for each in partitions if not each.is_led_as_preferred]
        self.leader_skew = leader_skew(cluster)
        machine = {broker.id: broker.machine for broker in cluster.brokers}
        self.machines = len(set(machine.values()))
        self.sharing_machines = [
            each for each in partitions if len({machine.get(n, n) for n in each.replicas}) < len(each.replicas)
        ]
        self.topology = topology_warnings(
            [BrokerAddress(each.id, each.host, each.rack, each.machine_id) for each in cluster.brokers]
        )

    @property
    def is_healthy(self) -> bool:
        missing = (self.offline, self.under_min_in_sync, self.under_replicated, self.fenced, self.unresponsive)
        return (
            not any(missing) and not self.offline_directories and not self.lagging_voters and not self.no_quorum_leader
        )

    def problem(self, partition: "Partition") -> str:
        if partition in self.offline:
            return "offline"
        return "under min.insync.replicas" if partition in self.under_min_in_sync else "under-replicated"


def leader_skew(cluster: "ClusterState") -> float:
    """How far the broker with the most leaders is above the average: 0 if it is not, 1 if it leads twice as many.

    A difference of one partition counts as none.
    """
    counts = Counter(each.leader for each in cluster.partitions if not each.is_offline)
    live = [broker.id for broker in cluster.live if broker.id not in cluster.cordoned]
    if not live or not counts:
        return 0.0
    share = counts.total() / len(live)
    most = max(counts[number] for number in live)
    return 0.0 if most <= share + 1 else most / share - 1


def broker_rows(cluster: "ClusterState") -> list[dict[str, Any]]:
    leaders = Counter(each.leader for each in cluster.partitions)
    replicas = Counter(number for each in cluster.partitions for number in each.replicas)
    return [
        {
            "id": broker.id,
            "address": broker.address,
            "rack": broker.rack,
            "machine": broker.machine_id,
            "state": _state(broker, cluster),
            "leaders": leaders[broker.id],
            "replicas": replicas[broker.id],
            "bytes": cluster.bytes_on(broker.id),
            "offline_log_dirs": cluster.offline_directories.get(broker.id, []),
        }
        for broker in cluster.brokers
    ]


def _state(broker: "Broker", cluster: "ClusterState") -> str:
    if broker.id in cluster.offline_directories:
        return "disk offline"
    if broker.fenced:
        return "fenced"
    if broker.id in cluster.unresponsive:
        return "silent"
    return "cordoned" if broker.id in cluster.cordoned else "live"


def show_brokers(rows: Sequence[dict[str, Any]]) -> None:
    has_machines = any(row["machine"] is not None for row in rows)
    machine = ("machine",) if has_machines else ()
    print_table(
        ("broker", "address", "rack", *machine, "state", "leaders", "replicas", "data"),
        [
            (
                row["id"],
                row["address"],
                row["rack"],
                *((row["machine"] or default_machine(row["id"]),) if has_machines else ()),
                row["state"],
                row["leaders"],
                row["replicas"],
                shown_bytes(row["bytes"]),
            )
            for row in rows
        ],
    )


_BAR_CELLS = 20


def disk_rows(brokers: "Sequence[tuple[Broker, LogDirectories]]") -> list[dict[str, Any]]:
    """One document for each log directory."""
    return [
        {
            "broker": broker.id,
            "directory": each.path,
            "state": "offline" if each.is_offline else "cordoned" if each.is_cordoned else "online",
            "replicas": len(each.sizes),
            "bytes": sum(each.sizes.values()),
            "total_bytes": each.total_bytes,
            "free_bytes": each.free_bytes,
            "moving_in": [{"partition": str(at), "offset_lag": lag} for at, lag in each.moving_in.items()],
        }
        for broker, found in brokers
        for each in found.directories
    ]


def show_disks(rows: Sequence[dict[str, Any]]) -> None:
    print_table(
        ("broker", "directory", "state", "replicas", "data", "disk", "free", "moving in"),
        [
            (
                row["broker"],
                row["directory"],
                row["state"],
                row["replicas"],
                shown_bytes(row["bytes"]),
                _bar(row["total_bytes"], row["free_bytes"]),
                shown_bytes(row["free_bytes"]),
                len(row["moving_in"]) or "",
            )
            for row in rows
        ],
    )


def _bar(total: int | None, free: int | None) -> str:
    """How full a disk is."""
    if not total or free is None:
        return ""
    share = 1 - free / total
    filled = round(share * _BAR_CELLS)
    return f"{'█' * filled}{'░' * (_BAR_CELLS - filled)} {share:.0%}"


def quorum_document(quorum: "Quorum") -> dict[str, Any]:
    return {
        "leader": quorum.leader,
        "epoch": quorum.epoch,
        "high_watermark": quorum.high_watermark,
        "nodes": [
            {
                "id": node.id,
                "role": "leader" if node.is_leader else "voter" if node.is_voter else "observer",
                "directory_id": str(node.directory_id),
                "log_end_offset": node.log_end_offset,
                "lag": node.lag,
                "behind_ms": node.behind_ms,
                "address": quorum.addresses.get(node.id),
            }
            for node in quorum.nodes
        ],
    }


def show_quorum(quorum: "Quorum") -> None:
    document = quorum_document(quorum)
    print_table(
        ("quorum", "role", "log end", "lag", "behind", "address"),
        [
            (row["id"], row["role"], row["log_end_offset"], row["lag"], _seconds(row["behind_ms"]), row["address"])
            for row in document["nodes"]
        ],
    )


def _seconds(behind_ms: int | None) -> str:
    if behind_ms is None:
        return "never in sync"
    return "" if behind_ms <= _BEHIND_MS else f"{behind_ms / 1000:.0f} s"


def status_document(cluster: "ClusterState", health: Health) -> dict[str, Any]:
    return {
        "cluster_id": cluster.cluster_id,
        "well": health.is_healthy,
        "quorum": quorum_document(cluster.quorum),
        "brokers": broker_rows(cluster),
        "partitions": len(cluster.partitions),
        "offline": [_document(each) for each in health.offline],
        "under_min_in_sync": [_document(each) for each in health.under_min_in_sync],
        "under_replicated": [_document(each) for each in health.under_replicated],
        "not_led_by_preferred": len(health.not_preferred),
        "leader_skew": round(health.leader_skew, 3),
        "sharing_machines": [_document(each) for each in health.sharing_machines],
        "warnings": machine_warnings(health),
    }


def _document(partition: "Partition") -> dict[str, Any]:
    return {
        "topic": partition.topic,
        "partition": partition.index,
        "leader": partition.leader,
        "replicas": list(partition.replicas),
        "isr": list(partition.isr),
    }


def show_status(cluster: "ClusterState", health: Health) -> None:
    quorum = cluster.quorum
    leader = "has no leader" if health.no_quorum_leader else f"leader {quorum.leader}, epoch {quorum.epoch}"
    print(f"cluster {cluster.cluster_id}  quorum {leader}")
    print()
    if not health.no_quorum_leader:
        show_quorum(quorum)
        print()
    show_brokers(broker_rows(cluster))
    print()
    affected = sorted(
        {
            each.topic_partition: each
            for each in (*health.offline, *health.under_min_in_sync, *health.under_replicated)
        }.values(),
        key=lambda each: (not each.is_offline, each.topic_partition),
    )
    if affected:
        print_table(
            ("topic", "partition", "leader", "in sync", "replicas", "problem"),
            [
                (
                    each.topic,
                    each.index,
                    "none" if each.is_offline else each.leader,
                    _numbers(each.isr),
                    _numbers(each.replicas),
                    health.problem(each),
                )
                for each in affected[:_SHOWN_PROBLEMS]
            ],
        )
        if len(affected) > _SHOWN_PROBLEMS:
            print(f"and {len(affected) - _SHOWN_PROBLEMS} more; --json lists all")
        print()
    print(
        f"{len(cluster.partitions)} partitions: {len(health.offline)} offline, "
        f"{len(health.under_replicated)} under-replicated, {len(health.under_min_in_sync)} under min.insync.replicas"
    )
    print(f"leader skew {health.leader_skew:.0%}, {len(health.not_preferred)} not led by the preferred replica")
    for line in machine_warnings(health):
        print(f"warning: {line}")
    for line in _advice(cluster, health):
        note(line)


def machine_warnings(health: Health) -> list[str]:
    """Partitions that a single machine can take away, and racks that are no zones."""
    lines = []
    if health.sharing_machines:
        first = health.sharing_machines[0]
        topics = len({each.topic for each in health.sharing_machines})
        widest = max(len(each.replicas) for each in health.sharing_machines)
        help_ = (
            "`millstream cluster balance` spreads them"
            if health.machines >= widest
            else f"there are {health.machines} machine(s): add machines, or lower the replication factor"
        )
        lines.append(
            f"{len(health.sharing_machines)} partitions of {topics} topic(s), for example {first.topic}-{first.index}, "
            f"have several replicas on one machine, which can die as a whole: {help_}"
        )
    return [*lines, *health.topology]


def _advice(cluster: "ClusterState", health: Health) -> list[str]:
    """What to do about the problems."""
    lines = []
    if health.no_quorum_leader:
        lines.append(
            "the metadata quorum has no leader: start a majority of its controllers; the rest is the last known state"
        )
    for number, directories in health.offline_directories.items():
        lines.append(
            f"broker {number}: log directory {', '.join(directories)} is offline: its disk failed. Check the disk and "
            "the broker's log; the broker recovers when the disk works again."
        )
    fenced = [number for number in health.fenced if number not in health.offline_directories]
    if fenced:
        numbers = ", ".join(map(str, fenced))
        lines.append(
            f"fenced: {numbers}. Start the stopped brokers; `millstream broker drain ID` removes one that is lost."
        )
    if health.unresponsive:
        lines.append(f"no response from {', '.join(map(str, health.unresponsive))} at the advertised address")
    if health.lagging_voters:
        lines.append(f"voters behind or not running: {', '.join(map(str, health.lagging_voters))}")
    if health.is_healthy and len(cluster.live) > 1 and (health.leader_skew > 0.2 or health.not_preferred):
        lines.append("leaders are unbalanced: `millstream cluster balance` balances them")
    return lines


def _numbers(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def plan_document(plan: "Sequence[PlannedReassignment]") -> list[dict[str, Any]]:
    return [
        {
            "topic": each.topic,
            "partition": each.partition,
            "from": list(each.before),
            "to": list(each.replicas),
            "moved_bytes": each.moved_bytes,
        }
        for each in plan
    ]


def show_plan(plan: "Sequence[PlannedReassignment]") -> None:
    rows = plan_document(plan)
    print_table(
        ("topic", "partition", "from", "", "to", "data"),
        [
            (
                row["topic"],
                row["partition"],
                _numbers(row["from"]),
                "->",
                _numbers(row["to"]),
                shown_bytes(row["moved_bytes"]) if row["moved_bytes"] else "order only" if _same(row) else "0 B",
            )
            for row in rows
        ],
    )
    print(f"{len(rows)} partitions, {shown_bytes(sum(row['moved_bytes'] for row in rows))} to copy")


def _same(row: dict[str, Any]) -> bool:
    return sorted(row["from"]) == sorted(row["to"])


def features_document(features: "Sequence[Feature]") -> list[dict[str, Any]]:
    return [
        {"name": each.name, "level": each.level, "highest": each.highest, "newest": each.newest} for each in features
    ]


def show_features(features: "Sequence[Feature]") -> None:
    """One line of levels; one more if an upgrade is possible, or waits for nodes of the previous version."""
    shown = [f"{each.name} {each.level}" + (f" ({each.release})" if each.release else "") for each in features]
    print(f"features: {', '.join(shown)}")
    able = [each for each in features if each.is_upgraded]
    if any(each.newest > max(each.level, each.highest) for each in able):
        print("some brokers have a newer version than others: restart the others with it, or go back with these")
    if any(each.highest > each.level for each in able):
        print("all brokers support higher levels: millstream cluster upgrade --dry-run shows them")


def show_changes(changes: "Sequence[Change]", *, dry_run: bool, json: bool) -> None:
    if json:
        rows = [{"name": each.name, "from": each.before, "to": each.after} for each in changes]
        print_json({"changes": rows, "dry_run": dry_run})
    elif not changes:
        print("nothing to change: the features have these levels")
    else:
        print_table(("feature", "from", "to"), [(each.name, each.before, each.after) for each in changes])
        print("nothing was changed (--dry-run)" if dry_run else "changed")
