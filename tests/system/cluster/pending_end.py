"""What may be asked of a transactional id while the end of its last transaction is pending, to Kafka and to Millstream.

The outcome is decided, but a marker is not written yet: the leader of the partition is paused. The coordinators of the
transactional ids and of the group, and the leader of another topic, are on a node that runs. The responses of Apache
Kafka 4.3.1 are in `pending_end.golden`. To record them again (a cluster of three Kafka nodes is started for that):

    python -m tests.system.cluster.pending_end > tests/system/cluster/pending_end.golden
"""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.integration.node.broker.transaction_parity import Client, Talk, set_version
from tests.waiting import TIMEOUT_SECONDS
from tests.wire import Wire
from tools import apache_kafka

SETTINGS = {
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "6",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "6",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "broker.session.timeout.ms": "60000",
    "add.partitions.to.txn.retry.backoff.ms": "1",
    "add.partitions.to.txn.retry.backoff.max.ms": "1",
}
"""The state of coordinators has one replica, so that the paused node is not needed to decide."""
SHORT_MS = 2000
VERSIONS = (2, 1)
"""Of the feature transaction.version."""


@dataclass(frozen=True)
class Nodes:
    """Three nodes: `asked` has all coordinators, `paused` leads the partition whose marker is not written."""

    addresses: dict[int, str]
    pause: Callable[[int], None]
    resume: Callable[[int], None]
    asked: int = 1
    paused: int = 3


class PendingTalk(Talk):
    """A conversation with the asked node."""

    def __init__(self, nodes: Nodes, name: str, *, version: int) -> None:
        super().__init__(nodes.addresses[nodes.asked], name, version=version)
        self.nodes = nodes
        self.elsewhere = Wire(nodes.addresses[nodes.paused])
        """To the node that is paused later."""
        self.short: dict[str, str] = {}
        """How names are written: the numbers in them are different in each run."""

    def close(self) -> None:
        super().close()
        self.elsewhere.close()

    def topic_on(self, text: str, node: int) -> str:
        """A topic with one replica, on that node, which both nodes know."""
        name = self.name(text)
        rows = [{"partition_index": 0, "broker_ids": [node]}]
        topic = {"name": name, "num_partitions": -1, "replication_factor": -1, "assignments": rows, "configs": []}
        (row,) = self.call("create_topics", 7, topics=[topic], timeout_ms=10_000, validate_only=False).topics
        assert row.error_code == 0, (row.error_code, row.error_message)
        self._topic_ids[name] = row.topic_id
        _until(lambda: self._leader(name) == node, f"{name} is not led by {node}")
        with Wire(self.nodes.addresses[node]) as wire:
            _until(lambda: wire.fetch(name).error_code == 0, f"node {node} does not lead {name}")
        return name

    def _leader(self, name: str) -> int:
        (topic,) = self.call("metadata", 12, topics=[{"name": name}], allow_auto_topic_creation=False).topics
        return int(topic.partitions[0].leader_id) if topic.partitions else -1

    def coordinated(self, text: str, kind: int) -> str:
        """A name for a group (kind 0) or transactional id (kind 1) that the asked node coordinates."""
        for number in range(1000):
            name = self.name(f"{text}.{number}")
            if self._coordinator(name, kind) == self.nodes.asked:
                return f"{text}.{number}"
        raise AssertionError("the asked node coordinates nothing")

    def _coordinator(self, name: str, kind: int) -> int:
        until = time.monotonic() + TIMEOUT_SECONDS
        while True:
            (found,) = self.call("find_coordinator", 6, key_type=kind, coordinator_keys=[name]).coordinators
            if not found.error_code:
                return int(found.node_id)
            assert time.monotonic() < until, f"{name} has no coordinator: {found.error_code}"
            time.sleep(0.1)

    def note(self, label: str, text: str) -> None:
        for name, label_of in self.short.items():
            label, text = label.replace(name, label_of), text.replace(name, label_of)
        super().note(label, text)


def _until(check: Callable[[], bool], message: str) -> None:
    until = time.monotonic() + TIMEOUT_SECONDS
    while not check():
        assert time.monotonic() < until, message
        time.sleep(0.05)


@dataclass
class Pending:
    """A client whose transaction is ended and not complete."""

    client: Client
    label: str
    before: int
    """Its epoch before the end."""

    def epochs(self) -> dict[str, dict[str, Any]]:
        """Who may ask: the client before and after the end, and those that are neither."""
        id, now = self.client.id, self.client.epoch
        epochs = {"before": self.before, "now": now, "later": now + 1, "long ago": self.before - 1}
        found = {label: {"producer_id": id, "producer_epoch": epoch} for label, epoch in epochs.items()}
        if self.before == now:
            del found["before"]
        return found | {"other producer": {"producer_id": id + 100_000, "producer_epoch": now}}


def pending_ends(nodes: Nodes, version: int) -> list[str]:
    """Ends in every way, all of them pending, and every request that may come then."""
    talk = PendingTalk(nodes, f"pending{version}", version=version)
    try:
        held, free = talk.topic_on("held", nodes.paused), talk.topic_on("free", nodes.asked)
        group = talk.coordinated("group", 0)
        talk.short = {talk.name(group): "group"}
        talk.group(group)
        clients = [
            (adds, how, _client(talk, held, adds=adds, how=how))
            for adds in ((True, False) if version else (False,))
            for how in ("commit", "abort", "replaced", "late")
        ]
        nodes.pause(nodes.paused)
        try:
            pending = [_ended(talk, client, how) for _, how, client in clients]
            for each in pending:
                _ask_all(talk, each, free, talk.name(group))
        finally:
            nodes.resume(nodes.paused)
        for each in pending:
            talk.settle(each.client.name)
            talk.ask(f"{each.label} settled", "describe_transactions", 0, transactional_ids=[each.client.name])
            _end_after(talk, each)
    finally:
        talk.close()
    return talk.lines


def _client(talk: PendingTalk, held: str, *, adds: bool, how: str) -> Client:
    """A client with an open transaction that has a partition on the node that will be paused."""
    label = f"{'new' if adds else 'old'} {how}"
    name = talk.coordinated(label.replace(" ", "-"), 1)
    talk.short[talk.name(name)] = label
    client = Client(talk, name, adds=adds, timeout_ms=SHORT_MS if how == "late" else 60_000)
    if not adds:
        talk.ask_until_settled(f"{label} adds", "add_partitions_to_txn", 3, **client.adding(held, 0))
    version, fields = 12 if adds else 10, client.producing(held, client.batch("a"))
    _until(lambda: _is_taken(talk.elsewhere.call("produce", version, **fields)), "the batch is not taken")
    return client


def _is_taken(response: Any) -> bool:
    return not response.responses[0].partition_responses[0].error_code


def _ended(talk: PendingTalk, client: Client, how: str) -> Pending:
    label, before = talk.short[client.name], client.epoch
    if how in ("commit", "abort"):
        version = 5 if client.adds else 3
        response = talk.ask(f"{label} ends", "end_txn", version, committed=how == "commit", **client.who)
        if client.adds and response is not None:
            client.id, client.epoch = response.producer_id, response.producer_epoch
    elif how == "replaced":
        fields = {"transactional_id": client.name, "transaction_timeout_ms": 60_000}
        talk.ask(f"{label} ends", "init_producer_id", 5, **fields)
    _until(lambda: _state(talk, client).startswith("Prepare"), f"{label} is not decided")
    talk.ask(f"{label} described", "describe_transactions", 0, transactional_ids=[client.name])
    if how in ("replaced", "late"):
        client.epoch = _known(talk, client).producer_epoch
    return Pending(client, label, before)


def _known(talk: PendingTalk, client: Client) -> Any:
    return talk.call("describe_transactions", 0, transactional_ids=[client.name]).transaction_states[0]


def _state(talk: PendingTalk, client: Client) -> str:
    return str(_known(talk, client).transaction_state)


def _ask_all(talk: PendingTalk, pending: Pending, free: str, group: str) -> None:
    client, name = pending.client, pending.client.name
    offsets = [{"partition_index": 0, "committed_offset": 5, "committed_metadata": "m"}]
    _ask_ends(talk, pending)
    for who, producer in pending.epochs().items():
        label = f"{pending.label}, {who}"
        fields = {"transactional_id": name} | producer
        talk.ask(f"{label} adds", "add_partitions_to_txn", 3, **client.adding(free, 0, **producer))
        for verify_only in (True, False):
            row = fields | {"verify_only": verify_only, "topics": [{"name": free, "partitions": [0]}]}
            what = "verifies" if verify_only else "adds by broker"
            talk.ask(f"{label} {what}", "add_partitions_to_txn", 5, transactions=[row])
        talk.ask(f"{label} adds offsets", "add_offsets_to_txn", 4, group_id=group, **fields)
        for version in (3, 4, 5):
            rows = [{"name": free, "partitions": offsets}]
            what = f"{label} commits offsets v{version}"
            talk.ask(what, "txn_offset_commit", version, group_id=group, topics=rows, **fields)
        for version in (10, 11, 12):
            batch = client.batch("b", **producer)
            talk.ask(f"{label} puts v{version}", "produce", version, **client.producing(free, batch))
        starting = {"transactional_id": name, "transaction_timeout_ms": 60_000} | producer
        talk.ask(f"{label} begins as that", "init_producer_id", 5, **starting)
    starting = {"transactional_id": name, "transaction_timeout_ms": 60_000}
    talk.ask(f"{pending.label}, begins", "init_producer_id", 5, **starting)
    talk.ask(f"{pending.label}, described", "describe_transactions", 0, transactional_ids=[name])


def _ask_ends(talk: PendingTalk, pending: Pending) -> None:
    for who, producer in pending.epochs().items():
        for version in (1, 3, 5):
            for committed in (True, False):
                what = f"{pending.label}, {who} {'commits' if committed else 'aborts'} v{version}"
                fields = {"transactional_id": pending.client.name, "committed": committed} | producer
                talk.ask(what, "end_txn", version, **fields)


def _end_after(talk: PendingTalk, pending: Pending) -> None:
    """What the same requests get when nothing is pending: what was decided is the same, and nothing was changed."""
    version = 5 if pending.client.adds else 3
    for who, producer in pending.epochs().items():
        for committed in (True, False):
            what = f"{pending.label}, {who} {'commits' if committed else 'aborts'}, settled"
            fields = {"transactional_id": pending.client.name, "committed": committed} | producer
            talk.ask(what, "end_txn", version, **fields)
            talk.settle(pending.client.name)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        cluster = apache_kafka.ApacheKafkaCluster(apache_kafka.resolve(), Path(directory), settings=SETTINGS)
        with cluster:
            addresses = {node.node_id: node.bootstrap_servers for node in cluster.nodes}
            pids = {node.node_id: node.pid for node in cluster.nodes}
            record(
                Nodes(
                    addresses,
                    lambda node: os.kill(pids[node], signal.SIGSTOP),
                    lambda node: os.kill(pids[node], signal.SIGCONT),
                )
            )


def record(nodes: Nodes, versions: Sequence[int] = VERSIONS) -> None:
    for version in versions:
        with Wire(nodes.addresses[nodes.asked]) as wire:
            set_version(wire, version)
        print(f"== {version}")
        for line in pending_ends(nodes, version):
            print(line)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
