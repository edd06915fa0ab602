"""Replication on this node: roles, fetchers, in-sync replicas and throttles, with their timers.

Partitions, fetchers and handlers get their knowledge of the cluster here; its only source is the metadata.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from uuid import UUID

from millstream.config.broker_config import BrokerConfig
from millstream.config.table import cluster
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import BrokerId, TopicId, TopicName, TopicPartition
from millstream.formats.protocol.primitives import NodeEndpoint
from millstream.node.cluster.cluster_view import LostBrokers
from millstream.node.environment import Environment
from millstream.node.metadata.image import BrokerRegistration, MetadataDelta, MetadataImage, PartitionState
from millstream.node.replicas.core.leader import Proposal
from millstream.node.replicas.directory_assignments import DirectoryAssignments
from millstream.node.replicas.fetcher import Node, ReplicaFetcher
from millstream.node.replicas.isr_changes import ControllerRequests, IsrChanges
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.partition_table import PartitionTable
from millstream.node.replicas.roles import Metadata, ReplicaRoles
from millstream.node.replicas.throttle import ReplicaThrottle
from millstream.node.storage.disk import Job
from millstream.node.storage.log.directories import LogDirectories
from millstream.node.storage.log.tiered_part import TierStart


class ReplicaFetchers:
    """Assigns partitions to fetchers: by the broker that leads them, and by `num.replica.fetchers`."""

    def __init__(self, node: Node, throttle: ReplicaThrottle, environment: Environment) -> None:
        self._node = node
        self._throttle = throttle
        self._environment = environment
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}
        self._count = self._configured_count

    def resize(self) -> None:
        """Spreads the partitions again if `num.replica.fetchers` has changed."""
        if self._count == self._configured_count:
            return
        self._count = self._configured_count
        for partition in [each for fetcher in self._fetchers.values() for each in fetcher.partitions]:
            self.follow(partition)

    @property
    def _configured_count(self) -> int:
        return int(self._node.config[cluster.NUM_REPLICA_FETCHERS])

    def follow(self, partition: Partition) -> None:
        """Another broker leads the partition, or a new one does."""
        slot = partition.leader_id, self._number(partition)
        for at, fetcher in self._fetchers.items():
            if at != slot and fetcher.follows(partition):
                fetcher.remove(partition)
        found = self._fetchers.get(slot)
        if found is None:
            found = ReplicaFetcher(partition.leader_id, self._node, self._throttle, self._environment)
            self._fetchers[slot] = found
        found.add(partition)
        self._close_idle()

    def stop(self, partition: Partition) -> None:
        for fetcher in self._fetchers.values():
            if fetcher.follows(partition):
                fetcher.remove(partition)
        self._close_idle()

    def close(self) -> None:
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._fetchers.clear()

    def _number(self, partition: Partition) -> int:
        # Not `hash`, which differs from process to process.
        return (partition.topic_id.int + partition.topic_partition.partition) % self._count

    def _close_idle(self) -> None:
        for slot in [slot for slot, fetcher in self._fetchers.items() if not len(fetcher)]:
            self._fetchers.pop(slot).close()


StartOfTier = Callable[[Partition], Awaitable[TierStart]]


async def _no_tier(partition: Partition) -> TierStart:
    raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "this node has no tier")


RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
_log = logging.getLogger("millstream.replication")


def _done(job: Job, future: "asyncio.Future[OSError | None]") -> None:
    job.done(future.result())


class ReplicaManager:
    def __init__(
        self,
        metadata: Metadata,
        link: ControllerRequests,
        logs: LogDirectories,
        environment: Environment,
        *,
        broker_epoch: Callable[[], int] | None = None,
        other_logs: Iterable[TopicPartition] = (),
        has_lost_controller: Callable[[], bool] = lambda: False,
    ) -> None:
        """`broker_epoch`: the epoch of this node's registration; by default the one in the metadata image.
        `has_lost_controller`: whether the controller cannot be reached."""
        self.has_lost_controller = has_lost_controller
        self._metadata = metadata
        self._logs = logs
        self._environment = environment
        self.node_id = metadata.config.node_id
        self._broker_epoch = broker_epoch or self._registered_epoch
        self._isr_changes = IsrChanges(link, self.node_id, self.broker_epoch, environment)
        now = environment.loop.time
        self.leader_throttle = ReplicaThrottle(
            "leader.replication.throttled.replicas",
            self.node_id,
            lambda topic: self.image.topic_config(topic),
            lambda: int(self.config[cluster.LEADER_REPLICATION_THROTTLED_RATE]),
            now,
        )
        self.follower_throttle = ReplicaThrottle(
            "follower.replication.throttled.replicas",
            self.node_id,
            lambda topic: self.image.topic_config(topic),
            lambda: int(self.config[cluster.FOLLOWER_REPLICATION_THROTTLED_RATE]),
            now,
        )
        self.lost_brokers = LostBrokers(
            lambda: self.image, lambda: self.config[cluster.BROKER_SESSION_TIMEOUT_MS] / 1000, now
        )
        self.fetchers = ReplicaFetchers(self, self.follower_throttle, environment)
        self.assignments = DirectoryAssignments(link, self.node_id, self.broker_epoch, environment)
        self.roles = ReplicaRoles(
            metadata, logs, environment, self, self.fetchers, self.assignments, other_logs=other_logs
        )
        self.tier_start: StartOfTier = _no_tier
        self._timers: list[asyncio.TimerHandle] = []
        self._checkpointed = 0

    @property
    def partitions(self) -> PartitionTable:
        return self.roles.partitions

    def begin(self) -> None:
        """Takes the roles that the metadata image has for this node."""
        self.roles.begin()
        self._repeat(self._check_in_sync_sets, lambda: self.lag_max_ms() / 2000)
        self._repeat(
            self._checkpoint, lambda: self.config[cluster.REPLICA_HIGH_WATERMARK_CHECKPOINT_INTERVAL_MS] / 1000
        )

    def follow(self, delta: MetadataDelta) -> None:
        self.lost_brokers.follow(delta)
        self.roles.follow(delta)
        if delta.configs:
            self.fetchers.resize()

    def close(self) -> None:
        """Ends all roles, fetchers and proposals. Called before the logs are closed."""
        for timer in self._timers:
            timer.cancel()
        self._isr_changes.close()
        self.assignments.close()
        self.fetchers.close()
        self.roles.close()

    # The cluster

    @property
    def image(self) -> MetadataImage:
        return self._metadata.image

    @property
    def config(self) -> BrokerConfig:
        return self._metadata.config

    def cluster_id(self) -> str | None:
        return self.image.cluster_id or None

    def broker_epoch(self) -> int:
        return self._broker_epoch()

    def _registered_epoch(self) -> int:
        registered = self._broker(self.node_id)
        return registered.epoch if registered is not None else -1

    def _broker(self, broker_id: int) -> BrokerRegistration | None:
        return self.image.brokers.get(BrokerId(broker_id))

    def is_eligible(self, broker_id: int, broker_epoch: int, state: PartitionState | None) -> bool:
        broker = self._broker(broker_id)
        if broker is None or not broker.active or broker_epoch not in (-1, broker.epoch):
            return False
        # What a follower had reported before its log directory failed does not count any more.
        return state is None or not broker.has_several_log_dirs or broker.has_directory(state.directory_of(broker_id))

    def is_alive(self, broker_id: int) -> bool:
        broker = self._broker(broker_id)
        return broker is not None and not broker.fenced

    def has_stale_epoch(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether a broker has registered again since this broker epoch."""
        broker = self._broker(broker_id)
        return broker is not None and -1 < broker_epoch < broker.epoch

    def has_future_epoch(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether a broker epoch is higher than the one in the metadata.

        The metadata of this node may be behind, so the request may be valid a moment later. It may also be forged.
        """
        broker = self._broker(broker_id)
        return broker_epoch > (broker.epoch if broker is not None else -1)

    def state_in_metadata(self, topic: bytes, by_id: bool, index: int) -> PartitionState | None:
        """The state of a partition in the metadata, for clients of a node that has no replica of it."""
        if by_id:
            found = self.image.topics_by_id.get(TopicId(UUID(bytes=topic)))
        else:
            found = self.image.topics.get(TopicName(topic.decode(errors="replace")))
        return found.partitions[index] if found is not None and 0 <= index < len(found.partitions) else None

    def selects_by_rack(self) -> bool:
        return self.config[cluster.REPLICA_SELECTOR_CLASS] == RACK_AWARE_SELECTOR

    def rack_of(self, broker_id: int) -> str | None:
        broker = self._broker(broker_id)
        return broker.rack if broker is not None else None

    def address_of(self, broker_id: int) -> tuple[str, int]:
        endpoint = self._endpoint(broker_id, self.config.inter_broker_listener)
        if endpoint is None:
            raise ConnectionError(
                f"the metadata has no address of broker {broker_id} for listener {self.config.inter_broker_listener}"
            )
        return endpoint.host, endpoint.port

    def endpoints(self, broker_ids: Iterable[int], listener: str) -> list[NodeEndpoint]:
        """The addresses of brokers, for clients of `listener`."""
        found = [self._endpoint(broker_id, listener) for broker_id in broker_ids]
        return [endpoint for endpoint in found if endpoint is not None]

    def _endpoint(self, broker_id: int, listener: str) -> NodeEndpoint | None:
        broker = self._broker(broker_id)
        for endpoint in broker.end_points if broker is not None else ():
            if endpoint.name.upper() == listener.upper():
                assert broker is not None
                return NodeEndpoint(broker_id, endpoint.host, endpoint.port, broker.rack)
        return None

    def connection_lost(self, broker_id: int) -> None:
        self.lost_brokers.connection_lost(broker_id)

    def connection_made(self, broker_id: int) -> None:
        self.lost_brokers.connection_made(broker_id)

    def lag_max_ms(self) -> int:
        return int(self.config[cluster.REPLICA_LAG_TIME_MAX_MS])

    # In-sync replicas and high watermarks

    def submit(self, partition: Partition, proposal: Proposal) -> None:
        _log.info(
            "isr_proposed partition=%s isr=%s epoch=%d/%d",
            partition.topic_partition,
            proposal.members,
            proposal.leader_epoch,
            proposal.partition_epoch,
        )
        self._isr_changes.submit(partition, proposal)

    def _check_in_sync_sets(self) -> None:
        for partition in self.partitions:
            if partition.is_leader:
                partition.check_in_sync_set()

    def _checkpoint(self) -> None:
        """Writes the high watermarks, so that a restarted node can serve committed records at once."""
        replicated = [p.high_watermark for p in self.partitions if p.state is not None and len(p.state.replicas) > 1]
        if sum(replicated) == self._checkpointed:
            return
        jobs = self._logs.checkpoint_jobs(self._environment.clock.now_ms())
        if jobs:
            self._checkpointed = sum(replicated)
        for job in jobs:
            future = self._environment.offload(job.run)
            future.add_done_callback(partial(_done, job))

    def _repeat(self, action: Callable[[], None], interval_s: Callable[[], float]) -> None:
        place = len(self._timers)

        def run() -> None:
            try:
                action()
            except Exception:
                _log.exception("replication_upkeep_failed")
            self._timers[place] = self._environment.loop.call_later(interval_s(), run)

        self._timers.append(self._environment.loop.call_later(interval_s(), run))
