"""Sessions of brokers, kept alive by heartbeats. Pure: the time is an argument.

A broker without heartbeats for the session timeout is fenced. A broker that does not respond to probes either is fenced
much earlier. That time is longer if its heartbeats, or the controller itself, were late before.

Sessions are measured in running time: time in which this process did not run does not count. A controller that was
stopped, or that runs on an overloaded machine, finds unread heartbeats when it continues. Only silence that it was able
to notice counts.
"""

import math
from collections.abc import Iterator

from millstream.common.lazy_dataclass import dataclass
from millstream.formats.model.identifiers import BrokerId
from millstream.node.metadata.image import MetadataImage

_GAPS = 2
"""The allowed silence is at least this many times the longest recent pause between two heartbeats."""
_GAP_HALF_LIFE_SECONDS = 20.0
_LATENESSES = 5
"""The allowed silence grows by this many times the controller's own average lateness: brokers may be later."""
_PROBED_SECONDS = 0.3
"""The minimum time of probes without a response, however long the broker has been silent before."""


def longest_gap_s(before_s: float, gap_s: float) -> float:
    """The longest recent pause between two contacts, updated with a new one. Old pauses decay."""
    return max(gap_s, before_s * math.pow(0.5, gap_s / _GAP_HALF_LIFE_SECONDS))


@dataclass(slots=True)
class BrokerSession:
    broker_id: BrokerId
    broker_epoch: int
    last_contact_s: float
    metadata_offset: int = -1
    """The offset of the last metadata record that the broker has applied, by its heartbeats."""
    shutdown_offset: int | None = None
    """The offset of the last record of its controlled shutdown. It may stop when all other brokers have applied it."""
    connection: object | None = None
    """The connection of the last heartbeat."""
    heard: bool = True
    """False from a controller's takeover until the broker's first request."""
    connection_lost: bool = False
    """Whether this connection has ended, without a heartbeat since."""
    longest_gap_s: float = 0.0
    """The longest recent pause between two heartbeats. It decays with time."""
    responded_s: float = -math.inf
    """When the broker last responded to a probe."""
    probed_since_s: float | None = None
    """The start of the probes in progress, or None."""

    def silence_s(self, now_s: float) -> float:
        """The time since the last heartbeat or response to a probe."""
        return now_s - max(self.last_contact_s, self.responded_s)

    def allowed_silence_s(self, suspect_s: float, lateness_s: float) -> float:
        """The silence after which the broker is suspected."""
        return max(suspect_s + _LATENESSES * lateness_s, _GAPS * self.longest_gap_s)

    def is_suspect(self, now_s: float, suspect_s: float, lateness_s: float) -> bool:
        if self.probed_since_s is None or now_s - self.probed_since_s < _PROBED_SECONDS + _LATENESSES * lateness_s:
            return False
        return self.silence_s(now_s) >= self.allowed_silence_s(suspect_s, lateness_s)


class BrokerSessions:
    def __init__(self) -> None:
        self._sessions: dict[BrokerId, BrokerSession] = {}

    def get(self, broker_id: BrokerId) -> BrokerSession | None:
        return self._sessions.get(broker_id)

    def begin(self, broker_id: BrokerId, broker_epoch: int, now_s: float, *, heard: bool = True) -> BrokerSession:
        """Starts a session for the process with this broker epoch. It replaces any earlier session."""
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
        """Whether the process that registered last is still running.

        `same_disk`: the new process has the data directory of the earlier one. A directory is used by one process, so
        the earlier process is probably dead, and the new one need not wait until its session ends. A directory id can
        be copied or forged, so it counts only together with silence:

        - the connection of the earlier process has ended, or this controller got no request from it: dead;
        - no heartbeat for `takeover_timeout_s`: dead. A running process sends heartbeats more often.

        A process with another directory may have the id of a running broker by mistake. It waits for the whole session,
        or for `takeover_timeout_s` if the earlier process sent nothing to this controller since its takeover.
        """
        session = self._sessions.get(broker_id)
        if session is None or (same_disk and (session.connection_lost or not session.heard)):
            return False
        is_brief = same_disk or not session.heard
        return now_s - session.last_contact_s < (takeover_timeout_s if is_brief else timeout_s)

    def expired(self, now_s: float, timeout_s: float) -> list[BrokerId]:
        return [each.broker_id for each in self._sessions.values() if now_s - each.last_contact_s >= timeout_s]

    def next_expiry_s(self, timeout_s: float) -> float | None:
        """The time at which the next session expires if no heartbeat arrives."""
        contacts = [each.last_contact_s for each in self._sessions.values()]
        return min(contacts) + timeout_s if contacts else None

    def others_caught_up(self, image: MetadataImage, broker_id: BrokerId) -> bool:
        """Whether every other active broker has applied the records of this broker's controlled shutdown."""
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


STEP_SECONDS = 0.1
"""The interval between two calls of `tick`."""
_MAX_STEP_SECONDS = 3 * STEP_SECONDS
"""The maximum time between two ticks that counts."""
_MEMORY_SECONDS = 5.0
"""Lateness is an average over about this time: a single pause says little, an overloaded machine is late often."""
_MAX_LATENESS_SECONDS = 1.0
"""The maximum lateness of one tick: a process that was stopped for long was late only once."""


class RunningTime:
    def __init__(self, now_s: float) -> None:
        self._ticked_s = now_s
        self._counted_s = 0.0
        self._lateness_s = 0.0

    def now_s(self, now_s: float) -> float:
        """The running time at this time of the loop."""
        return self._counted_s + min(max(0.0, now_s - self._ticked_s), _MAX_STEP_SECONDS)

    @property
    def lateness_s(self) -> float:
        """The average lateness of recent ticks."""
        return self._lateness_s

    def tick(self, now_s: float) -> float:
        """Called every STEP_SECONDS while the process runs. Returns the running time."""
        elapsed_s = max(0.0, now_s - self._ticked_s)
        counted_s = self.now_s(now_s)
        late_s = min(max(0.0, elapsed_s - STEP_SECONDS), _MAX_LATENESS_SECONDS)
        self._lateness_s += (late_s - self._lateness_s) * STEP_SECONDS / _MEMORY_SECONDS
        self._ticked_s, self._counted_s = now_s, counted_s
        return counted_s
