"""The quorum's APIs on the wire, asked as Kafka's tools and nodes ask."""

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import request_schema
from millstream.formats.records.record import read_batches
from millstream.node.metadata.topic_names import CLUSTER_METADATA_TOPIC
from millstream.node.runtime.disk import RealDisk
from tests.unit.node.consensus.quorum.cluster import QUICK, Cluster, QuorumNode, eventually, run

METADATA_ID = UUID(int=1)


def one_partition(name: str, **row: Any) -> list[dict[str, Any]]:
    return [{name: CLUSTER_METADATA_TOPIC, "partitions": [row]}]


async def describe(node: QuorumNode, version: int | None = None) -> Any:
    response = await node.ask(
        "describe_quorum", {"topics": one_partition("topic_name", partition_index=0)}, version=version
    )
    assert response.error_code == 0
    return response


async def described(cluster: Cluster, version: int, observers: list[int]) -> tuple[QuorumNode, Any]:
    """The response of a node that leads before and after it, when all voters and these observers have fetched."""
    while True:
        leader = await cluster.elected()
        epoch, high_watermark = leader.quorum.epoch, leader.quorum.high_watermark
        response = await describe(leader, version)
        row = response.topics[0].partitions[0]
        if leader.leads and leader.quorum.epoch == epoch:
            assert (row.error_code, row.leader_id, row.leader_epoch) == (0, leader.id, epoch)
            assert high_watermark <= row.high_watermark <= leader.quorum.high_watermark
            have_fetched = all(voter.log_end_offset >= 0 for voter in row.current_voters)
            if have_fetched and [each.replica_id for each in row.observers] == observers:
                return leader, response
        await asyncio.sleep(0.005)


def test_describe_quorum_lists_voters_and_observers(tmp_path: Path) -> None:
    async def test() -> None:
        async with Cluster(tmp_path) as cluster:
            cluster.start_all()
            await cluster.write(1, 2)
            observer = cluster.start(7, may_vote=False)
            await cluster.all_have([1, 2])
            for version in range(3):
                leader, response = await described(cluster, version, [observer.id])
                now = leader.environment.clock.now_ms()
                row = response.topics[0].partitions[0]
                assert [voter.replica_id for voter in row.current_voters] == [1, 2, 3]
                if version >= 1:
                    assert all(0 < voter.last_fetch_timestamp <= now + 1000 for voter in row.current_voters)
                if version >= 2:
                    assert [(node.node_id, node.listeners[0].port) for node in response.nodes] == [
                        (id, cluster.ports[id]) for id in (1, 2, 3)
                    ]
            row = (await describe(observer)).topics[0].partitions[0]
            assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            response = await leader.ask(
                "describe_quorum", {"topics": [{"topic_name": "other", "partitions": [{"partition_index": 3}]}]}
            )
            row = response.topics[0].partitions[0]
            assert (row.partition_index, row.error_code) == (3, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    run(test)


def fetch_fields(**row: Any) -> dict[str, Any]:
    partition = {"partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "partition_max_bytes": 1 << 20, **row}
    return {
        "max_wait_ms": 100,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "topics": [{"topic_id": METADATA_ID, "topic": CLUSTER_METADATA_TOPIC, "partitions": [partition]}],
    }


def test_fetch_in_every_version(tmp_path: Path) -> None:
    async def test() -> None:
        async with Cluster(tmp_path, voters=1) as cluster:
            node = cluster.start(1)
            await cluster.write(*range(3))
            versions = request_schema("fetch").versions
            for version in range(versions.low, versions.high + 1):
                response = await node.ask("fetch", fetch_fields(), version=version)
                row = response.responses[0].partitions[0]
                assert (row.error_code, row.high_watermark, row.log_start_offset) == (0, 4, 0 if version >= 5 else -1)
                assert sum(len(records) for _, records in read_batches(row.records)) == 4
            # At the end a fetch waits, and an append wakes it.
            waiting = node.environment.loop.create_task(
                node.ask("fetch", {**fetch_fields(fetch_offset=4), "max_wait_ms": 20_000})
            )
            await eventually(lambda: bool(node.quorum._parked))
            await cluster.write(3)
            row = (await waiting).responses[0].partitions[0]
            assert [header.base_offset for header, _ in read_batches(row.records)] == [4]
            row = (await node.ask("fetch", fetch_fields(fetch_offset=77))).responses[0].partitions[0]
            assert row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE or row.diverging_epoch.end_offset >= 0

    run(test)


def test_a_snapshot_is_read_where_it_is_and_no_more_than_the_limits(tmp_path: Path) -> None:
    """Whatever the numbers of the request: a position that no file has is no failure of the disk."""

    async def test() -> None:
        failures: list[str] = []
        disk = RealDisk()
        disk.on_error = lambda error, path, reading: failures.append(f"{error} at {path}")
        async with Cluster(tmp_path, voters=1) as cluster:
            node = cluster.start(1, disk=disk)
            await cluster.write(*range(100))
            await eventually(lambda: len(node.topics) == 100)
            assert await node.loader.write_snapshot()
            latest = node.quorum.log.latest_snapshot
            assert latest is not None
            whole = node.quorum.log.snapshots.read_piece(latest, 0, 1 << 20)
            snapshot_id = {"end_offset": latest.offset, "epoch": latest.epoch}

            async def ask(position: int, max_bytes: int) -> Any:
                row = {"partition": 0, "current_leader_epoch": -1, "snapshot_id": snapshot_id, "position": position}
                fields = {"max_bytes": max_bytes, "topics": one_partition("name", **row)}
                response = await node.ask("fetch_snapshot", fields)
                assert response.error_code == 0
                return response.topics[0].partitions[0]

            for position in (-1, -(2**63), len(whole), 2**63 - 1):
                assert (await ask(position, 1 << 20)).error_code == ErrorCode.POSITION_OUT_OF_RANGE
            for max_bytes, length in ((10, 10), (2**31 - 1, QUICK.snapshot_chunk_bytes), (0, 0), (-1, 0)):
                row = await ask(0, max_bytes)
                assert (row.error_code, row.size, row.unaligned_records) == (0, len(whole), whole[:length])
            fields = fetch_fields(partition_max_bytes=2**31 - 1) | {"max_bytes": 2**31 - 1}
            assert len(node.quorum.log.read(0, 2**31 - 1, below=101)) > 2 * QUICK.fetch_max_bytes
            row = (await node.ask("fetch", fields)).responses[0].partitions[0]
            assert 0 < len(row.records) <= QUICK.fetch_max_bytes
        assert failures == []

    run(test)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("vote", {"topics": [{"topic_name": "other", "partitions": [{"partition_index": 0}]}]}),
        ("vote", {"topics": one_partition("topic_name", partition_index=1)}),
        ("vote", {"topics": []}),
        ("begin_quorum_epoch", {"topics": []}),
        ("end_quorum_epoch", {"topics": []}),
        ("fetch_snapshot", {"topics": []}),
        ("fetch", {"topics": [{"topic_id": UUID(int=2), "partitions": [{"partition": 0}]}]}),
        ("fetch", {"topics": []}),
    ],
)
def test_other_partitions_are_no_concern_of_ours(tmp_path: Path, name: str, fields: dict[str, Any]) -> None:
    async def test() -> None:
        async with Cluster(tmp_path, voters=1) as cluster:
            node = cluster.start(1)
            assert (await node.ask(name, fields)).error_code == ErrorCode.INVALID_REQUEST

    run(test)


@pytest.mark.parametrize("name", ["vote", "begin_quorum_epoch", "end_quorum_epoch", "fetch", "fetch_snapshot"])
def test_another_clusters_nodes_are_refused(tmp_path: Path, name: str) -> None:
    async def test() -> None:
        async with Cluster(tmp_path, voters=1) as cluster:
            node = cluster.start(1, cluster_id="ours")
            row: dict[str, Any] = {"partition_index": 0}
            topics = one_partition("topic_name", **row)
            if name == "fetch":
                topics = fetch_fields()["topics"]
            elif name == "fetch_snapshot":
                snapshot = {"end_offset": 1, "epoch": 1}
                topics = one_partition("name", partition=0, snapshot_id=snapshot)
            response = await node.ask(name, {"cluster_id": "theirs", "topics": topics})
            assert response.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID

    run(test)


def test_voters_come_and_go(tmp_path: Path) -> None:
    async def test() -> None:
        async with Cluster(tmp_path, voters=1) as cluster:
            first = cluster.start(1)
            await cluster.write(1)
            second = cluster.start(2, voters=cluster.voters)
            await cluster.all_have([1])

            async def add(id: int, port: int) -> Any:
                return await first.ask(
                    "add_raft_voter",
                    {
                        "timeout_ms": 5000,
                        "voter_id": id,
                        "voter_directory_id": cluster.nodes[id].directory_id,
                        "listeners": [{"name": "CONTROLLER", "host": "127.0.0.1", "port": port}],
                    },
                )

            response = await add(2, second.port)
            assert response.error_code == ErrorCode.UNSUPPORTED_VERSION, "voters are static in kraft.version 0"
            offset = first.quorum.upgrade_kraft_version(1)
            await eventually(lambda: first.quorum.high_watermark > offset)
            response = await add(2, cluster.ports[8])
            assert response.error_code == ErrorCode.REQUEST_TIMED_OUT and "cannot be reached" in response.error_message
            response = await add(2, second.port)
            assert (response.error_code, response.error_message) == (0, None)
            assert second.quorum.is_voter
            await cluster.write(2)
            await cluster.all_have([1, 2])
            # What the log says of voters survives everything, a snapshot included.
            for node in (first, second):
                assert await node.loader.write_snapshot()
            for id in (1, 2):
                cluster.kill(id)
            for id in (1, 2):
                assert cluster.start(id).quorum.voters.ids == (1, 2)
            leader = await cluster.elected()
            await cluster.write(3)
            response = await leader.ask(
                "remove_raft_voter", {"voter_id": 1, "voter_directory_id": cluster.nodes[1].directory_id}
            )
            assert (response.error_code, response.error_message) == (0, None)
            await eventually(lambda: cluster.nodes[2].leads)
            assert cluster.nodes[2].quorum.voters.ids == (2,)
            await cluster.write(4)
            await cluster.all_have([1, 2, 3, 4])

    run(test)
