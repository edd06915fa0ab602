"""The loads, in the order they run. Memory comes last in a round because it reports what the others left behind.

The loads of a cluster are a group of their own, run after all others on three nodes of each kind; `cluster` names all.
`exactly-once` names what has to do with transactions and the cleaner, on one node and on three. The loads of
`security`, in a package of their own, run on brokers with TLS and SASL. Those of `cores` run on `--cores 2`.
"""

from __future__ import annotations

from benchmarks.compare.cluster_target import ClusterFactory
from benchmarks.compare.loads.cleaner import Cleaner
from benchmarks.compare.loads.cluster_election import ClusterElection
from benchmarks.compare.loads.cluster_failover import ClusterFailover
from benchmarks.compare.loads.cluster_metadata import ClusterMetadataLoad
from benchmarks.compare.loads.cluster_produce import ClusterProduce
from benchmarks.compare.loads.cold_catch_up import ColdCatchUp
from benchmarks.compare.loads.consume_java import ConsumeJava
from benchmarks.compare.loads.consume_librdkafka import ConsumeLibrdkafka
from benchmarks.compare.loads.cores import CoresProduce, CoresSmallRequests
from benchmarks.compare.loads.gateway import GatewayProduce
from benchmarks.compare.loads.latency import Latency
from benchmarks.compare.loads.memory import Memory
from benchmarks.compare.loads.offset_commits import OffsetCommits
from benchmarks.compare.loads.produce_java import ProduceJava
from benchmarks.compare.loads.produce_librdkafka import ProduceLibrdkafka
from benchmarks.compare.loads.raw_transfer import RawTransfer
from benchmarks.compare.loads.rebalance import Rebalance
from benchmarks.compare.loads.security import SECURITY_LOAD_NAMES
from benchmarks.compare.loads.share_groups import ShareGroups
from benchmarks.compare.loads.small_requests import SmallRequests
from benchmarks.compare.loads.startup import Startup
from benchmarks.compare.loads.transactions import ClusterTransactions, Transactions
from benchmarks.compare.measure import Load
from benchmarks.compare.target import TargetFactory

LOAD_NAMES = (
    *(Startup.name, ProduceLibrdkafka.name, ProduceJava.name, ConsumeLibrdkafka.name, ConsumeJava.name),
    *(
        Latency.name,
        SmallRequests.name,
        RawTransfer.name,
        ColdCatchUp.name,
        OffsetCommits.name,
        Rebalance.name,
        ShareGroups.name,
        Transactions.name,
        Cleaner.name,
        GatewayProduce.name,
        Memory.name,
    ),
)

CLUSTER_GROUP = "cluster"
CLUSTER_LOAD_NAMES = (
    ClusterProduce.name,
    ClusterTransactions.name,
    ClusterFailover.name,
    ClusterElection.name,
    ClusterMetadataLoad.name,
)

CORES_LOAD_NAMES = (CoresSmallRequests.name, CoresProduce.name)

GROUPS = {
    CLUSTER_GROUP: frozenset(CLUSTER_LOAD_NAMES),
    "cores": frozenset(CORES_LOAD_NAMES),
    "security": frozenset(SECURITY_LOAD_NAMES),
    "exactly-once": frozenset((Transactions.name, Cleaner.name, ClusterTransactions.name)),
}
"""Names that stand for several loads."""


def build_cores_loads() -> list[Load]:
    return [CoresSmallRequests(), CoresProduce()]


def build_cluster_loads(fresh_cluster: ClusterFactory) -> list[Load]:
    return [
        ClusterProduce(),
        ClusterTransactions(),
        ClusterFailover(),
        ClusterElection(),
        ClusterMetadataLoad(fresh_cluster),
    ]


def build_loads(fresh_target: TargetFactory, *, with_groups: bool) -> list[Load]:
    """`with_groups`: every target has consumer groups, so Kafka's own ConsumerPerformance can be used."""
    return [
        Startup(fresh_target),
        ProduceLibrdkafka(),
        ProduceJava(),
        ConsumeLibrdkafka(),
        ConsumeJava(with_groups),
        Latency(),
        SmallRequests(),
        RawTransfer(),
        ColdCatchUp(),
        OffsetCommits(),
        Rebalance(),
        ShareGroups(),
        Transactions(),
        Cleaner(),
        GatewayProduce(),
        Memory(),
    ]
