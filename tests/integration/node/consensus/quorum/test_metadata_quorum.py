"""The driver of raft: real logs, real files, real sockets."""

import json
import random
import shutil
from pathlib import Path

import pytest

from millstream.config.setting import ConfigError
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.consensus.quorum.publication import MetadataRetention
from millstream.node.consensus.raft.messages import Peer
from millstream.node.consensus.raft.voter_set import Endpoint, VoterSet
from tests.unit.node.consensus.quorum.cluster import Cluster, QuorumNode, eventually, run
from tests.unit.node.consensus.quorum.conftest import topic
from tests.unit.node.storage.faulty_disk import FaultyDisk


def test_a_quorum_of_one_leads_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with Cluster(tmp_path, voters=1) as cluster:
            node = cluster.start(1)
            assert node.leads and node.quorum.is_leader, "before anything else ran"
            assert node.quorum.leader_id == 1
            assert node.quorum.leader_address() == ("127.0.0.1", node.port)
            assert node.quorum.high_watermark == 1
            offset = node.quorum.append([topic(1), topic(2)])
            assert node.topics == [], "nothing counts before it is on disk"
            await eventually(lambda: node.loader.image.offset == offset)
            assert node.topics == ["topic-1", "topic-2"]
            stored = json.loads((node.root / "__cluster_metadata-0" / "quorum-state").read_text())
            assert (stored["leaderId"], stored["leaderEpoch"], stored["votedId"]) == (1, 1, 1)
            cluster.kill(1)
            node = cluster.start(1)
            assert node.leads and node.quorum.epoch == 2
            assert node.topics == ["topic-1", "topic-2"]

    run(test)


def test_three_nodes_agree(tmp_path: Path) -> None:
    async def test() -> None:
        async with Cluster(tmp_path) as cluster:
            cluster.start_all()
            leader = await cluster.elected()
            await cluster.write(*range(30))
            await cluster.all_have(range(30))
            assert all(node.quorum.leader_id == leader.id for node in cluster.nodes.values())
            assert all(node.quorum.leader_address() == ("127.0.0.1", leader.port) for node in cluster.nodes.values())
            follower = next(node for node in cluster.nodes.values() if node is not leader)
            with pytest.raises(KafkaError) as refusal:
                follower.quorum.append([topic(99)])
            assert refusal.value.code == ErrorCode.NOT_CONTROLLER
            logs = {
                b"".join(path.read_bytes() for path in sorted(node.root.glob("__cluster_metadata-0/*.log")))
                for node in cluster.nodes.values()
            }
            assert len(logs) == 1, "the same bytes everywhere"

    run(test)


def test_another_leads_when_the_leader_is_killed(tmp_path: Path) -> None:
    async def test() -> None:
        async with Cluster(tmp_path) as cluster:
            cluster.start_all()
            first = await cluster.elected()
            await cluster.write(*range(5))
            cluster.kill(first.id)
            second = await cluster.elected()
            assert second.quorum.epoch > first.quorum.epoch
            await cluster.write(*range(5, 10))
            # The old leader comes back with something no one else has, and drops it.
            cluster.start(first.id)
            await cluster.all_have(range(10))
            assert not first.fatal

    run(test)


def test_a_deposed_leader_drops_what_was_not_committed(tmp_path: Path) -> None:
    async def test() -> None:
        async with Cluster(tmp_path) as cluster:
            cluster.start_all()
            leader = await cluster.elected()
            await cluster.write(1)
            others = [node_id for node_id in cluster.nodes if node_id != leader.id]
            for node_id in others:
                cluster.kill(node_id)
            leader.quorum.append([topic(66)])
            await eventually(lambda: not leader.leads)  # no one fetches from it any more
            assert leader.topics == ["topic-1"]
            cluster.kill(leader.id)
            for node_id in others:
                cluster.start(node_id)
            await cluster.write(2)
            cluster.start(leader.id)
            await cluster.all_have([1, 2])

    run(test)


def test_a_node_that_stops_hands_over(tmp_path: Path) -> None:
    async def test() -> None:
        async with Cluster(tmp_path) as cluster:
            cluster.start_all()
            await cluster.write(1)
            await cluster.all_have([1])
            for _ in range(3):
                leader = await cluster.elected()
                await cluster.nodes.pop(leader.id).stop()
                await cluster.elected()
                await cluster.write(2) if "topic-2" not in next(iter(cluster.nodes.values())).topics else None
                cluster.start(leader.id)
                await cluster.all_have([1, 2])

    run(test)


def test_observers_get_all_records(tmp_path: Path) -> None:
    async def test() -> None:
        async with Cluster(tmp_path) as cluster:
            cluster.start_all()
            await cluster.write(*range(3))
            observer = cluster.start(7, may_vote=False)
            await cluster.write(*range(3, 6))
            await cluster.all_have(range(6))
            leader = await cluster.elected()
            assert not observer.quorum.is_voter
            assert observer.quorum.leader_address() == ("127.0.0.1", leader.port)
            cluster.kill(leader.id)
            await cluster.write(6)
            await cluster.all_have(range(7))

    run(test)


def test_an_observer_that_knows_only_addresses(tmp_path: Path) -> None:
    async def test() -> None:
        async with Cluster(tmp_path) as cluster:
            # The first of them is no one's.
            addresses = [Endpoint("CONTROLLER", "127.0.0.1", cluster.ports[id]) for id in (8, 1, 2, 3)]
            bootstrap = tuple(Peer(-2 - at, (address,)) for at, address in enumerate(addresses))
            observer = cluster.start(7, may_vote=False, voters=VoterSet(), bootstrap=bootstrap)
            cluster.start_all()
            await cluster.write(1, 2)
            await cluster.all_have([1, 2])
            leader = await cluster.elected()
            assert observer.quorum.leader_address() == ("127.0.0.1", leader.port)
            cluster.kill(leader.id)
            await cluster.write(3)
            await cluster.all_have([1, 2, 3])
            await cluster.nodes.pop(7).stop()
            cluster.start(7, may_vote=False, voters=VoterSet(), bootstrap=bootstrap)
            await cluster.all_have([1, 2, 3])

    run(test)


def test_a_newcomer_gets_a_snapshot(tmp_path: Path) -> None:
    async def test() -> None:
        async with Cluster(tmp_path) as cluster:
            for node_id in (1, 2):
                cluster.start(node_id, retention=MetadataRetention(bytes=0))
            await cluster.write(*range(100))
            for node in cluster.nodes.values():
                await eventually(lambda: len(node.topics) == 100)  # noqa: B023
                assert await node.loader.write_snapshot()
                assert not await node.loader.write_snapshot(), "there is nothing new in it"
            await cluster.write(*range(100, 110))
            for node in cluster.nodes.values():
                await eventually(lambda: len(node.topics) == 110)  # noqa: B023
                assert await node.loader.write_snapshot()
                assert node.quorum.log.start.offset > 100
            await cluster.write(110)
            third = cluster.start(3)
            await cluster.all_have(range(111))
            assert third.quorum.log.start.offset > 100
            assert third.quorum.log.latest_snapshot == cluster.nodes[1].quorum.log.latest_snapshot
            cluster.kill(3)
            assert cluster.start(3).topics == [f"topic-{number}" for number in range(110)], "from its own snapshot"
            await cluster.all_have(range(111))

    run(test)


def test_snapshots_are_written_as_the_log_grows(tmp_path: Path) -> None:
    async def test() -> None:
        async with Cluster(tmp_path) as cluster:
            cluster.start_all(snapshot_bytes=1000, retention=MetadataRetention(bytes=3000))
            await cluster.write(*range(60))
            await cluster.all_have(range(60))
            for node in cluster.nodes.values():
                await eventually(lambda: node.quorum.log.start.offset > 0)  # noqa: B023
            for node_id in (1, 2, 3):
                cluster.kill(node_id)
                cluster.start(node_id)
            await cluster.write(60)
            await cluster.all_have(range(61))

    run(test)


def test_a_listener_may_append_while_it_is_told(tmp_path: Path) -> None:
    async def test() -> None:
        async with Cluster(tmp_path, voters=1) as cluster:
            node = cluster.start(1)
            cluster.kill(1)
            node = cluster.nodes[1] = QuorumNode(cluster, 1, port=cluster.ports[1], voters=cluster.voters)

            def append_topic() -> None:
                node.quorum.append([topic(1)])

            node.controller.on_leading = append_topic
            node.start()
            await eventually(lambda: node.topics == ["topic-1"])

    run(test)


# Bad days


def test_a_disk_without_room_at_the_start(tmp_path: Path) -> None:
    async def test() -> None:
        async with Cluster(tmp_path, voters=1) as cluster:
            cluster.start(1)
            await cluster.nodes.pop(1).stop()
            disk = FaultyDisk()
            node = QuorumNode(cluster, 1, port=cluster.ports[1], voters=cluster.voters, disk=disk)
            disk.room = 0
            with pytest.raises(ConfigError) as refusal:
                node.start()
            assert "no space left" in refusal.value.message and "\n" not in refusal.value.message
            node.kill()

    run(test)


def test_other_voters_than_before_are_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with Cluster(tmp_path) as cluster:
            cluster.start_all()
            await cluster.write(1)
            cluster.kill(1)
            with pytest.raises(ConfigError) as refusal:
                cluster.start(1, voters=cluster.voter_set([1, 2, 4]))
            assert "names nodes 1, 2, 4, but this node's quorum has the voters 1, 2, 3" in refusal.value.message
            assert "\n" not in refusal.value.message

    run(test)


def test_a_node_of_another_cluster_is_stopped(tmp_path: Path) -> None:
    async def test() -> None:
        async with Cluster(tmp_path) as cluster:
            cluster.start(1, cluster_id="ours")
            cluster.start(2, cluster_id="ours")
            await cluster.write(1)
            stranger = cluster.start(3, cluster_id="theirs")
            await eventually(lambda: bool(stranger.fatal))
            assert "another cluster" in stranger.fatal[0] and "theirs" in stranger.fatal[0]
            await cluster.write(2)
            # Without an id of its own it may join, and learns it.
            cluster.kill(3)
            cluster.start(3, cluster_id=None, directory=1)
            await cluster.all_have([1, 2])

    run(test)


def test_a_log_that_is_damaged_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with Cluster(tmp_path, voters=1) as cluster:
            cluster.start(1)
            await cluster.write(*range(20))
            await cluster.nodes.pop(1).stop()
            segment = min((tmp_path / "node-1" / "__cluster_metadata-0").glob("*.log"))
            data = bytearray(segment.read_bytes())
            data[len(data) // 2] ^= 0xFF
            segment.write_bytes(data)
            with pytest.raises(ConfigError) as refusal:
                cluster.start(1)
            assert "cannot be read" in refusal.value.message and "restore it from a copy" in refusal.value.message
            assert "\n" not in refusal.value.message

    run(test)


def test_a_log_that_is_not_durable_ends_the_node(tmp_path: Path) -> None:
    async def test() -> None:
        async with Cluster(tmp_path) as cluster:
            disks = {id: FaultyDisk() for id in (1, 2, 3)}
            for id, disk in disks.items():
                cluster.start(id, disk=disk)
            await cluster.write(1)
            leader = await cluster.elected()
            disks[leader.id].sync_fails = True
            leader.quorum.append([topic(2)])
            await eventually(lambda: bool(leader.fatal))
            assert "cannot be brought to disk" in leader.fatal[0] and "\n" not in leader.fatal[0]
            assert len(leader.fatal) == 1
            await eventually(lambda: not leader.quorum.is_leader)
            cluster.kill(leader.id)
            await cluster.write(3)

    run(test)


def test_what_was_committed_stays_whoever_dies(tmp_path: Path) -> None:
    async def test() -> None:
        chance = random.Random(7)
        async with Cluster(tmp_path) as cluster:
            cluster.start_all(snapshot_bytes=2000, retention=MetadataRetention(bytes=5000))
            observer = cluster.start(7, may_vote=False, snapshot_bytes=2000, retention=MetadataRetention(bytes=5000))
            written = 0
            for _ in range(8):
                burst = chance.randint(1, 12)
                await cluster.write(*range(written, written + burst))
                written += burst
                leader = await cluster.elected()
                victim = leader.id if chance.random() < 0.6 else chance.choice((1, 2, 3))
                loses_disk = chance.random() < 0.3
                if loses_disk:
                    # What is on two disks of three is committed, and one of them must be left.
                    await cluster.all_have(range(written))
                cluster.kill(victim)
                if chance.random() < 0.5:
                    await cluster.write(written)
                    written += 1
                if loses_disk:
                    shutil.rmtree(tmp_path / f"node-{victim}")
                cluster.start(victim, snapshot_bytes=2000, retention=MetadataRetention(bytes=5000))
                await cluster.all_have(range(written))
            assert observer.loader.image.epoch > 1
            assert not any(node.fatal for node in cluster.nodes.values())

    run(test)


def test_a_leader_without_room_lets_another_lead(tmp_path: Path) -> None:
    async def test() -> None:
        async with Cluster(tmp_path) as cluster:
            disks = {id: FaultyDisk() for id in (1, 2, 3)}
            for id, disk in disks.items():
                cluster.start(id, disk=disk)
            await cluster.write(1)
            full = await cluster.elected()
            disks[full.id].room = 0
            with pytest.raises(KafkaError) as refusal:
                full.quorum.append([topic(2)])
            assert refusal.value.code == ErrorCode.KAFKA_STORAGE_ERROR
            await eventually(lambda: any(node.leads for node in cluster.nodes.values() if node is not full))
            others = [node for node in cluster.nodes.values() if node is not full]
            leader = next(node for node in others if node.leads)
            offset = leader.quorum.append([topic(3)])
            await eventually(lambda: all(node.loader.image.offset >= offset for node in others))
            assert not any(node.fatal for node in others)

    run(test)


def test_a_follower_without_room_goes_on_when_there_is_some(tmp_path: Path) -> None:
    async def test() -> None:
        async with Cluster(tmp_path) as cluster:
            disks = {id: FaultyDisk() for id in (1, 2, 3)}
            for id, disk in disks.items():
                cluster.start(id, disk=disk)
            await cluster.write(1)
            leader = await cluster.elected()
            full = next(node for node in cluster.nodes.values() if node is not leader)
            disks[full.id].room = 0
            await cluster.write(2, 3)
            assert full.topics == ["topic-1"] or full.topics == []
            disks[full.id].room = None
            await cluster.all_have([1, 2, 3])
            assert not full.fatal

    run(test)


def test_an_alone_node_without_room_refuses_and_goes_on(tmp_path: Path) -> None:
    async def test() -> None:
        async with Cluster(tmp_path, voters=1) as cluster:
            disk = FaultyDisk()
            node = cluster.start(1, disk=disk)
            disk.room = 0
            with pytest.raises(KafkaError) as refusal:
                node.quorum.append([topic(1)])
            assert refusal.value.code == ErrorCode.KAFKA_STORAGE_ERROR
            disk.room = None
            await cluster.write(2)
            assert node.topics == ["topic-2"] and not node.fatal

    run(test)


def test_votes_that_cannot_be_written_down_are_not_given(tmp_path: Path) -> None:
    async def test() -> None:
        async with Cluster(tmp_path) as cluster:
            disks = {id: FaultyDisk() for id in (1, 2, 3)}
            for id, disk in disks.items():
                cluster.start(id, disk=disk)
            await cluster.write(1)
            await cluster.all_have([1])
            leader = await cluster.elected()
            cluster.kill(leader.id)
            for disk in disks.values():
                disk.room = 0
            refused = {id: disks[id].refused for id in cluster.nodes}
            # Elections are tried, in vain: each of the two has failed to write several votes down.
            await eventually(lambda: all(disks[id].refused > refused[id] + 2 for id in cluster.nodes))
            assert cluster.leader is None
            assert not any(node.fatal for node in cluster.nodes.values())
            for disk in disks.values():
                disk.room = None
            await cluster.write(2)
            await cluster.all_have([1, 2])

    run(test)
