"""Watches the turns of the event loop that belong to a request: one that takes long holds up everybody else.

Each is counted, and logged with the API and the peer; the log is limited (`log_throttle`).
"""

import logging
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

from millstream.node.measures import Histogram
from millstream.node.server.log_throttle import LogThrottle
from millstream.node.server.service import Peer

LONG_TURN_SECONDS = 0.05
_BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_log = logging.getLogger("millstream.turns")
_log.addFilter(LogThrottle())
T = TypeVar("T")


class TurnWatch:
    def __init__(self, now: Callable[[], float]) -> None:
        """`now` tells the time in seconds, finely enough; in the simulator a turn takes none."""
        self.now = now
        self.long_turns: dict[str, Histogram] = {}
        """How long they were, by API."""

    def expect(self, api: str) -> None:
        """Makes an API known before it has had a long turn."""
        self.long_turns.setdefault(api, Histogram(_BOUNDS))

    def ended(self, begun: float, api: str, peer: Peer) -> None:
        """A turn is over that worked on a request."""
        seconds = self.now() - begun
        if seconds > LONG_TURN_SECONDS:
            self.expect(api)
            self.long_turns[api].observe(seconds)
            _log.warning(
                "long_turn api=%s peer=%s:%d client_id=%s ms=%d: nothing else was served meanwhile",
                api, peer.host, peer.port, peer.client_id, seconds * 1000,
            )  # fmt: skip

    def over(self, coroutine: Coroutine[Any, Any, T], api: str, peer: Peer) -> Coroutine[Any, Any, T]:
        """The coroutine, with each of its turns watched."""
        return _Watched(coroutine, self, api, peer)


class _Watched(Coroutine[Any, Any, T]):
    """Passes everything on to a coroutine, and notes how long each step takes."""

    __slots__ = ("_api", "_coroutine", "_peer", "_watch")

    def __init__(self, coroutine: Coroutine[Any, Any, T], watch: TurnWatch, api: str, peer: Peer) -> None:
        self._coroutine = coroutine
        self._watch = watch
        self._api = api
        self._peer = peer

    def send(self, value: Any) -> Any:
        begun = self._watch.now()
        try:
            return self._coroutine.send(value)
        finally:
            self._watch.ended(begun, self._api, self._peer)

    def throw(self, *error: Any) -> Any:
        begun = self._watch.now()
        try:
            return self._coroutine.throw(*error)
        finally:
            self._watch.ended(begun, self._api, self._peer)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._coroutine.__await__()
