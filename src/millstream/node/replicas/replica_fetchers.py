"""Which fetcher copies which partition: by the broker that leads it, and by `num.replica.fetchers`."""

from millstream.config.table import cluster
from millstream.node.environment import Environment
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.replica_fetcher import Node, ReplicaFetcher
from millstream.node.replicas.replica_throttle import ReplicaThrottle


class ReplicaFetchers:
    def __init__(self, node: Node, throttle: ReplicaThrottle, environment: Environment) -> None:
        self._node = node
        self._throttle = throttle
        self._environment = environment
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}

    def follow(self, partition: Partition) -> None:
        """The partition has a leader elsewhere, or a new one."""
        slot = partition.leader_id, self._lane(partition)
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

    def _lane(self, partition: Partition) -> int:
        count: int = self._node.config[cluster.NUM_REPLICA_FETCHERS]
        # Not `hash`, which differs from one process to the next.
        return (partition.topic_id.int + partition.topic_partition.partition) % count

    def _close_idle(self) -> None:
        for slot in [slot for slot, fetcher in self._fetchers.items() if not len(fetcher)]:
            self._fetchers.pop(slot).close()
