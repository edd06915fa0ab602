"""The audit events of the gateway: logins, failed logins, refused requests and changes.

Each event is a line of the log (`millstream.gateway.audit`) and, on a cluster of Millstream, a record of the topic
`__millstream_audit` (docs/audit.md): a thread reports it to a broker (ReportAuditEvents), which accepts it only from
the principals of `millstream.audit.gateways`. A request never waits. Events wait in a queue of limited size while no
broker responds; more are dropped and counted, and a quarter of the queue is for administration alone, because any
caller can cause failed sign-ins and refusals. Where the cluster takes no events (Apache Kafka, or a gateway that is not
in the setting), the log has them all, and the next attempt is a minute later. A response that is lost makes an event
appear twice.

Writing and reading records is not recorded, except that fields were masked. Never with bodies, queries or credentials.
"""

import json
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

from millstream.formats.model.errors import ErrorCode
from millstream.raw_client import Cluster, WireError
from millstream.raw_client.errors import RefusedError, UnsupportedApiError

_log = logging.getLogger("millstream.gateway.audit")
AUTHENTICATION, AUTHORIZATION, ADMINISTRATION = "authentication", "authorization", "administration"
_LONGEST, _LONGEST_NAME, _MOST_NAMES = 200, 60, 10
"""So that an event is always shorter than a broker allows."""
_QUEUE_EVENTS = 5_000
_RESERVED_PART = 4
_BATCH_EVENTS = 100
"""A broker takes so many in a request."""
_GATHER_SECONDS = 0.1
"""Events are gathered for this time, so that a burst is few requests."""
_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 1.0, 10.0
_REFUSED_RETRY_SECONDS = 30.0
"""After a refusal that an administrator must end: the cluster logs and audits each attempt."""
_LOG_ONLY_SECONDS = 60.0
_REPORT_TIMEOUT_SECONDS = 5.0
_CLOSE_TIMEOUT_SECONDS = 1.0
_SAME_AGAIN_SECONDS = 60.0
_MOST_KEPT = 10_000


class NotAcceptedError(Exception):
    """The cluster takes no events of this gateway at present."""


Report = Callable[[Sequence[str], float], int]
"""Sends JSON documents within some seconds; returns how many of them, the first ones, a broker took. NotAcceptedError,
or WireError if it should be tried again."""


def report_to(cluster: Cluster) -> Report:
    def report(documents: Sequence[str], timeout_s: float) -> int:
        try:
            response = cluster.call("report_audit_events", within_s=timeout_s, events=list(documents))
        except UnsupportedApiError as error:
            raise NotAcceptedError(f"the cluster has no audit topic of Millstream: {error}") from error
        if response.error_code:
            message = response.error_message or ErrorCode(response.error_code).name
            if response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                raise NotAcceptedError(message)
            raise RefusedError(message, ErrorCode(response.error_code))
        return int(response.accepted)

    return report


class AuditTrail:
    """Thread safe. Without `report`, or before `start`, events are in the log alone."""

    def __init__(
        self,
        report: Report | None = None,
        *,
        queue_events: int = _QUEUE_EVENTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._report = report
        self._queue_events = queue_events
        self._clock = clock
        self._queue: deque[str] = deque()
        self._seen: OrderedDict[tuple[str, ...], tuple[float, int]] = OrderedDict()
        """When an event was last recorded, and its repetitions since then."""
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._log_only_until = 0.0
        self._told_reason = ""
        self._unreported_drops = 0
        self.reported = 0
        """Events that a broker took."""
        self.log_only = 0
        """Events that the cluster does not take."""
        self.dropped = 0
        """Events that were lost because too many waited, or because they waited at the end of the process."""

    def start(self) -> None:
        if self._report is not None:
            self._thread = threading.Thread(target=self._run, args=(self._report,), name="audit", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Reports what waits, for about a second."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(2 * _CLOSE_TIMEOUT_SECONDS)

    # Recording

    def record(self, kind: str, result: str, user: str, address: str, **more: object) -> None:
        """`result`: success, failure, denied or masked."""
        event: dict[str, object] = {
            "time_ms": time.time_ns() // 1_000_000,
            "kind": kind,
            "result": result,
            "principal": f"User:{_short(user) or 'ANONYMOUS'}",
            "address": _short(address),
        }
        event |= {name: _shown(value) for name, value in more.items() if value not in ("", None)}
        _log.info("audit %s", json.dumps({"version": 1, **event}, separators=(",", ":")))
        with self._changed:
            if self._report is None or self._clock() < self._log_only_until:
                self.log_only += 1
                return
            if not self._has_room(kind):
                if not self._unreported_drops:
                    _log.warning("audit_events_dropped waiting=%d: no broker takes them", len(self._queue))
                self.dropped += 1
                self._unreported_drops += 1
                return
            if self._unreported_drops:
                event["dropped_before"], self._unreported_drops = self._unreported_drops, 0
            self._queue.append(json.dumps(event, ensure_ascii=False, separators=(",", ":")))
            self._changed.notify_all()

    def record_rarely(self, kind: str, result: str, user: str, address: str, **more: str) -> None:
        """The same event is recorded at most once a minute, with the number of its repetitions before (`repeated`).
        For what a caller can cause with every request."""
        key, now = (kind, result, user, address, *more.values()), self._clock()
        with self._changed:
            at, repeated = self._seen.pop(key, (-_SAME_AGAIN_SECONDS, 0))
            is_due = now - at >= _SAME_AGAIN_SECONDS
            self._seen[key] = (now, 0) if is_due else (at, repeated + 1)
            if len(self._seen) > _MOST_KEPT:
                self._seen.popitem(last=False)
        if is_due:
            self.record(kind, result, user, address, **more, **({"repeated": repeated} if repeated else {}))

    def _has_room(self, kind: str) -> bool:
        room = self._queue_events
        return len(self._queue) < (room if kind == ADMINISTRATION else room - room // _RESERVED_PART)

    # Reporting, in the thread

    def _run(self, report: Report) -> None:
        failures = 0
        while self._wait_for_events():
            pause_s = self._try(report)
            failures = failures + 1 if pause_s else 0
            if pause_s:
                self._pause(max(pause_s, min(_RETRY_SECONDS * 2**failures, _LONGEST_RETRY_SECONDS)))
        while self._queue and not self._try(report):
            pass
        self.dropped += len(self._queue)

    def _wait_for_events(self) -> bool:
        """False when the gateway ends."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_closing)
            if not self._is_closing:
                self._changed.wait_for(lambda: len(self._queue) >= _BATCH_EVENTS or self._is_closing, _GATHER_SECONDS)
            return not self._is_closing

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closing, seconds)

    def _try(self, report: Report) -> float:
        """Sends one batch; the pause in seconds after which it should be tried again, 0 if it is done."""
        with self._changed:
            batch = [self._queue[place] for place in range(min(_BATCH_EVENTS, len(self._queue)))]
            timeout_s = _CLOSE_TIMEOUT_SECONDS if self._is_closing else _REPORT_TIMEOUT_SECONDS
        try:
            taken = report(batch, timeout_s)
        except NotAcceptedError as error:
            self._use_log_only(str(error))
            return 0.0
        except RefusedError as error:
            if error.code is not ErrorCode.INVALID_REQUEST:
                self._tell(str(error))
                return _REFUSED_RETRY_SECONDS
            _log.error("audit_events_refused count=%d error=%s", len(batch), error)
            self._remove(len(batch))
            self.dropped += len(batch)
            return 0.0
        except WireError as error:
            self._tell(str(error))
            return _RETRY_SECONDS
        except Exception:  # a mistake of ours: the thread must go on
            _log.exception("audit_events_lost count=%d", len(batch))
            self._remove(len(batch))
            self.dropped += len(batch)
            return 0.0
        self._remove(taken)
        self.reported += taken
        if taken == len(batch):
            self._tell("")
            return 0.0
        return _RETRY_SECONDS

    def _remove(self, count: int) -> None:
        with self._changed:
            for _ in range(count):
                self._queue.popleft()

    def _use_log_only(self, reason: str) -> None:
        with self._changed:
            self._log_only_until = self._clock() + _LOG_ONLY_SECONDS
            self.log_only += len(self._queue)
            self._queue.clear()
        self._tell(reason)

    def _tell(self, reason: str) -> None:
        """Logs a reason once, until it changes."""
        if reason and reason != self._told_reason:
            _log.warning("audit_events_not_reported the log alone has them, or they wait: %s", reason)
        self._told_reason = reason


def _short(text: str, longest: int = _LONGEST) -> str:
    return text[:longest].encode(errors="replace").decode()


def _shown(value: object) -> object:
    if isinstance(value, str):
        return _short(value)
    if isinstance(value, (list, tuple)):
        return [_short(str(each), _LONGEST_NAME) for each in value[:_MOST_NAMES]]
    return value
