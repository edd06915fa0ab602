"""Apache Kafka's own tools for operating a cluster, as an administrator uses them, against brokers and controllers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from millstream.testing import EmbeddedCluster
from tests.system.cluster.conftest import QUIET, Writer, create_topic, described, eventually
from tests.system.cluster.kafka_tools import KafkaTools, ToolFailedError
from tests.waiting import TIMEOUT_SECONDS
from tools import apache_kafka

ANOTHER_DIRECTORY = "AAAAAAAAAAAAAAAAAAAAAA"


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    settings = {"metadata.log.max.record.bytes.between.snapshots": 2000}
    with EmbeddedCluster(3, settings) as running:
        yield running


class Tools:
    """The tools, told which cluster is meant."""

    def __init__(self, run: KafkaTools, cluster: EmbeddedCluster) -> None:
        self.run = run
        self.brokers = ("--bootstrap-server", cluster.bootstrap_servers)
        self.controllers = (
            "--bootstrap-controller",
            ",".join(cluster.controller_address(number) for number in cluster.controllers),
        )

    def __call__(self, tool: str, *arguments: str, stdin: str = "") -> str:
        return self.run(tool, *self.brokers, *arguments, stdin=stdin)

    def refused(self, tool: str, *arguments: str) -> str:
        """What a tool says that must fail."""
        code, said = self.run.outcome(tool, *self.brokers, *arguments)
        assert code != 0, said
        return said

    def described(self, topic: str, *options: str) -> dict[int, dict[str, str]]:
        """What kafka-topics says of each partition: leader, replicas, those in sync…"""
        said = self("kafka-topics", "--describe", "--topic", topic, *options)
        rows = [
            dict(re.findall(r"(\w[\w ]*): ?([^\t\n]*)", line)) for line in said.splitlines() if "\tLeader: " in line
        ]
        return {int(row["Partition"]): row for row in rows}


@pytest.fixture(scope="module")
def tools(cluster: EmbeddedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    try:
        run = KafkaTools(tmp_path_factory.mktemp("tools") / "tools.log")
    except apache_kafka.ToolchainMissingError as reason:
        pytest.skip(f"Apache Kafka's tools: {reason}")
    yield Tools(run, cluster)
    run.close()


def test_kafka_topics_spreads_leaders_and_replicas(tools: Tools) -> None:
    tools("kafka-topics", "--create", "--topic", "spread", "--partitions", "6", "--replication-factor", "3")
    spread = eventually(lambda: _complete(tools, "spread", 6))
    leaders = sorted(row["Leader"] for row in spread.values())
    assert leaders == ["1", "1", "2", "2", "3", "3"]
    assert all(sorted(row["Replicas"].split(",")) == ["1", "2", "3"] for row in spread.values())
    tools("kafka-topics", "--create", "--topic", "placed", "--replica-assignment", "1:2,2:3,3:1")
    tools(
        "kafka-topics", "--alter", "--topic", "placed", "--partitions", "4", "--replica-assignment", "1:2,2:3,3:1,1:3"
    )
    placed = eventually(lambda: _complete(tools, "placed", 4))
    assert [row["Replicas"] for row in placed.values()] == ["1,2", "2,3", "3,1", "1,3"]
    assert [row["Leader"] for row in placed.values()] == ["1", "2", "3", "1"]
    for mode in ("--under-replicated-partitions", "--unavailable-partitions", "--under-min-isr-partitions"):
        assert tools("kafka-topics", "--describe", mode).strip() == ""
    wanted = ("--create", "--topic", "large", "--partitions", "1", "--replication-factor", "4")
    assert "only 3 broker(s)" in tools.refused("kafka-topics", *wanted)
    assert "broker 9" in tools.refused("kafka-topics", "--create", "--topic", "nowhere", "--replica-assignment", "1:9")
    assert not {"large", "nowhere"} & set(tools("kafka-topics", "--list").split())


def _complete(tools: Tools, topic: str, partitions: int) -> dict[int, dict[str, str]]:
    """The partitions of a topic, all with all replicas in sync. Any broker may be asked, and one may be behind."""
    rows = tools.described(topic)
    assert len(rows) == partitions, rows
    assert all(sorted(row["Isr"].split(",")) == sorted(row["Replicas"].split(",")) for row in rows.values()), rows
    return rows


def test_reassignment_with_a_throttle(cluster: EmbeddedCluster, tools: Tools, tmp_path: Path) -> None:
    tools("kafka-topics", "--create", "--topic", "moved", "--replica-assignment", "1:2,2:3")
    writer = Writer(cluster.bootstrap_servers)
    for _ in range(600):
        writer.send("moved", b"x" * 5000, 0)
    writer.flush()
    topics, plan = tmp_path / "topics.json", tmp_path / "plan.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": "moved"}]}))
    options = ("--topics-to-move-json-file", str(topics), "--broker-list", "1,2,3")
    assert "Proposed partition reassignment" in tools("kafka-reassign-partitions", "--generate", *options)

    def reassign(action: str, *options: str, replicas: list[int]) -> str:
        moves = [{"topic": "moved", "partition": 0, "replicas": replicas}]
        plan.write_text(json.dumps({"version": 1, "partitions": moves}))
        return tools("kafka-reassign-partitions", action, "--reassignment-json-file", str(plan), *options)

    # So slow that it would take minutes: seen under way, then cancelled.
    assert "Successfully started" in reassign("--execute", "--throttle", "10000", replicas=[1, 3])
    listed = tools.run("kafka-reassign-partitions", *tools.controllers, "--list")
    assert "moved-0: replicas: 1,3,2. adding: 3. removing: 2." in listed
    entity = ("--describe", "--entity-type", "topics", "--entity-name", "moved")

    # Any broker may be asked, and one may hear of a change a moment later than another.
    def shows(**expected: str) -> None:
        def check() -> None:
            row = tools.described("moved")[0]
            assert {name: row.get(name.replace("_", " ")) for name in expected} == expected

        eventually(check)

    def is_throttled(*, expected: bool) -> None:
        def check() -> None:
            said = tools("kafka-configs", *entity)
            assert ("throttled" in said) == ("follower.replication.throttled.replicas=0:3" in said) == expected

        eventually(check)

    def no_move() -> None:
        assert "No partition reassignments found" in tools("kafka-reassign-partitions", "--list")

    shows(Adding_Replicas="3", Removing_Replicas="2", Isr="1,2")
    is_throttled(expected=True)
    assert "Successfully cancelled" in reassign("--cancel", replicas=[1, 3])
    eventually(no_move)
    shows(Replicas="1,2")
    is_throttled(expected=False)

    # And once at full speed, up to its end.
    reassign("--execute", "--throttle", "100000000", replicas=[3, 1])

    def both_in_sync() -> None:
        assert sorted(tools.described("moved")[0]["Isr"].split(",")) == ["1", "3"]

    def done() -> None:
        assert "is completed" in reassign("--verify", replicas=[3, 1])

    eventually(done)
    shows(Replicas="3,1", Leader="1")
    eventually(both_in_sync)
    is_throttled(expected=False)
    elected = tools("kafka-leader-election", "--election-type", "preferred", "--topic", "moved", "--partition", "0")
    assert "Successfully completed" in elected
    shows(Leader="3")
    assert tools("kafka-get-offsets", "--topic", "moved").split() == ["moved:0:600", "moved:1:0"]
    brokers = json.loads(tools("kafka-log-dirs", "--describe", "--topic-list", "moved").splitlines()[-1])["brokers"]
    held = {row["broker"]: {each["partition"] for each in row["logDirs"][0]["partitions"]} for row in brokers}
    assert held == {1: {"moved-0"}, 2: {"moved-1"}, 3: {"moved-0", "moved-1"}}


def test_settings_of_one_broker_and_of_all(cluster: EmbeddedCluster, tools: Tools) -> None:
    everywhere = ("--entity-type", "brokers", "--entity-default")
    tools("kafka-configs", "--alter", *everywhere, "--add-config", "log.retention.ms=7200000")
    second = ("--entity-type", "brokers", "--entity-name", "2")
    tools.run("kafka-configs", *tools.controllers, "--alter", *second, "--add-config", "message.max.bytes=2000000")

    def shown_by_all() -> None:
        for bootstrap in (tools.brokers, tools.controllers):
            assert "log.retention.ms=7200000" in tools.run("kafka-configs", *bootstrap, "--describe", *everywhere)
            assert "message.max.bytes=2000000" in tools.run("kafka-configs", *bootstrap, "--describe", *second)

    eventually(shown_by_all)

    def known_to_all() -> None:
        for number in cluster.brokers:
            at = ("--bootstrap-server", cluster.address(number))
            said = tools.run(
                "kafka-configs", *at, "--describe", "--all", "--entity-type", "brokers", "--entity-name", str(number)
            )
            assert "log.retention.ms=7200000" in said
            assert ("message.max.bytes=2000000" in said) == (number == 2)

    eventually(known_to_all)
    tools("kafka-configs", "--alter", *everywhere, "--delete-config", "log.retention.ms")

    def removed() -> None:
        assert "log.retention.ms" not in tools("kafka-configs", "--describe", *everywhere)

    eventually(removed)
    assert "cluster.id" not in tools("kafka-configs", "--describe", *everywhere)
    assert "cluster.id" in tools.refused("kafka-configs", "--alter", *everywhere, "--add-config", "cluster.id=x")


def test_cluster_endpoints_and_api_versions(cluster: EmbeddedCluster, tools: Tools) -> None:
    ids = {tools.run("kafka-cluster", "cluster-id", *at) for at in (tools.brokers, tools.controllers)}
    assert len(ids) == 1
    for at, address in ((tools.brokers, cluster.address), (tools.controllers, cluster.controller_address)):
        rows = [line.split() for line in tools.run("kafka-cluster", "list-endpoints", *at).splitlines()[1:] if line]
        assert {f"{host}:{port}" for _, host, port, *_ in rows} == {address(number) for number in cluster.nodes}
    assert tools("kafka-broker-api-versions").count("AlterPartitionReassignments(45): 0 to 1 [usable: 1]") == 3
    unknown = tools.run.outcome("kafka-cluster", "unregister", *tools.brokers, "--id", "9")
    assert unknown[0] == 1 and "Broker 9 is not registered" in unknown[1]


def _voters(tools: Tools) -> dict[str, list[str]]:
    """id, directory, log end, lag… of each node as the quorum knows it."""
    said = tools("kafka-metadata-quorum", "describe", "--replication")
    return {row[0]: row for row in (line.split() for line in said.splitlines()[1:] if line.strip())}


def test_voters_come_and_go(cluster: EmbeddedCluster, tools: Tools) -> None:
    """Static voters first; kraft.version 1 makes them changeable, the leader included."""
    assert {row[-1] for row in _voters(tools).values()} == {"Leader", "Follower"}
    quorum = "kafka-metadata-quorum"
    remove = ("remove-controller", "--controller-id", "1", "--controller-directory-id", ANOTHER_DIRECTORY)
    assert "kraft.version" in tools.refused(quorum, *remove)
    assert "was upgraded to 1" in tools("kafka-features", "upgrade", "--feature", "kraft.version=1")
    for at in (tools.brokers, tools.controllers):
        eventually(_feature(tools, "kraft.version", 1, at))
    assert "can only be upgraded" in tools.refused("kafka-features", "downgrade", "--feature", "kraft.version=0")
    assert "not a voter" in tools.refused(quorum, *remove)
    rows = _voters(tools)
    leader = next(row for row in rows.values() if row[-1] == "Leader")
    follower = next(row for row in rows.values() if row[-1] != "Leader")
    for number, directory, *_ in (follower, leader):
        gone = ("--controller-id", number, "--controller-directory-id", directory)
        assert "Removed" in tools(quorum, "remove-controller", *gone)
        eventually(_is(tools, number, "Observer"))
        config = ("--command-config", str(cluster.write_properties(int(number))))
        assert "Added controller" in tools.run(quorum, *config, *tools.controllers, "add-controller")
        eventually(_is(tools, number, "Follower"))
    status = tools.run(quorum, *tools.controllers, "describe", "--status")
    assert re.search(rf"LeaderId: +(?!{leader[0]}\b)\d", status)
    assert status.count("directoryId") == 3
    create_topic(cluster, "after-the-voters-changed")


def _is(tools: Tools, number: str, role: str) -> Callable[[], None]:
    def check() -> None:
        rows = _voters(tools)
        assert number in rows and rows[number][-1] == role, rows

    return check


def _feature(tools: Tools, name: str, level: int, at: Sequence[str] = ()) -> Callable[[], None]:
    """Any broker may be asked, and one may hear of it a moment later than another."""

    def check() -> None:
        said = tools.run("kafka-features", *(at or tools.brokers), "describe")
        assert re.search(rf"{name} .*FinalizedVersionLevel: {level}", said), said

    return check


def test_kafka_features_downgrades_and_upgrades(tools: Tools) -> None:
    assert "downgraded to 0" in tools("kafka-features", "downgrade", "--feature", "share.version=0")
    eventually(_feature(tools, "share.version", 0))
    # Together with the quorum's own feature, as `--release-version` asks for it.
    both = ("--feature", "share.version=1", "--feature", "kraft.version=1")
    assert tools.run("kafka-features", *tools.controllers, "upgrade", *both).count("was upgraded") == 2
    assert "supports levels 0 to 1" in tools.refused("kafka-features", "upgrade", "--feature", "share.version=7")
    assert "does not support" in tools.refused("kafka-features", "upgrade", "--feature", "nonsense=1")
    assert "downgraded to 1" in tools("kafka-features", "downgrade", "--feature", "transaction.version=1")
    eventually(_feature(tools, "transaction.version", 1))
    assert "upgraded to 2" in tools("kafka-features", "upgrade", "--release-version", "4.3")
    eventually(_feature(tools, "transaction.version", 2))


def test_kafka_transactions_finds_a_transaction_of_the_cluster(cluster: EmbeddedCluster, tools: Tools) -> None:
    create_topic(cluster, "written-in-one")
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "of-tools", **QUIET})
    producer.init_transactions(TIMEOUT_SECONDS)
    producer.begin_transaction()
    producer.produce("written-in-one", b"x")
    producer.flush(TIMEOUT_SECONDS)
    assert re.search(r"of-tools\s+\d+\s+\d+\s+Ongoing", tools("kafka-transactions", "list"))
    assert "of-tools" not in tools("kafka-transactions", "list", "--transactional-id-pattern", "other.*")
    told = tools("kafka-transactions", "describe", "--transactional-id", "of-tools")
    assert re.search(r"of-tools\s+\d+\s+0\s+Ongoing\s+60000\s+\d+\s+\d+\s+written-in-one-0", told)
    at = ("--topic", "written-in-one", "--partition", "0")
    assert re.search(r"^\d+\s+0\s+-1\s+0\s+\d+\s+0\s*$", tools("kafka-transactions", "describe-producers", *at), re.M)
    tools("kafka-transactions", "forceTerminateTransaction", "--transactionalId", "of-tools")
    with pytest.raises(KafkaException):
        producer.commit_transaction(TIMEOUT_SECONDS)

    def over() -> None:
        said = tools("kafka-transactions", "list", "--transactional-id-pattern", "of-tools")
        assert re.search(r"of-tools\s+\d+\s+\d+\s+(CompleteAbort|Empty)", said), said

    eventually(over)
    logs = sorted(str(path) for path in cluster.data_dir(1).glob("__transaction_state-*/*.log") if path.stat().st_size)
    dumped = tools.run("kafka-dump-log", "--transaction-log-decoder", "--files", ",".join(logs))
    assert '"transactionalId":"of-tools"' in dumped
    states = re.findall(r'"transactionStatus":(\d)', dumped)
    assert {"0", "1", "3", "5"} <= set(states), dumped
    assert '"transactionPartitions":[{"topic":"written-in-one","partitionIds":[0]}]' in dumped


def test_kafka_tools_show_a_dead_broker(cluster: EmbeddedCluster, tools: Tools) -> None:
    tools("kafka-topics", "--create", "--topic", "two", "--replica-assignment", "2:3,3:1")
    create_topic(cluster, "three")
    writer = Writer(cluster.bootstrap_servers)
    writer.write("two", 10)
    cluster.kill(2)

    def fenced() -> None:
        said = tools.run("kafka-cluster", "list-endpoints", *tools.brokers, "--include-fenced-brokers")
        assert re.search(r"^2 .* fenced", said, re.MULTILINE), said

    eventually(fenced)
    rows = eventually(lambda: _led(tools, "two", "3"))
    assert (rows[0]["Leader"], rows[0]["Isr"]) == ("3", "3")
    under = tools("kafka-topics", "--describe", "--under-replicated-partitions")
    assert "Topic: two\tPartition: 0" in under and "Topic: two\tPartition: 1" not in under
    preferred = ("--election-type", "preferred", "--topic", "two", "--partition", "0")
    assert "not available" in tools.refused("kafka-leader-election", *preferred)
    tools.run("kafka-cluster", "unregister", *tools.controllers, "--id", "2")
    said = tools.run("kafka-cluster", "list-endpoints", *tools.brokers, "--include-fenced-brokers")
    assert not re.search(r"^2 ", said, re.MULTILINE)
    writer.write("two", 10)
    cluster.start(2)
    eventually(lambda: described(cluster, "two", in_sync=2))
    assert "Successfully completed" in tools("kafka-leader-election", *preferred)
    assert "two:0:20" in tools("kafka-get-offsets", "--topic", "two").splitlines()


def _led(tools: Tools, topic: str, leader: str) -> dict[int, dict[str, str]]:
    rows = tools.described(topic)
    assert rows[0]["Leader"] == leader, rows
    return rows


def test_an_unclean_election_is_held_where_it_is_requested(cluster: EmbeddedCluster, tools: Tools) -> None:
    """An unclean election gives a leader without the records of the others, and only where it is requested."""
    tools("kafka-topics", "--create", "--topic", "unclean", "--replica-assignment", "2:3")
    eventually(lambda: described(cluster, "unclean", in_sync=2))
    cluster.kill(3)
    eventually(lambda: described(cluster, "unclean", in_sync=1))
    writer = Writer(cluster.bootstrap_servers)
    writer.write("unclean", 10)
    cluster.kill(2)
    cluster.spawn(3)
    cluster.wait_until_ready(3)
    row = eventually(lambda: _led(tools, "unclean", "none"))[0]
    assert row["Elr"] == "2"
    refused = tools.refused(
        "kafka-leader-election", "--election-type", "preferred", "--topic", "unclean", "--partition", "0"
    )
    assert "PreferredLeaderNotAvailable" in refused
    elected = tools("kafka-leader-election", "--election-type", "unclean", "--topic", "unclean", "--partition", "0")
    assert "Successfully completed leader election (UNCLEAN)" in elected
    assert "unclean:0:0" in tools("kafka-get-offsets", "--topic", "unclean").splitlines()
    cluster.start(2)
    eventually(lambda: described(cluster, "unclean", in_sync=2))
    assert tools.described("unclean")[0]["Leader"] == "3"


def test_the_metadata_log_and_its_snapshots_can_be_dumped(cluster: EmbeddedCluster, tools: Tools) -> None:
    directory = cluster.data_dir(1) / "__cluster_metadata-0"
    dump: dict[str, str] = {}
    for pattern in ("*.log", "*.checkpoint"):
        file = max(directory.glob(pattern))
        said = tools.run("kafka-dump-log", "--cluster-metadata-decoder", "--files", str(file))
        assert "isvalid: false" not in said
        dump[pattern] = said
    assert '"type":"REGISTER_BROKER_RECORD"' in dump["*.checkpoint"]
    assert '"type":"REGISTER_CONTROLLER_RECORD"' in dump["*.checkpoint"]
    assert "SnapshotHeader" in dump["*.checkpoint"] and "KRaftVoters" in dump["*.checkpoint"]
    assert "LeaderChange" in dump["*.log"]


def test_a_tool_that_fails_says_so(tools: Tools) -> None:
    with pytest.raises(ToolFailedError):
        tools("kafka-topics", "--describe", "--topic", "no-such-topic")
