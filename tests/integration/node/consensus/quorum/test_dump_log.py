"""`kafka-dump-log` reads our metadata log, control records and snapshots, and finds nothing to complain about."""

from uuid import UUID

import pytest

from millstream.node.consensus.quorum.snapshots import SnapshotContent
from millstream.node.consensus.raft.log import KRaftVersionRecord, LeaderChangeRecord, VotersRecord
from millstream.node.consensus.raft.voter_set import Endpoint, ReplicaKey, Voter, VoterSet
from tests.unit.node.consensus.quorum.conftest import NOW, DiskOfNode, append, flush, topic
from tools import apache_kafka

VOTERS = VoterSet(
    tuple(Voter(ReplicaKey(id, UUID(int=id)), (Endpoint("CONTROLLER", f"host-{id}", 9093),)) for id in (1, 2, 3))
)


@pytest.fixture(scope="module")
def kafka() -> apache_kafka.KafkaDistribution:
    try:
        return apache_kafka.resolve()
    except apache_kafka.ToolchainMissingError as reason:
        pytest.skip(f"Apache Kafka cannot be had here: {reason}")


def test_kafka_reads_log_and_snapshot(node: DiskOfNode, kafka: apache_kafka.KafkaDistribution) -> None:
    log = node.open()
    log.append_control(1, [LeaderChangeRecord(1, (1, 2, 3), (1, 2))], NOW)
    log.append_control(1, [KRaftVersionRecord(1), VotersRecord(VOTERS)], NOW)
    append(log, topic(1), topic(2))
    flush(log)
    snapshot = log.end
    log.snapshots.write(snapshot, SnapshotContent(NOW, 1, VOTERS, (topic(1), topic(2))), NOW)
    node.stop()

    files = [min(node.path.glob("*.log")), min(node.path.glob("*.checkpoint"))]
    done = kafka.run(
        apache_kafka.DUMP_LOG_SEGMENTS,
        "--cluster-metadata-decoder",
        "--files",
        ",".join(map(str, files)),
        performance=apache_kafka.QUICK_START_OPTIONS,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-4000:]
    assert "isvalid: false" not in said and "xception" not in said and "could not be decoded" not in said, said
    in_log, in_snapshot = said.split("Dumping", 2)[1:]
    assert files[1].name == "00000000000000000005-0000000001.checkpoint"
    assert '"leaderId":1' in in_log and '"grantingVoters":[{"voterId":1},{"voterId":2}]' in in_log, in_log
    for part in (in_log, in_snapshot):
        assert '"kRaftVersion":1' in part, part
        assert '"host":"host-3","port":9093' in part, part
        assert '"voterDirectoryId":"AAAAAAAAAAAAAAAAAAAAAw"' in part, part
        assert '"type":"TOPIC_RECORD"' in part and '"name":"topic-2"' in part, part
    assert f'"lastContainedLogTimestamp":{NOW}' in in_snapshot, in_snapshot
    assert "SnapshotFooter" in in_snapshot, in_snapshot
