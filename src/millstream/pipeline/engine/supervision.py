"""Supervises the queries of a running pipeline: reports progress, stops them after a batch, ends all if one fails."""

import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from millstream.pipeline.engine.failures import Part, PartFailedError, spark_reason
from millstream.pipeline.engine.progress import ProgressTracker, Report
from millstream.pipeline.engine.queries import StartedQuery
from millstream.pipeline.state import QueryProgress
from millstream.spark.session.session import SLOW_PYTHON

_POLL_SECONDS = 0.25
_STARTS = 9
# A query starts a Python process for each source, which may be late on a busy machine (SLOW_PYTHON): then it is started
# again. So few queries are started at once.


class RunResult(Enum):
    """How a run ended."""

    FINISHED = "all available records were processed"
    STOPPED = "stopped"


class StopMode(Enum):
    """How a run is requested to stop."""

    NONE = 0
    AFTER_BATCH = 1
    NOW = 2


class StopSignal:
    """A request to stop, by signals, `pipeline stop` or tests; a second request means now."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._mode = StopMode.NONE

    def request(self) -> None:
        self._mode = StopMode.AFTER_BATCH if self._mode is StopMode.NONE else StopMode.NOW
        self._event.set()

    @property
    def is_requested(self) -> bool:
        return self._mode is not StopMode.NONE

    @property
    def mode(self) -> StopMode:
        return self._mode

    def wait(self, seconds: float) -> None:
        if self._mode is StopMode.NONE:
            self._event.wait(seconds)
        else:
            time.sleep(seconds)


@dataclass
class Watched:
    """A query and its progress."""

    query: StartedQuery
    book: ProgressTracker
    start_again: Callable[[], StartedQuery]
    build_again: Callable[[], StartedQuery]
    starts_left: int = _STARTS
    stopping_since_batch: int | None = None
    outdated_since_batch: int | None = None
    ended: bool = False

    @property
    def part(self) -> Part:
        return self.query.plan.part

    def restarted(self, query: StartedQuery) -> None:
        self.query = query
        self.book.fan_out = query.fan_out


class Supervisor:
    """`watch` returns when all queries have ended, and raises if one failed."""

    def __init__(
        self,
        *,
        stop: StopSignal,
        stop_requested: Callable[[], bool],
        report: Callable[[QueryProgress, Report | None], None],
        grace_s: float = 120.0,
        tick: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watched: list[Watched] = []
        self._stop = stop
        self._stop_requested = stop_requested
        self._report = report
        self._grace_s = grace_s
        self._tick = tick
        self._clock = clock
        self._stopping_since: float | None = None

    def add(self, watched: Watched) -> None:
        """Adds a started query; waits while too many queries are initialising."""
        self._watched.append(watched)
        at_once = max(1, (os.cpu_count() or 2) // 2)
        while self._initialising() >= at_once and self._stop.mode is StopMode.NONE:
            self._tick()
            self._stop.wait(_POLL_SECONDS / 4)

    def watch(self) -> RunResult:
        while True:
            for each in self._watched:
                if not each.ended:
                    self._look_at(each)
            if all(each.ended for each in self._watched):
                return RunResult.FINISHED if self._stopping_since is None else RunResult.STOPPED
            if self._stop.mode is StopMode.NONE and self._stop_requested():
                self._stop.request()
            if self._stop.mode is not StopMode.NONE:
                self._go_on_stopping()
            self._tick()
            self._stop.wait(_POLL_SECONDS)

    def abandon(self) -> None:
        """Stops all running queries after a failure."""
        for each in self._watched:
            if not each.ended:
                each.ended = True
                _stop_quietly(each.query)
                self._say(each, None)

    def _initialising(self) -> int:
        return sum(1 for each in self._watched if not each.ended and _is_initialising(each.query))

    def _look_at(self, each: Watched) -> None:
        handle = each.query.handle
        active = handle.isActive
        self._take_reports(each)
        if active:
            self._rebuild_if_outdated(each)
            return
        error = handle.exception()
        if error is not None:
            if SLOW_PYTHON in str(error) and each.starts_left > 0 and self._stop.mode is StopMode.NONE:
                if self._initialising() == 0:
                    each.starts_left -= 1
                    each.restarted(each.start_again())
                return
            reason = spark_reason(error)
            each.ended = True
            self._say(each, reason)
            raise PartFailedError(each.part, reason) from error
        each.ended = True
        self._say(each, None)

    def _rebuild_if_outdated(self, each: Watched) -> None:
        """Rebuilds a query between two batches if a table that it joins has changed."""
        tables = each.query.frames.tables
        if self._stop.mode is not StopMode.NONE or not tables.are_outdated():
            return
        if each.outdated_since_batch is None:
            each.outdated_since_batch = each.book.newest_batch
        between = not each.query.handle.status["isTriggerActive"]
        if between or each.book.newest_batch > each.outdated_since_batch:
            _stop_quietly(each.query)
            self._take_reports(each)
            tables.forget()
            each.outdated_since_batch = None
            each.restarted(each.build_again())

    def _take_reports(self, each: Watched) -> None:
        newest = _as_report(each.query.handle.lastProgress)
        if newest is None:
            return
        missed = int(newest["batchId"]) - each.book.newest_batch > 1
        reports = [newest]
        if missed:
            reports = [report for report in map(_as_report, each.query.handle.recentProgress) if report is not None]
        for report in reports:
            if each.book.add(report):
                self._report(each.book.current, report)

    def _go_on_stopping(self) -> None:
        """Stops each query between two batches: when it waits for data, or has just reported one."""
        now = self._clock()
        if self._stopping_since is None:
            self._stopping_since = now
            for each in self._watched:
                each.stopping_since_batch = each.book.newest_batch
        timeout_is_over = self._stop.mode is StopMode.NOW or now - self._stopping_since > self._grace_s
        for each in self._watched:
            if each.ended:
                continue
            assert each.stopping_since_batch is not None
            between = not each.query.handle.status["isTriggerActive"]
            if between or timeout_is_over or each.book.newest_batch > each.stopping_since_batch:
                _stop_quietly(each.query)
                self._take_reports(each)
                each.ended = True
                self._say(each, None)

    def _say(self, each: Watched, error: str | None) -> None:
        each.book.end(error)
        each.query.frames.tables.forget()
        self._report(each.book.current, None)


def _is_initialising(query: StartedQuery) -> bool:
    return query.handle.isActive and str(query.handle.status["message"]).startswith("Initializing")


def _as_report(progress: Any) -> Report | None:
    if progress is None:
        return None
    text = getattr(progress, "json", None)
    found: Report = json.loads(text) if isinstance(text, str) else progress
    return found


def _stop_quietly(query: StartedQuery) -> None:
    """Stops a query. Errors of the interruption are ignored; failures were checked before."""
    try:
        query.handle.stop()
    except Exception as error:
        if type(error).__module__.split(".")[0] not in ("py4j", "pyspark"):
            raise
