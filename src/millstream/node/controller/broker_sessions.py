"""Which brokers are heard of: one session for each, kept alive by heartbeats. Pure: the time is an argument.

A broker that is not heard of for the session timeout is given up. One that does not respond to probes either is given
up much sooner, after a patience that grows where heartbeats came late before, or where the controller itself was late.

How much time this process has really had: time in which it did not run is left out. Pure: the time is an argument.

A controller that did not run for a while (a machine with too much to do, a stopped process) finds heartbeats unread
when it goes on. Silence that is counted in this time is silence that the controller was there to notice.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from millstream.formats.model.identifiers import BrokerId
from millstream.node.metadata.image import MetadataImage

_GAPS = 2
"""Deadline is this many of the longest recent pauses between two heartbeats."""
_GAP_HALF_LIFE_S = 20.0
_LATENESSES = 5
"""Deadline grows by this many times the controller's own average lateness: brokers may be as late, and later."""
_PROBED_S = 0.3
"""How long probes must have gone without a response, however long the broker has been silent before."""


def longest_gap_s(before_s: float, gap_s: float) -> float:
    """The longest recent pause between two contacts, after one more; an old one counts less and less."""
    return max(gap_s, before_s * math.pow(0.5, gap_s / _GAP_HALF_LIFE_S))


@dataclass(slots=True)
class BrokerSession:
    broker_id: BrokerId
    broker_epoch: int
    last_contact_s: float
    metadata_offset: int = -1
    """The last metadata record that the broker said it has applied."""
    shutdown_offset: int | None = None
    """The record after which nobody asks this broker any more: it may stop when all others have applied it."""
    connection: object | None = None
    """The connection that the last heartbeat came over."""
    heard: bool = True
    """False from a controller's takeover until the broker says something."""
    connection_lost: bool = False
    """Whether it has ended, and nothing was heard since."""
    longest_gap_s: float = 0.0
    """The longest recent pause between two heartbeats; less, the longer it is ago."""
    responded_s: float = -math.inf
    """When the broker last responded to a probe."""
    probed_since_s: float | None = None
    """Since when probes are under way; None while there are none."""

    def silence_s(self, now_s: float) -> float:
        """How long neither a heartbeat nor a response to a probe has come."""
        return now_s - max(self.last_contact_s, self.responded_s)

    def patience_s(self, suspect_s: float, lateness_s: float) -> float:
        """How long a silence may be before it means something."""
        return max(suspect_s + _LATENESSES * lateness_s, _GAPS * self.longest_gap_s)

    def is_suspect(self, now_s: float, suspect_s: float, lateness_s: float) -> bool:
        if self.probed_since_s is None or now_s - self.probed_since_s < _PROBED_S + _LATENESSES * lateness_s:
            return False
        return self.silence_s(now_s) >= self.patience_s(suspect_s, lateness_s)


class BrokerSessions:
    def __init__(self) -> None:
        self._sessions: dict[BrokerId, BrokerSession] = {}

    def get(self, broker_id: BrokerId) -> BrokerSession | None:
        return self._sessions.get(broker_id)

    def begin(self, broker_id: BrokerId, broker_epoch: int, now_s: float, *, heard: bool = True) -> BrokerSession:
        """A session of the process that registered in this epoch, in place of any other's."""
        session = self._sessions[broker_id] = BrokerSession(broker_id, broker_epoch, now_s, heard=heard)
        return session

    def touch(self, broker_id: BrokerId, broker_epoch: int, now_s: float, metadata_offset: int) -> BrokerSession:
        session = self._sessions.get(broker_id)
        if session is None or session.broker_epoch != broker_epoch:
            session = self.begin(broker_id, broker_epoch, now_s)
        elif session.heard:
            session.longest_gap_s = longest_gap_s(session.longest_gap_s, now_s - session.last_contact_s)
        session.last_contact_s = now_s
        session.heard = True
        session.connection_lost = False
        session.metadata_offset = max(session.metadata_offset, metadata_offset)
        return session

    def __iter__(self) -> Iterator[BrokerSession]:
        return iter(tuple(self._sessions.values()))

    def end(self, broker_id: BrokerId) -> None:
        self._sessions.pop(broker_id, None)

    def clear(self) -> None:
        self._sessions.clear()

    def is_alive(
        self,
        broker_id: BrokerId,
        now_s: float,
        timeout_s: float,
        takeover_timeout_s: float,
        *,
        same_disk: bool = True,
    ) -> bool:
        """Whether the process that registered last is still there.

        `same_disk`: the process that registers now has the data directory of the earlier one. A directory has one
        process, so the earlier one is probably dead, and the new one need not wait until its session ends. It is proof
        only together with silence, because a directory id can be copied or forged:

        - the connection of the earlier process has ended, or this controller has not heard from it at all: dead;
        - it has been silent for `takeover_timeout_s`: dead. A process that lives sends heartbeats more often.

        A process with another directory may have a living broker's number by mistake. It waits for the whole session,
        or for `takeover_timeout_s` where the earlier process did not turn to this controller after it took over.
        """
        session = self._sessions.get(broker_id)
        if session is None or (same_disk and (session.connection_lost or not session.heard)):
            return False
        is_brief = same_disk or not session.heard
        return now_s - session.last_contact_s < (takeover_timeout_s if is_brief else timeout_s)

    def expired(self, now_s: float, timeout_s: float) -> list[BrokerId]:
        return [each.broker_id for each in self._sessions.values() if now_s - each.last_contact_s >= timeout_s]

    def next_expiry_s(self, timeout_s: float) -> float | None:
        """When the next session runs out, if nothing is heard until then."""
        contacts = [each.last_contact_s for each in self._sessions.values()]
        return min(contacts) + timeout_s if contacts else None

    def others_know(self, image: MetadataImage, broker_id: BrokerId) -> bool:
        """Whether every other active broker has applied the records with which this one's shutdown began."""
        session = self._sessions.get(broker_id)
        if session is None or session.shutdown_offset is None:
            return False
        for broker in image.brokers.values():
            if broker.id == broker_id or not broker.active:
                continue
            other = self._sessions.get(broker.id)
            if other is None or other.metadata_offset < session.shutdown_offset:
                return False
        return True


STEP_S = 0.1
"""How often to call `tick`."""
_MOST_S = 3 * STEP_S
"""How much of the time between two ticks counts at most."""
_MEMORY_S = 5.0
"""Lateness is an average over about this time: one pause says little, a machine with too much to do is late often."""
_MOST_LATENESS_S = 1.0
"""What one tick may add to it: a process that was stopped for long was late once."""


class Attention:
    def __init__(self, now_s: float) -> None:
        self._ticked_s = now_s
        self._counted_s = 0.0
        self._lateness_s = 0.0

    def now_s(self, now_s: float) -> float:
        """The time that counts, at this moment of the loop's time."""
        return self._counted_s + min(max(0.0, now_s - self._ticked_s), _MOST_S)

    @property
    def lateness_s(self) -> float:
        """By how much ticks were late lately, on average."""
        return self._lateness_s

    def tick(self, now_s: float) -> float:
        """The process runs; the time that counts."""
        elapsed_s = max(0.0, now_s - self._ticked_s)
        counted_s = self.now_s(now_s)
        late_s = min(max(0.0, elapsed_s - STEP_S), _MOST_LATENESS_S)
        self._lateness_s += (late_s - self._lateness_s) * STEP_S / _MEMORY_S
        self._ticked_s, self._counted_s = now_s, counted_s
        return counted_s
