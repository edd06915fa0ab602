"""Progress of a running pipeline for people: a live table in a terminal, plain lines otherwise."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from millstream.pipeline.state import QueryProgress

_LINE_EVERY_SECONDS = 10.0
_NAMES = ("sink", "source")
_LONG_COLUMNS = ("state", "watermark")
_COLUMNS = ("sink", "source", "rows/s in", "lag", "rows/s out", "rows out", "batch", "took", *_LONG_COLUMNS)
_WIDE = 112
"""In a narrower terminal, state and watermark are shown below the table."""


class LiveView:
    """Redraws a table of all queries; without a terminal, prints a line from time to time."""

    def __init__(self, title: str, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or Console(stderr=not sys.stdout.isatty(), highlight=False)
        self._title = title
        self._clock = clock
        self._began = clock()
        self._said: dict[str, float] = {}
        self._queries: dict[str, QueryProgress] = {}
        self._dead_letters: Mapping[str, int] = {}
        self._last_reason: str | None = None
        self._note = "starting Spark"
        self._live: Live | None = None

    def __enter__(self) -> "LiveView":
        if self._console.is_terminal:
            self._live = Live(
                console=self._console, get_renderable=self.render, refresh_per_second=4, redirect_stderr=False
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def note(self, text: str) -> None:
        """Shows the phase: starting, running, stopping."""
        self._note = text
        if self._live is None:
            self._console.print(f"{self._title}: {text}")

    def say(self, text: str) -> None:
        """A line that stays, above the table."""
        self._console.print(f"{self._title}: {text}", soft_wrap=True)

    def show(self, progress: QueryProgress) -> None:
        self._queries[progress.query] = progress
        if self._live is None and self._is_time_for(progress):
            self._console.print(_line(progress), soft_wrap=True)

    def show_dead_letters(self, by_step: Mapping[str, int], last_reason: str | None) -> None:
        self._dead_letters, self._last_reason = by_step, last_reason

    def show_rows(
        self, sink: str, batch: int, columns: Sequence[str], rows: Sequence[Sequence[str]], total: int
    ) -> None:
        """Prints rows of a console sink, above the table."""
        self._console.print(f"{sink}, batch {batch}", style="bold")
        table = Table(box=None, pad_edge=False)
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*row)
        self._console.print(table)
        if total > len(rows):
            self._console.print(f"… and {total - len(rows):,} more rows")

    def _is_time_for(self, progress: QueryProgress) -> bool:
        now = self._clock()
        if progress.active and now - self._said.get(progress.query, -_LINE_EVERY_SECONDS) < _LINE_EVERY_SECONDS:
            return False
        self._said[progress.query] = now
        return True

    def render(self) -> RenderableType:
        wide = self._console.width >= _WIDE
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        for name in _COLUMNS if wide else _COLUMNS[: -len(_LONG_COLUMNS)]:
            # Only names may be truncated, never numbers.
            if name in _NAMES:
                table.add_column(name, overflow="ellipsis")
            elif name == "watermark":
                table.add_column(name, no_wrap=True)
            else:
                table.add_column(name if wide else name.replace(" ", "\n"), justify="right", no_wrap=True)
        for row in self._all_rows():
            table.add_row(*(row if wide else row[: -len(_LONG_COLUMNS)]))
        seconds = int(self._clock() - self._began)
        head = Text.assemble((self._title, "bold"), f"  {self._note}  {seconds // 60}:{seconds % 60:02}")
        parts: list[RenderableType] = [head]
        if self._queries:
            parts.append(table)
            if not wide:
                parts += [Text(line) for line in map(_state_line, self._queries.values()) if line]
        if self._dead_letters:
            shown = ", ".join(f"{step} {count:,}" for step, count in self._dead_letters.items())
            parts.append(
                Text(f"dead letters: {shown}" + (f" (last: {self._last_reason})" if self._last_reason else ""))
            )
        broken = [rule for each in self._queries.values() for rule in each.expectations if rule.violations_total]
        if broken:
            shown = ", ".join(f"{rule.part}.{rule.rule} {rule.violations_total:,} ({rule.action})" for rule in broken)
            parts.append(Text(f"expectations that are not met: {shown}"))
        late = sum(progress.dropped_late_rows for progress in self._queries.values())
        if late:
            parts.append(Text(f"dropped as too late: {late:,} rows"))
        parts += [Text(f"{each.sink}: {each.error}", style="red") for each in self._queries.values() if each.error]
        return Group(*parts)

    def _all_rows(self) -> list[list[str]]:
        return [row for progress in self._queries.values() for row in _rows_of_outputs(progress)]


def _rows_of_outputs(progress: QueryProgress) -> list[list[str]]:
    """A row for each output of a shared query; what it reads is in the first."""
    first, *others = progress.by_output
    rows = _rows(first)
    for each in others:
        rate = "" if each.rows_out_per_second is None else f"{each.rows_out_per_second:,.0f}"
        rows.append([each.sink, "", "", "", rate, f"{each.rows_out_total or 0:,}", "", "", "", ""])
    return rows


def _rows(progress: QueryProgress) -> list[list[str]]:
    own = [
        "" if progress.rows_out_per_second is None else f"{progress.rows_out_per_second:,.0f}",
        "" if progress.rows_out_total is None else f"{progress.rows_out_total:,}",
        "" if progress.batch < 0 else f"{progress.batch}",
        "" if progress.batch_ms is None else f"{progress.batch_ms / 1000:.1f} s",
        _state(progress),
        _watermark(progress),
    ]
    if not progress.sources:
        return [[progress.sink, "", "", "", *own]]
    rows = []
    for index, source in enumerate(progress.sources):
        lag = "" if source.lag is None else f"{source.lag:,}"
        here = [source.source, f"{source.rows_per_second:,.0f}", lag]
        rows.append([progress.sink if index == 0 else "", *here, *(own if index == 0 else [""] * len(own))])
    return rows


def _state(progress: QueryProgress) -> str:
    if progress.state_rows is None:
        return ""
    return f"{progress.state_rows:,} / {size_text(progress.state_bytes or 0)}"


def _watermark(progress: QueryProgress) -> str:
    """To the second: 2026-01-31 12:00:00."""
    return (progress.watermark or "")[:19].replace("T", " ")


def _state_line(progress: QueryProgress) -> str:
    """State and watermark, for a narrow terminal."""
    state = f"state {_state(progress)}" if progress.state_rows is not None else ""
    watermark = f"watermark {_watermark(progress)}" if progress.watermark else ""
    shown = ", ".join(filter(None, (state, watermark)))
    return f"{progress.sink}: {shown}" if shown else ""


def size_text(size: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1024 or unit == "GB":
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    raise AssertionError


def _line(progress: QueryProgress) -> str:
    """One line for logs."""
    words = [f"{progress.sink}: batch {progress.batch}"]
    for source in progress.sources:
        lag = "" if source.lag is None else f", lag {source.lag:,}"
        words.append(f"{source.source} {source.rows_per_second:,.0f} rows/s{lag}")
    for rule in progress.expectations:
        if rule.violations_total:
            words.append(f"{rule.part}.{rule.rule} not met {rule.violations_total:,} times ({rule.action})")
    if progress.rows_out_total is not None:
        words.append(f"out {progress.rows_out_total:,}")
    if progress.batch_ms is not None:
        words.append(f"took {progress.batch_ms} ms")
    if progress.state_rows is not None:
        words.append(f"state {progress.state_rows:,} rows")
    if progress.watermark:
        words.append(f"watermark {progress.watermark}")
    if progress.error:
        words.append(f"failed: {progress.error}")
    elif not progress.active:
        words.append("ended")
    return "; ".join(words)
