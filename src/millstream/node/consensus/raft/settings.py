"""The timeouts of the quorum, under the names of Kafka's settings, with its defaults."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumSettings:
    election_timeout_ms: int = 1000
    """controller.quorum.election.timeout.ms: how long without a leader, or with an undecided vote, until the next try.
    Drawn anew from [this, twice this) every time."""
    fetch_timeout_ms: int = 2000
    """controller.quorum.fetch.timeout.ms: how long a follower goes without its leader; a leader gives up after 1.5
    times this without fetches from a majority."""
    election_backoff_max_ms: int = 1000
    """controller.quorum.election.backoff.max.ms: the longest pause after a lost election; pauses double from 50 ms."""
    request_timeout_ms: int = 2000
    """controller.quorum.request.timeout.ms: when a request that got neither answer nor failure counts as lost."""
    retry_backoff_ms: int = 20
    """controller.quorum.retry.backoff.ms: pause before a failed request is sent again; doubles up to half a second."""
    fetch_max_wait_ms: int = 500
    """How long the leader may hold a fetch that has nothing to bring."""
    fetch_max_bytes: int = 8 * 1024 * 1024
    snapshot_chunk_bytes: int = 8 * 1024 * 1024
    refused_election_delay_ms: int = 150
    """A follower whose leader's address refuses connections asks for votes after a random part of this."""
    add_voter_lag_ms: int = 3_600_000
    """A new voter must have caught up with the leader's log within this time."""
