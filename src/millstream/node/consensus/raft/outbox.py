"""Requests in flight: one of a kind to a peer at a time, with a timeout, and a backoff after failures."""

from millstream.common.lazy_dataclass import dataclass
from millstream.node.consensus.raft.messages import Peer, PeerRequest, Send
from millstream.node.consensus.raft.settings import QuorumSettings

MAX_RETRY_BACKOFF_MS = 500


@dataclass(slots=True)
class _Lane:
    """Requests of one kind to one peer."""

    in_flight: int | None = None
    expires_ms: int = 0
    not_before_ms: int = 0
    failures: int = 0


class Outbox:
    def __init__(self, settings: QuorumSettings) -> None:
        self._settings = settings
        self._number = 0
        self._lanes: dict[tuple[int, type[PeerRequest]], _Lane] = {}
        self._sends: list[Send] = []

    def drain(self) -> list[Send]:
        sends, self._sends = self._sends, []
        return sends

    def send(self, peer: Peer, request: PeerRequest, now_ms: int, wait_ms: int = 0) -> None:
        """Send; the peer may park the request for `wait_ms`."""
        lane = self._lane(peer.id, type(request))
        self._number += 1
        lane.in_flight = self._number
        lane.expires_ms = now_ms + wait_ms + self._settings.request_timeout_ms
        self._sends.append(Send(self._number, peer, request, now_ms))

    def ready(self, peer_id: int, kind: type[PeerRequest], now_ms: int) -> bool:
        return self.ready_ms(peer_id, kind) <= now_ms

    def ready_ms(self, peer_id: int, kind: type[PeerRequest]) -> int:
        """When the next request of this kind may go to that peer (if the one in flight gets no response)."""
        lane = self._lane(peer_id, kind)
        return max(lane.expires_ms if lane.in_flight is not None else 0, lane.not_before_ms)

    def is_current(self, send: Send) -> bool:
        """Whether this is the request in flight: responses to other requests are stale."""
        return self._lane(send.peer.id, type(send.request)).in_flight == send.number

    def succeeded(self, send: Send) -> None:
        lane = self._lane(send.peer.id, type(send.request))
        lane.in_flight, lane.not_before_ms, lane.failures = None, 0, 0

    def failed(self, send: Send, now_ms: int) -> None:
        """No response, or an error: the pause before the next try doubles each time."""
        lane = self._lane(send.peer.id, type(send.request))
        backoff_ms = min(MAX_RETRY_BACKOFF_MS, self._settings.retry_backoff_ms << min(lane.failures, 8))
        lane.in_flight, lane.not_before_ms, lane.failures = None, now_ms + backoff_ms, lane.failures + 1

    def pause(self, peer_id: int, kind: type[PeerRequest], until_ms: int) -> None:
        """Send no request of this kind to that peer before `until_ms`."""
        lane = self._lane(peer_id, kind)
        lane.not_before_ms = max(lane.not_before_ms, until_ms)

    def forget_in_flight(self) -> None:
        """The role changed: responses to its requests are stale. Pauses after failures stay, to avoid busy loops."""
        for lane in self._lanes.values():
            lane.in_flight = None

    def _lane(self, peer_id: int, kind: type[PeerRequest]) -> _Lane:
        lane = self._lanes.get((peer_id, kind))
        if lane is None:
            lane = self._lanes[peer_id, kind] = _Lane()
        return lane
