"""Handlers of a controller's listener for the quorum: Vote (52), BeginQuorumEpoch (53), EndQuorumEpoch (54),
DescribeQuorum (55), FetchSnapshot (59), AddRaftVoter (80), RemoveRaftVoter (81), UpdateRaftVoter (82), and Fetch (1) of
the metadata partition.

All versions of Kafka 4. Fetch is handled like any other API: metadata is small, and the listener has no other
partition. A fetch without new records is parked in raft, until an append or a higher high watermark.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.wire_types import (
    AddRaftVoterRequest,
    BeginQuorumEpochRequest,
    DescribeQuorumRequest,
    EndQuorumEpochRequest,
    FetchRequest,
    FetchSnapshotRequest,
    RemoveRaftVoterRequest,
    UpdateRaftVoterRequest,
    VoteRequest,
)
from millstream.node.consensus.quorum import wire
from millstream.node.consensus.quorum.metadata_quorum import MetadataQuorum
from millstream.node.consensus.raft.messages import AddVoter
from millstream.node.consensus.raft.replica import RaftReplica
from millstream.node.metadata.topic_names import CLUSTER_METADATA_TOPIC
from millstream.node.server.request import Api, Context, Response, api

_KRAFT_VERSION = "kraft.version"
Result = Response | Awaitable[Response]


class QuorumHandlers:
    def __init__(self, quorum: MetadataQuorum) -> None:
        self._quorum = quorum

    def apis(self) -> list[Api]:
        """For the dispatcher of the controller listener."""
        return [
            api("fetch", self.fetch),
            api("vote", self.vote),
            api("begin_quorum_epoch", self.begin_quorum_epoch),
            api("end_quorum_epoch", self.end_quorum_epoch),
            api("describe_quorum", self.describe_quorum),
            api("fetch_snapshot", self.fetch_snapshot),
            api("add_raft_voter", self.add_raft_voter),
            api("remove_raft_voter", self.remove_raft_voter),
            api("update_raft_voter", self.update_raft_voter),
        ]

    def vote(self, request: VoteRequest, context: Context) -> Result:
        return self._handle(lambda: wire.read_vote(request), self._raft.vote, wire.vote_response)

    def begin_quorum_epoch(self, request: BeginQuorumEpochRequest, context: Context) -> Result:
        read = wire.read_begin_quorum_epoch
        return self._handle(lambda: read(request), self._raft.begin_quorum_epoch, wire.quorum_epoch_response)

    def end_quorum_epoch(self, request: EndQuorumEpochRequest, context: Context) -> Result:
        read = wire.read_end_quorum_epoch
        return self._handle(lambda: read(request), self._raft.end_quorum_epoch, wire.quorum_epoch_response)

    def fetch(self, request: FetchRequest, context: Context) -> Result:
        version = context.version
        return self._handle(lambda: wire.read_fetch(request, version), self._raft.fetch, wire.fetch_response)

    def fetch_snapshot(self, request: FetchSnapshotRequest, context: Context) -> Result:
        read = wire.read_fetch_snapshot
        return self._handle(lambda: read(request), self._raft.fetch_snapshot, wire.fetch_snapshot_response)

    def update_raft_voter(self, request: UpdateRaftVoterRequest, context: Context) -> Result:
        read = wire.read_update_voter
        return self._handle(lambda: read(request), self._raft.update_voter, wire.update_voter_response)

    def remove_raft_voter(self, request: RemoveRaftVoterRequest, context: Context) -> Result:
        return self._handle(lambda: wire.read_remove_voter(request), self._raft.remove_voter, _change_response)

    async def add_raft_voter(self, request: AddRaftVoterRequest, context: Context) -> Response:
        """First gets the supported versions from the new voter, because a voter that cannot be reached would do
        harm."""
        quorum = self._quorum
        wanted = wire.read_add_voter(request, min_kraft_version=0, max_kraft_version=0)
        if not quorum.is_leader:
            return {
                "error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER,
                "error_message": "this node does not lead the metadata quorum",
            }
        if not wanted.endpoints:
            return {
                "error_code": ErrorCode.INVALID_REQUEST,
                "error_message": "the request has no endpoint of the new voter: name its controller listener",
            }
        host, port = quorum.peers.address_of(wanted.endpoints)
        try:
            found = await quorum.peers.supported_features(host, port, timeout_s=max(wanted.timeout_ms, 1) / 1000)
        except OSError as error:
            return {
                "error_code": ErrorCode.REQUEST_TIMED_OUT,
                "error_message": f"node {wanted.voter.id} cannot be reached at {host}:{port}: {error}",
            }
        low, high = found.get(_KRAFT_VERSION, (0, 0))

        def read() -> AddVoter:
            return wire.read_add_voter(request, min_kraft_version=low, max_kraft_version=high)

        response = self._handle(read, self._raft.add_voter, _change_response)
        return await response if isinstance(response, Awaitable) else response

    def describe_quorum(self, request: DescribeQuorumRequest, context: Context) -> Response:
        named = [(topic.topic_name, row.partition_index) for topic in request.topics for row in topic.partitions]
        if named != [(CLUSTER_METADATA_TOPIC, 0)]:
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return {
                "topics": [
                    {
                        "topic_name": topic.topic_name,
                        "partitions": [
                            {"partition_index": row.partition_index, "error_code": unknown} for row in topic.partitions
                        ],
                    }
                    for topic in request.topics
                ]
            }
        quorum = self._quorum
        response = quorum.replica.describe_quorum(quorum.now_ms())
        return wire.describe_quorum_response(response, quorum.voters, quorum.wall_ms_ahead)

    @property
    def _raft(self) -> RaftReplica:
        return self._quorum.replica

    def _handle(
        self, read: Callable[[], Any], step: Callable[[Any, int], Any], write: Callable[[Any], dict[str, Any]]
    ) -> Result:
        """Decodes the request, gives it to raft, and encodes its response, now or later."""
        try:
            response = self._quorum.handle(step, read())
        except KafkaError as error:
            return {"error_code": error.code}
        return _written(response, write) if isinstance(response, asyncio.Future) else write(response)


async def _written(response: "asyncio.Future[Any]", write: Callable[[Any], dict[str, Any]]) -> Response:
    return write(await response)


def _change_response(response: Any) -> dict[str, Any]:
    return {"error_code": response.error, "error_message": response.message}
