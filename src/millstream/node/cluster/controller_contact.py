"""Whether this broker is in touch with the controller: if it is not, others may lead what it believes to lead.

A leader that was cut off does not know that it was fenced. By Kafka's rules it goes on to respond from its log, and
some of its responses are final for a client: a sequence that is out of order, an offset that is out of range. Another
leader may have what this one lacks. So a leader that is not in touch gives no such response. It says that it does not
lead, and the client looks for the leader (ADR 23).

A broker is in touch if its last heartbeat was responded to, and its copy of the metadata was complete, a short time
ago. Both count from when it asked, not from when it got the response: a process that was stopped finds old responses.
"""

import math
from collections.abc import Callable

_METADATA_S = 1.1
"""The leader of the quorum holds a fetch for half a second, so the last one with a response may be a second old."""


class ControllerContact:
    def __init__(
        self, now: Callable[[], float], limit_s: Callable[[], float], metadata_as_of_s: Callable[[], float]
    ) -> None:
        """`metadata_as_of_s` says until when all committed metadata was known here, in the time of `now`."""
        self._now = now
        self._limit_s = limit_s
        self._metadata_as_of_s = metadata_as_of_s
        self._heard_s = -math.inf

    def heard(self, asked_s: float, *, is_fenced: bool) -> None:
        """The controller has responded to a heartbeat that was sent then."""
        self._heard_s = -math.inf if is_fenced else asked_s

    @property
    def is_lost(self) -> bool:
        now, limit_s = self._now(), self._limit_s()
        return now - self._heard_s > limit_s or now - self._metadata_as_of_s() > max(limit_s, _METADATA_S)
