"""`quorum-state`: the latest epoch of this node, its leader, and this node's vote in it, in Kafka's JSON.

It is on stable storage before the response to a vote: a node that forgot its vote could vote twice.
"""

import base64
import binascii
import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

from millstream.common.lazy_dataclass import dataclass
from millstream.config.setting import ConfigError
from millstream.node.consensus.raft.log import QuorumState
from millstream.node.consensus.raft.messages import directory_or_none
from millstream.node.consensus.raft.voter_set import ReplicaKey
from millstream.node.storage.disk import Disk

FILE_NAME = "quorum-state"
NO_NODE = -1
NO_DIRECTORY_ID = UUID(int=0)
_LATEST_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredQuorumState:
    leader_id: int = NO_NODE
    leader_epoch: int = 0
    voted_id: int = NO_NODE
    voted_directory_id: UUID = NO_DIRECTORY_ID
    voters: tuple[int, ...] | None = None
    """The voters of a static quorum, to detect a changed `controller.quorum.voters`; None if they are in the log."""


class QuorumStateFile:
    """Implements raft's `QuorumStateStore`."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self.path = f"{directory}/{FILE_NAME}"
        self.static_voters: Callable[[], tuple[int, ...] | None] = lambda: None
        """The voters to write with it; None if they are in the log."""

    def load(self) -> QuorumState | None:
        stored = self.read()
        if stored is None:
            return None
        voted = ReplicaKey(stored.voted_id, directory_or_none(stored.voted_directory_id))
        return QuorumState(
            epoch=max(stored.leader_epoch, 0),
            leader_id=stored.leader_id if stored.leader_id != NO_NODE else None,
            voted=voted if stored.voted_id != NO_NODE else None,
        )

    def save(self, state: QuorumState) -> None:
        voted = state.voted
        self.write(
            StoredQuorumState(
                leader_id=NO_NODE if state.leader_id is None else state.leader_id,
                leader_epoch=state.epoch,
                voted_id=NO_NODE if voted is None else voted.id,
                voted_directory_id=(voted.directory_id if voted is not None else None) or NO_DIRECTORY_ID,
                voters=self.static_voters(),
            )
        )

    def read(self) -> StoredQuorumState | None:
        """None if there is no file; ConfigError if it is damaged: this node could vote twice."""
        try:
            text = self._disk.read_bytes(self.path)
        except FileNotFoundError:
            return None
        try:
            return _decode(json.loads(text))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{self.path} is damaged ({_reason(error)}): restore it from a copy, or start this node with an empty "
                "data directory so that it fetches everything from the other nodes",
                name="log.dirs",
            ) from None

    def write(self, state: StoredQuorumState) -> None:
        """Returns when it is on stable storage."""
        self._disk.write_atomically(self.path, json.dumps(_encode(state), separators=(",", ":")).encode())


def _encode(state: StoredQuorumState) -> dict[str, Any]:
    if state.voters is None:
        return {
            "leaderId": state.leader_id,
            "leaderEpoch": state.leader_epoch,
            "votedId": state.voted_id,
            "votedDirectoryId": base64.urlsafe_b64encode(state.voted_directory_id.bytes).rstrip(b"=").decode(),
            "data_version": 1,
        }
    return {
        "clusterId": "",
        "leaderId": state.leader_id,
        "leaderEpoch": state.leader_epoch,
        "votedId": state.voted_id,
        "appliedOffset": 0,
        "currentVoters": [{"voterId": voter} for voter in state.voters],
        "data_version": 0,
    }


def _decode(found: Any) -> StoredQuorumState:
    if not isinstance(found, dict):
        raise ValueError("no JSON object")
    version = _number(found, "data_version")
    if not 0 <= version <= _LATEST_VERSION:
        raise ValueError(f"data_version {version} is not known")
    directory_id, voters = NO_DIRECTORY_ID, None
    if version == 0:
        voters = tuple(_number(voter, "voterId") for voter in found.get("currentVoters") or ())
    else:
        directory_id = _directory_id(found["votedDirectoryId"])
    return StoredQuorumState(
        leader_id=_number(found, "leaderId"),
        leader_epoch=_number(found, "leaderEpoch"),
        voted_id=_number(found, "votedId"),
        voted_directory_id=directory_id,
        voters=voters,
    )


def _number(found: dict[str, Any], name: str) -> int:
    value = found[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < NO_NODE:
        raise ValueError(f"{name} is {value!r}")
    return value


def _directory_id(text: str) -> UUID:
    try:
        return UUID(bytes=base64.urlsafe_b64decode(text + "=="))
    except (binascii.Error, ValueError):
        raise ValueError(f"votedDirectoryId is {text!r}") from None


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it has no {error.args[0]}"
    return f"it is not JSON: {error}" if isinstance(error, json.JSONDecodeError) else str(error)
