"""Brokers that were there a moment ago: what clients are told of them between their death and their being forgotten.

A client whose leader died asks another broker at once, often before the controller has spoken. Told the old leader
again, it would wait a second or more before it asks next; told that there is none, it asks again soon. So a broker
whose connection to this one broke is *missing*, for a moment: nobody is sent to it, nothing else changes. And a broker
that was fenced is *departed*: clients that ask for topics still get its address for as long as a session lasts, which
is how long a broker that dies unnoticed is listed anyway. (librdkafka gives up all that it holds of a broker that is
not listed, and what it was about to move to the new leader with it, for another second.)
"""

from collections.abc import Callable

from millstream.formats.model.identifiers import BrokerId
from millstream.node.metadata.image import MetadataDelta, MetadataImage

_MISSING_S = 2.0
"""Longer than it takes to elect a controller and leaders. It bounds the harm where only brokers lost each other."""
_NOBODY: frozenset[int] = frozenset()


class LostBrokers:
    def __init__(
        self, image: Callable[[], MetadataImage], session_s: Callable[[], float], now_s: Callable[[], float]
    ) -> None:
        self._image = image
        self._session_s = session_s
        self._now_s = now_s
        self._missing_until: dict[int, tuple[int, float]] = {}
        self._listed_until: dict[int, tuple[int, float]] = {}
        """By broker id: the epoch of the registration this is about, and a time."""
        self._serving = self._serving_now()

    # What happens

    def connection_lost(self, broker_id: int) -> None:
        """An established connection from here to the broker ended, and not because we hung up."""
        self._missing_until[broker_id] = (self._epoch(broker_id), self._now_s() + _MISSING_S)

    def connection_made(self, broker_id: int) -> None:
        self._missing_until.pop(broker_id, None)

    def follow(self, delta: MetadataDelta) -> None:
        if not delta.brokers:
            return
        before, self._serving = self._serving, self._serving_now()
        until_s = self._now_s() + self._session_s()
        for broker_id, epoch in before.items():
            if broker_id not in self._serving:
                self._listed_until[broker_id] = (epoch, until_s)

    # What is to be told

    def missing(self) -> frozenset[int]:
        """Brokers to which nobody is to be sent now, though the metadata says that they serve."""
        return self._current(self._missing_until, fenced=False)

    def departed(self) -> frozenset[int]:
        """Brokers that are fenced, and yet to be listed."""
        return self._current(self._listed_until, fenced=True)

    def _current(self, until: dict[int, tuple[int, float]], *, fenced: bool) -> frozenset[int]:
        if not until:
            return _NOBODY
        now_s, brokers = self._now_s(), self._image().brokers
        for broker_id, (epoch, end_s) in tuple(until.items()):
            broker = brokers.get(BrokerId(broker_id))
            if now_s >= end_s or broker is None or broker.epoch != epoch or broker.fenced is not fenced:
                del until[broker_id]
        return frozenset(until)

    def _epoch(self, broker_id: int) -> int:
        broker = self._image().brokers.get(BrokerId(broker_id))
        return broker.epoch if broker is not None else -1

    def _serving_now(self) -> dict[int, int]:
        return {broker.id: broker.epoch for broker in self._image().brokers.values() if not broker.fenced}
