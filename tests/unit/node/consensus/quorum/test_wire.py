"""Every request and response of raft survives the wire, in every version that carries all of it."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import request_schema, response_schema
from millstream.node.consensus.quorum import wire
from millstream.node.consensus.raft.messages import (
    BeginQuorumEpoch,
    EndQuorumEpoch,
    Fetch,
    FetchResponse,
    FetchSnapshot,
    FetchSnapshotResponse,
    LogPosition,
    QuorumEpochResponse,
    UpdateVoter,
    UpdateVoterResponse,
    Vote,
    VoteResponse,
)
from millstream.node.consensus.raft.voter_set import Endpoint, ReplicaKey

ONE, TWO = ReplicaKey(1, UUID(int=11)), ReplicaKey(2, UUID(int=12))
ENDPOINTS = (Endpoint("CONTROLLER", "one", 9093), Endpoint("OTHER", "one", 9094))
LEADER: dict[str, Any] = {"leader_id": 1, "leader_epoch": 7, "leader_endpoints": ENDPOINTS[:1]}

VOTE = Vote(cluster_id="c", voter=TWO, epoch=7, candidate=ONE, log_end=LogPosition(9, 6), pre_vote=True)
BEGIN = BeginQuorumEpoch(cluster_id="c", voter=TWO, leader_id=1, epoch=7, leader_endpoints=ENDPOINTS)
END = EndQuorumEpoch(cluster_id=None, leader_id=1, epoch=7, preferred_candidates=(TWO, ONE), leader_endpoints=ENDPOINTS)
FETCH = Fetch(
    cluster_id="c",
    replica=TWO,
    current_leader_epoch=7,
    offset=9,
    last_fetched_epoch=6,
    high_watermark=5,
    max_wait_ms=500,
    max_bytes=1000,
)
SNAPSHOT = FetchSnapshot(
    cluster_id="c", replica=TWO, current_leader_epoch=7, snapshot=LogPosition(9, 6), position=3, max_bytes=1000
)
UPDATE = UpdateVoter(
    cluster_id="c",
    current_leader_epoch=7,
    voter=TWO,
    endpoints=ENDPOINTS,
    min_kraft_version=0,
    max_kraft_version=1,
)


def sent(request: Any, version: int) -> Any:
    name, fields = wire.request_fields(request)
    schema = request_schema(name)
    return schema.decode(schema.encode(fields, version), version)


def response_of(request: Any, fields: dict[str, Any], version: int) -> Any:
    schema = response_schema(wire.request_fields(request)[0])
    return wire.read_response(request, schema.decode(schema.encode(fields, version), version), "CONTROLLER")


def test_requests_survive_the_wire() -> None:
    assert wire.read_vote(sent(VOTE, 2)) == VOTE
    assert wire.read_begin_quorum_epoch(sent(BEGIN, 1)) == BEGIN
    assert wire.read_end_quorum_epoch(sent(END, 1)) == END
    assert wire.read_fetch(sent(FETCH, 18), 18) == FETCH
    assert wire.read_fetch(sent(FETCH, 17), 17) == replace(FETCH, high_watermark=-1)
    assert wire.read_fetch_snapshot(sent(SNAPSHOT, 1)) == SNAPSHOT
    assert wire.read_update_voter(sent(UPDATE, 0)) == UPDATE


def test_older_versions_leave_out_what_they_do_not_know() -> None:
    assert wire.read_vote(sent(VOTE, 1)) == replace(VOTE, pre_vote=False)
    assert wire.read_vote(sent(VOTE, 0)) == replace(VOTE, pre_vote=False, voter=ReplicaKey(-1), candidate=ReplicaKey(1))
    assert wire.read_end_quorum_epoch(sent(END, 0)).preferred_candidates == (ReplicaKey(2), ReplicaKey(1))
    for version in (12, 13, 14, 15, 16):
        found = wire.read_fetch(sent(FETCH, version), version)
        assert (found.replica, found.offset, found.cluster_id) == (ReplicaKey(2), 9, "c")


def test_a_fetch_that_wants_to_hear_of_nothing_does_not_wait() -> None:
    request = sent(FETCH, 18)
    request.min_bytes = 0
    assert wire.read_fetch(request, 18).max_wait_ms == 0
    assert wire.read_fetch(sent(replace(FETCH, high_watermark=-1), 18), 18).high_watermark == -1


@pytest.mark.parametrize(
    ("request_", "response", "write", "version"),
    [
        (VOTE, VoteResponse(granted=True, **LEADER), wire.vote_response, 2),
        (VOTE, VoteResponse(error=ErrorCode.INVALID_VOTER_KEY, leader_epoch=3), wire.vote_response, 1),
        (BEGIN, QuorumEpochResponse(**LEADER), wire.quorum_epoch_response, 1),
        (END, QuorumEpochResponse(error=ErrorCode.FENCED_LEADER_EPOCH, **LEADER), wire.quorum_epoch_response, 1),
        (
            FETCH,
            FetchResponse(high_watermark=4, log_start_offset=1, records=b"batches", **LEADER),
            wire.fetch_response,
            18,
        ),
        (FETCH, FetchResponse(diverging=LogPosition(3, 2), **LEADER), wire.fetch_response, 17),
        (FETCH, FetchResponse(snapshot=LogPosition(3, 2), **LEADER), wire.fetch_response, 18),
        (FETCH, FetchResponse(error=ErrorCode.NOT_LEADER_OR_FOLLOWER, leader_epoch=7), wire.fetch_response, 18),
        (
            SNAPSHOT,
            FetchSnapshotResponse(snapshot=LogPosition(9, 6), size=10, position=3, chunk=b"piece", **LEADER),
            wire.fetch_snapshot_response,
            1,
        ),
        (UPDATE, UpdateVoterResponse(**LEADER), wire.update_voter_response, 0),
        (UPDATE, UpdateVoterResponse(error=ErrorCode.VOTER_NOT_FOUND, leader_epoch=2), wire.update_voter_response, 0),
    ],
)
def test_responses_survive_the_wire(request_: Any, response: Any, write: Any, version: int) -> None:
    assert response_of(request_, write(response), version) == response


@pytest.mark.parametrize("request_", [VOTE, BEGIN, END, FETCH, SNAPSHOT])
def test_a_refusal_of_the_whole_request(request_: Any) -> None:
    schema = response_schema(wire.request_fields(request_)[0])
    version = schema.versions.high
    for code, error in ((104, ErrorCode.INCONSISTENT_CLUSTER_ID), (4242, ErrorCode.UNKNOWN_SERVER_ERROR)):
        response = response_of(request_, {"error_code": code}, version)
        assert (response.error, response.leader_id) == (error, -1)
    assert response_of(request_, {}, version).error == ErrorCode.UNKNOWN_SERVER_ERROR, "a response about nothing"
