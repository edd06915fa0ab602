import json
from pathlib import Path
from uuid import UUID

import pytest

from millstream.config.setting import ConfigError
from millstream.node.consensus.quorum.quorum_state import QuorumStateFile, StoredQuorumState
from millstream.node.runtime.disk import RealDisk

DIRECTORY_ID = UUID("27c6803d-c7cb-42dd-9baa-cd494ffacc81")


@pytest.fixture
def file(tmp_path: Path) -> QuorumStateFile:
    return QuorumStateFile(RealDisk(), str(tmp_path))


def test_an_empty_disk_has_none(file: QuorumStateFile) -> None:
    assert file.read() is None


@pytest.mark.parametrize(
    "state",
    [
        StoredQuorumState(leader_id=1, leader_epoch=7, voted_id=-1, voters=(1, 2, 3)),
        StoredQuorumState(leader_epoch=8, voted_id=2, voted_directory_id=DIRECTORY_ID),
    ],
)
def test_the_state_is_written_and_read(file: QuorumStateFile, state: StoredQuorumState) -> None:
    file.write(state)
    assert file.read() == state


def test_as_kafka_writes_it(file: QuorumStateFile, tmp_path: Path) -> None:
    file.write(StoredQuorumState(leader_epoch=2, voted_id=1, voted_directory_id=DIRECTORY_ID))
    written = json.loads((tmp_path / "quorum-state").read_text())
    assert written == {
        "leaderId": -1,
        "leaderEpoch": 2,
        "votedId": 1,
        "votedDirectoryId": "J8aAPcfLQt2bqs1JT_rMgQ",
        "data_version": 1,
    }
    file.write(StoredQuorumState(leader_id=1, leader_epoch=3, voters=(1,)))
    written = json.loads((tmp_path / "quorum-state").read_text())
    assert written == {
        "clusterId": "",
        "leaderId": 1,
        "leaderEpoch": 3,
        "votedId": -1,
        "appliedOffset": 0,
        "currentVoters": [{"voterId": 1}],
        "data_version": 0,
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"leaderId":1,"leaderEpoch":2,"votedId":-1,"data_version":2}',
        '{"leaderId":1,"leaderEpoch":2,"votedId":-1,"data_version":1}',
        '{"leaderId":1,"leaderEpoch":2,"votedId":-1,"votedDirectoryId":"x","data_version":1}',
        '{"leaderId":1,"leaderEpoch":-7,"votedId":-1,"currentVoters":[],"data_version":0}',
        '{"leaderId":1,"leaderEpoch":true,"votedId":-1,"currentVoters":[],"data_version":0}',
        '{"leaderId":1,"leaderEpoch":1,"votedId":-1,"currentVoters":[7],"data_version":0}',
        "\x00" * 100,
    ],
)
def test_a_damaged_one_is_refused_in_one_line(file: QuorumStateFile, tmp_path: Path, text: str) -> None:
    (tmp_path / "quorum-state").write_text(text)
    with pytest.raises(ConfigError) as refusal:
        file.read()
    assert "quorum-state is damaged" in refusal.value.message
    assert "restore it from a copy" in refusal.value.message
    assert "\n" not in refusal.value.message
