"""Timeouts and limits of the quorum: Kafka's settings with its defaults, and how fast requests may raise the epoch."""

from millstream.common.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumSettings:
    election_timeout_ms: int = 1000
    """controller.quorum.election.timeout.ms: time without a leader, or with an undecided vote, until the next
    election. Each time a random value from [this, twice this)."""
    fetch_timeout_ms: int = 2000
    """controller.quorum.fetch.timeout.ms: time after which a follower that hears nothing counts its leader as lost.
    A leader resigns after 1.5 times this without fetches from a majority."""
    election_backoff_max_ms: int = 1000
    """controller.quorum.election.backoff.max.ms: the longest pause after a lost election; pauses double from 50 ms."""
    request_timeout_ms: int = 2000
    """controller.quorum.request.timeout.ms: when a request without response or failure counts as lost."""
    retry_backoff_ms: int = 20
    """controller.quorum.retry.backoff.ms: pause before a failed request is sent again; doubles up to half a second."""
    fetch_max_wait_ms: int = 500
    """How long the leader may park a fetch for which it has no records."""
    fetch_max_bytes: int = 8 * 1024 * 1024
    snapshot_chunk_bytes: int = 8 * 1024 * 1024
    refused_election_delay_ms: int = 150
    """A follower whose leader's address refuses connections requests votes after a random part of this."""
    add_voter_lag_ms: int = 3_600_000
    """A new voter must have caught up with the leader's log within this time."""


MIN_KRAFT_VERSION = 0
MAX_KRAFT_VERSION = 1

EPOCH_BURST = 1000
EPOCHS_PER_SECOND = 20


class EpochPace:
    """Limits how fast requests of other nodes raise the epoch of this replica. Pure: the time is an argument.

    An election raises the epoch by one and takes a few network round trips. A request that raises it by a thousand
    millions is forged or damaged, and the highest possible epoch would end the quorum: no later election could go
    beyond. So requests may raise the epoch by `EPOCH_BURST` at once and by `EPOCHS_PER_SECOND` in the long run.
    Then the highest epoch is years away.

    A voter that was away for more elections than that is not locked out: it sends requests to the other voters, and the
    epoch in their responses is not limited.
    """

    __slots__ = ("_credit", "_refilled_ms")

    def __init__(self, now_ms: int) -> None:
        self._credit = float(EPOCH_BURST)
        self._refilled_ms = now_ms

    def admits(self, step: int, now_ms: int) -> bool:
        """Whether a request may raise the epoch by `step`; if so, the step is counted."""
        if step <= 0:
            return True
        elapsed_ms = max(0, now_ms - self._refilled_ms)
        self._credit = min(EPOCH_BURST, self._credit + elapsed_ms * EPOCHS_PER_SECOND / 1000)
        self._refilled_ms = now_ms
        if step > self._credit:
            return False
        self._credit -= step
        return True
