"""Requests on their way: one of a kind to a peer at a time, lost ones given up, failed ones sent again later."""

from dataclasses import dataclass

from millstream.node.consensus.raft.messages import Peer, PeerRequest, Send
from millstream.node.consensus.raft.settings import QuorumSettings

MAX_RETRY_BACKOFF_MS = 500


@dataclass(slots=True)
class _Line:
    """Requests of one kind to one peer."""

    in_flight: int | None = None
    expires_ms: int = 0
    not_before_ms: int = 0
    failures: int = 0


class Outbox:
    def __init__(self, settings: QuorumSettings) -> None:
        self._settings = settings
        self._number = 0
        self._lines: dict[tuple[int, type[PeerRequest]], _Line] = {}
        self._sends: list[Send] = []

    def drain(self) -> list[Send]:
        sends, self._sends = self._sends, []
        return sends

    def send(self, peer: Peer, request: PeerRequest, now_ms: int, wait_ms: int = 0) -> None:
        """Send; the answer may be held back by the peer for `wait_ms`."""
        line = self._line(peer.id, type(request))
        self._number += 1
        line.in_flight = self._number
        line.expires_ms = now_ms + wait_ms + self._settings.request_timeout_ms
        self._sends.append(Send(self._number, peer, request, now_ms))

    def ready(self, peer_id: int, kind: type[PeerRequest], now_ms: int) -> bool:
        return self.ready_ms(peer_id, kind) <= now_ms

    def ready_ms(self, peer_id: int, kind: type[PeerRequest]) -> int:
        """When the next request of this kind may go to that peer (if what is in flight gets no answer)."""
        line = self._line(peer_id, kind)
        return max(line.expires_ms if line.in_flight is not None else 0, line.not_before_ms)

    def is_current(self, send: Send) -> bool:
        """Whether this is what is in flight: answers to anything else are stale."""
        return self._line(send.peer.id, type(send.request)).in_flight == send.number

    def succeeded(self, send: Send) -> None:
        line = self._line(send.peer.id, type(send.request))
        line.in_flight, line.not_before_ms, line.failures = None, 0, 0

    def failed(self, send: Send, now_ms: int) -> None:
        """No answer, or one that did not help: the next try waits, twice as long each time."""
        line = self._line(send.peer.id, type(send.request))
        backoff_ms = min(MAX_RETRY_BACKOFF_MS, self._settings.retry_backoff_ms << min(line.failures, 8))
        line.in_flight, line.not_before_ms, line.failures = None, now_ms + backoff_ms, line.failures + 1

    def pause(self, peer_id: int, kind: type[PeerRequest], until_ms: int) -> None:
        """Nothing of this kind to that peer before `until_ms`."""
        line = self._line(peer_id, kind)
        line.not_before_ms = max(line.not_before_ms, until_ms)

    def forget_in_flight(self) -> None:
        """The role changed: answers to what it asked no longer matter. Pauses after failures stay: no busy loops."""
        for line in self._lines.values():
            line.in_flight = None

    def _line(self, peer_id: int, kind: type[PeerRequest]) -> _Line:
        line = self._lines.get((peer_id, kind))
        if line is None:
            line = self._lines[peer_id, kind] = _Line()
        return line
