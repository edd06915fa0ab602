"""The nodes together: started and stopped, and asked who leads what."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.s3_server import FaultyStore
from tests.system.chaos.network import Disks, Network
from tests.system.chaos.nodes import SYSTEMS, Node
from tests.system.chaos.security import Security
from tests.wire import Closed

_ASK_TIMEOUT_SECONDS = 3.0
_TIERED_NODE = {
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "200",
    "log.retention.check.interval.ms": "200",
}
_TIERED_TOPIC = {
    "remote.storage.enable": "true",
    "local.retention.bytes": "1",
    "internal.segment.bytes": "20000",
    "file.delete.delay.ms": "0",
}


class Cluster:
    """Use it with `with`: all nodes are gone afterwards."""

    def __init__(
        self,
        system: str,
        node_count: int,
        network: Network,
        disks: Disks,
        directory: Path,
        settings: Mapping[str, str],
        security: Security | None = None,
        store: FaultyStore | None = None,
        previous: Path | None = None,
    ) -> None:
        """`store`: the topics are tiered to it. `previous`: the source of the version that all nodes begin with."""
        numbers = range(1, node_count + 1)
        voters = {number: network.controller_address(number) for number in numbers}
        self.network = network
        self.disks = disks
        self.security = security
        self.store = store
        self.previous = previous
        if store is not None:
            settings = {**settings, **_TIERED_NODE, "millstream.tier.url": store.url}
        self.nodes = {
            number: SYSTEMS[system](
                number,
                network.kafka_address(number),
                voters,
                directory,
                disks.make(number),
                network.command_prefix(number),
                settings,
                {**disks.environment(number), **(store.environment if store is not None else {})},
                security,
                previous,
            )
            for number in numbers
        }

    def __enter__(self) -> "Cluster":
        for node in self.nodes.values():
            node.prepare()
        try:
            for node in self.nodes.values():
                node.start()
            for node in self.nodes.values():
                node.wait_until_it_responds()
            self._wait(self._all_registered, 60.0, "not all brokers are in the metadata")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.network.heal()
        for node in self.nodes.values():
            node.resume()
            node.ask_to_stop()
        for node in self.nodes.values():
            node.stop()

    @property
    def bootstrap(self) -> str:
        return ",".join(node.address for node in self.nodes.values())

    @property
    def client_settings(self) -> dict[str, str]:
        """How librdkafka connects to it."""
        return {"bootstrap.servers": self.bootstrap, **(self.security.client_settings() if self.security else {})}

    def add_client(self, topic: str, *groups: str) -> None:
        """In a secured cluster, the user of the workload."""
        if self.security is not None:
            with next(iter(self.nodes.values())).connect(_ASK_TIMEOUT_SECONDS) as wire:
                self.security.add_client(wire, topic, groups)

    def create_topic(self, name: str, partitions: int) -> None:
        """Every partition on three nodes (or as many as there are), of which all but one must have a write."""
        replicas = min(3, len(self.nodes))
        configs = {"min.insync.replicas": str(max(1, replicas - 1)), **(_TIERED_TOPIC if self.store else {})}
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": replicas,
            "configs": [{"name": setting, "value": value} for setting, value in configs.items()],
        }
        response = self._ask_anyone("create_topics", 7, topics=[topic], timeout_ms=20_000, validate_only=False)
        (row,) = response.topics
        if row.error_code:
            raise RuntimeError(f"creating {name}: error {row.error_code} {row.error_message}")
        self.wait_until_in_sync(name)

    def leaders(self, topic: str) -> dict[int, int]:
        """The leader of each partition that has one, by partition."""
        rows = self._partitions(self._metadata(topic))
        return {row.partition_index: row.leader_id for row in rows if row.error_code == 0 and row.leader_id > 0}

    def elect_preferred_leaders(self, topic: str, partitions: int) -> None:
        """Every partition is led by its first replica again; all must be in sync."""
        wanted = [{"topic": topic, "partitions": list(range(partitions))}]
        self._ask_anyone("elect_leaders", 2, election_type=0, topic_partitions=wanted, timeout_ms=20_000)

    def controller(self) -> int:
        """The node that leads the metadata quorum."""
        wanted = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
        response = self._ask_anyone("describe_quorum", 0, topics=wanted)
        if response.error_code or response.topics[0].partitions[0].error_code:
            raise RuntimeError(f"describe_quorum: error {response.error_code}")
        return int(response.topics[0].partitions[0].leader_id)

    def coordinator(self, key: str, key_type: int) -> int:
        """The node that coordinates a group (0) or a transactional id (1)."""
        for _ in range(100):
            response = self._ask_anyone("find_coordinator", 4, key_type=key_type, coordinator_keys=[key])
            (row,) = response.coordinators
            if row.error_code == 0:
                return int(row.node_id)
            time.sleep(0.1)
        raise RuntimeError(f"find_coordinator of {key}: error {row.error_code} {row.error_message}")

    def set_feature(self, name: str, level: int) -> None:
        """Up or down; any broker passes it on to the controller."""
        for upgrade_type in (1, 2):  # an upgrade, or else a safe downgrade
            change = {"feature": name, "max_version_level": level, "upgrade_type": upgrade_type}
            response = self._ask_anyone("update_features", 1, timeout_ms=20_000, feature_updates=[change])
            code = response.error_code or next((row.error_code for row in response.results), 0)
            if code == 0:
                return
        raise RuntimeError(f"update_features of {name} to {level}: error {code} {response}")

    def wait_until_in_sync(self, topic: str, timeout_s: float = 60.0) -> float:
        """Until every node says that every replica of every partition is in sync; how long that took."""
        return self._wait(lambda: self._out_of_sync(topic), timeout_s, "not in sync")

    def _out_of_sync(self, topic: str) -> str:
        for node in self.nodes.values():
            response = _ask(node, "metadata", 12, topics=[{"name": topic}])
            rows = self._partitions(response)
            if not rows or len(response.brokers) < len(self.nodes):
                return f"node {node.number} knows {len(response.brokers)} brokers and {len(rows)} partitions"
            for row in rows:
                if row.error_code or set(row.isr_nodes) != set(row.replica_nodes):
                    replicas = f"in sync are {row.isr_nodes} of {row.replica_nodes}"
                    return (
                        f"node {node.number} says of {topic}-{row.partition_index}: error {row.error_code}, {replicas}"
                    )
        return ""

    def _all_registered(self) -> str:
        for node in self.nodes.values():
            known = len(_ask(node, "metadata", 12, topics=[]).brokers)
            if known < len(self.nodes):
                return f"node {node.number} knows {known} brokers"
        return ""

    def _metadata(self, topic: str) -> Any:
        return self._ask_anyone("metadata", 12, topics=[{"name": topic}])

    @staticmethod
    def _partitions(response: Any) -> list[Any]:
        (row,) = response.topics
        return list(row.partitions)

    def _ask_anyone(self, api: str, version: int, **fields: Any) -> Any:
        problem: Exception | None = None
        for _ in range(20):
            for node in self.nodes.values():
                if node.running and not node.paused:
                    try:
                        return _ask(node, api, version, **fields)
                    except (OSError, Closed) as error:
                        problem = error
            time.sleep(0.25)
        raise RuntimeError(f"no node responds to {api}: {problem!r}")

    def _wait(self, what_is_missing: Callable[[], str], timeout_s: float, reproach: str) -> float:
        """Until nothing is missing."""
        began = time.monotonic()
        while True:
            try:
                missing = what_is_missing()
            except (OSError, Closed) as error:
                missing = f"no response ({error!r})"
            if not missing:
                return time.monotonic() - began
            if time.monotonic() - began > timeout_s:
                raise TimeoutError(f"{reproach} after {timeout_s:.0f} s: {missing}")
            time.sleep(0.1)


def _ask(node: Node, api: str, version: int, **fields: Any) -> Any:
    with node.connect(_ASK_TIMEOUT_SECONDS) as wire:
        return wire.call(api, version, **fields)
