"""`millstream demo`: a broker, a stream of orders, a pipeline on Spark, and a chart of its result."""

import os
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.pipeline.common import loaded, needs
from millstream.cli.terminal import CommandFailedError
from millstream.common.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from millstream.pipeline.state import QueryProgress

_COLOURS = ("#2563eb", "#f59e0b", "#15803d", "#be185d", "#6d28d9", "#0369a1")
_EXAMPLE = "orders-revenue"
_RESULT_TOPIC = "revenue-per-minute"
_RATE = 300.0
_CLOCK_SPEED = 60.0
"""A minute of event time takes a second."""
_MAX_DURATION_SECONDS = 100.0
"""The demo ends after this time in any case."""


def demo(
    seconds: Annotated[
        float, typer.Option("--seconds", min=1, max=_MAX_DURATION_SECONDS, help="Duration after the first result.")
    ] = 20.0,
    svg: Annotated[Path, typer.Option("--svg", metavar="FILE", help="SVG file for the chart.")] = Path(
        "millstream-demo.svg"
    ),
) -> None:
    """Run a demo: a broker, a stream of orders, a pipeline on Spark with its live view, and a chart at the end.

    Everything except the chart is temporary. The demo ends within two minutes.

    \b
    Examples:
      millstream demo
      millstream demo --seconds 40 --svg revenue.svg
    """
    with needs():
        import pyspark  # noqa: F401  # a missing package is reported before anything is started

        from millstream.pipeline.engine.failures import PipelineFailedError
        from millstream.pipeline.engine.run import RunOptions, run_pipeline
        from millstream.pipeline.engine.supervision import StopSignal
        from millstream.pipeline.project import write_project
    from millstream.client import connect
    from millstream.testing import EmbeddedBroker

    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millstream-demo-")))
        write_project(scratch / "project", _EXAMPLE)
        typer.echo("starting a broker …", err=True)
        broker = stack.enter_context(EmbeddedBroker())
        os.environ["MILLSTREAM_BOOTSTRAP"] = broker.bootstrap_servers
        os.environ["MILLSTREAM_STATE_HOME"] = str(scratch / "state")
        client = stack.enter_context(connect(broker.bootstrap_servers))
        generator = _load_generator(scratch / "project" / "generate.py")
        client.create_topic(generator.TOPIC, partitions=3, exist_ok=True)
        orders = _Orders(client, generator)
        stack.callback(orders.end)
        stop = StopSignal()
        timer = _EndingTimer(stop, seconds)
        stack.callback(timer.cancel)
        orders.start()
        pipeline = loaded(scratch / "project" / "pipeline.yaml")
        typer.echo(f"{_RATE:,.0f} orders a second into {generator.TOPIC!r}; Spark starts …", err=True)
        options = RunOptions(short_lived=True, grace_s=10.0, settings={"spark.sql.shuffle.partitions": "2"})
        try:
            run_pipeline(pipeline, options, stop=stop, listener=timer.look)
        except PipelineFailedError as error:
            raise CommandFailedError(str(error), error.exit_code) from error
        rows = [record.value for record in client.consume(_RESULT_TOPIC, follow=False, decode="json")]
    if not rows:
        raise CommandFailedError(
            f"no minute was complete within {_MAX_DURATION_SECONDS:.0f} s: the machine may be too busy"
        )
    _show(rows, svg)


class _Orders(threading.Thread):
    """Sends orders of the example's generator at a constant rate until `end`."""

    def __init__(self, client: Any, generator: Any) -> None:
        super().__init__(name="demo-orders", daemon=True)
        self._client = client
        self._generator = generator
        self._ended = threading.Event()

    def run(self) -> None:
        from datetime import UTC, datetime, timedelta
        from itertools import islice

        # Event time runs fast and must stay in the past: brokers refuse timestamps far in the future.
        start = datetime.now(UTC) - timedelta(seconds=_CLOCK_SPEED * 1.5 * _MAX_DURATION_SECONDS)
        stream = self._generator.orders(start, timedelta(seconds=_CLOCK_SPEED / _RATE))
        began, sent = time.monotonic(), 0
        while not self._ended.is_set():
            batch = [(order["shop"], order) for order in islice(stream, int(_RATE / 10))]
            sent += self._client.publish_many(self._generator.TOPIC, batch)
            self._ended.wait(max(0.0, began + sent / _RATE - time.monotonic()))

    def end(self) -> None:
        self._ended.set()
        self.join(timeout=10.0)


class _EndingTimer:
    """Stops the pipeline some time after the first result, and after the longest duration in any case."""

    def __init__(self, stop: Any, seconds: float) -> None:
        self._stop = stop
        self._seconds = seconds
        self._last = self._after(_MAX_DURATION_SECONDS)
        self._first: threading.Timer | None = None

    def look(self, progress: "QueryProgress") -> None:
        if self._first is None and (progress.rows_out_total or 0) > 0:
            self._first = self._after(self._seconds)

    def cancel(self) -> None:
        self._last.cancel()
        if self._first is not None:
            self._first.cancel()

    def _after(self, seconds: float) -> threading.Timer:
        timer = threading.Timer(seconds, self._stop.request)
        timer.daemon = True
        timer.start()
        return timer


def _load_generator(path: Path) -> Any:
    import importlib.util

    spec = importlib.util.spec_from_file_location("millstream_demo_generate", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _show(rows: list[dict[str, Any]], file: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    revenue = Revenue.of(rows)
    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False, title="Revenue per minute of event time", title_justify="left")
    table.add_column("minute")
    table.add_column("", style="blue")
    table.add_column("revenue", justify="right")
    for row in bars(revenue):
        table.add_row(*row)
    console.print(table)
    console.print()
    for shop in revenue.shops:
        console.print(f"{shop:12} {revenue.of_shop(shop):>12,.2f}")
    console.print()
    orders = sum(int(row["orders"]) for row in rows)
    console.print(f"{orders:,} orders in {len(revenue.minutes)} complete minutes")
    file.write_text(svg_text(revenue), encoding="utf-8")
    console.print(f"Chart: {file.absolute()}")


# The chart


@dataclass(frozen=True, slots=True)
class Revenue:
    """The revenue of each shop in each minute."""

    minutes: Sequence[str]
    shops: Sequence[str]
    """In descending order of revenue."""
    amounts: dict[tuple[str, str], float]

    @classmethod
    def of(cls, rows: Sequence[dict[str, Any]]) -> "Revenue":
        amounts: dict[tuple[str, str], float] = defaultdict(float)
        for row in rows:
            amounts[row["window_start"], row["shop"]] += float(row["revenue"])
        minutes = sorted({minute for minute, _ in amounts})
        totals: dict[str, float] = defaultdict(float)
        for (_, shop), amount in amounts.items():
            totals[shop] += amount
        return cls(minutes, sorted(totals, key=lambda shop: (-totals[shop], shop)), dict(amounts))

    def of_minute(self, minute: str) -> float:
        return sum(self.amounts.get((minute, shop), 0.0) for shop in self.shops)

    def of_shop(self, shop: str) -> float:
        return sum(self.amounts.get((minute, shop), 0.0) for minute in self.minutes)


def bars(revenue: Revenue, *, last: int = 20, width: int = 40) -> list[tuple[str, str, str]]:
    """For each of the last minutes: its time, a bar, the amount."""
    from millstream.pipeline.skew import bar_text

    minutes = revenue.minutes[-last:]
    most = max((revenue.of_minute(minute) for minute in minutes), default=0.0)
    return [
        (minute[11:16], bar_text(revenue.of_minute(minute), most, width), f"{revenue.of_minute(minute):,.2f}")
        for minute in minutes
    ]


def svg_text(revenue: Revenue, title: str = "Revenue per minute") -> str:
    """An SVG with a column for each minute, divided by shop."""
    width, height, left, top, bottom = 760, 340, 70, 64, 46
    inner_width, inner_height = width - left - 20, height - top - bottom
    most = max((revenue.of_minute(minute) for minute in revenue.minutes), default=0.0) or 1.0
    step = inner_width / max(1, len(revenue.minutes))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(title)}">',
        "<style>text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;fill:#111827}.paper{fill:#fff}"
        "@media (prefers-color-scheme:dark){text{fill:#e5e7eb}.paper{fill:#0f1319}}</style>",
        f'<rect class="paper" width="{width}" height="{height}"/>',
        f'<text x="16" y="24" font-weight="600">{escape(title)}</text>',
    ]
    x = float(left)
    for index, shop in enumerate(revenue.shops):
        parts.append(f'<rect x="{x:.0f}" y="36" width="10" height="10" fill="{_COLOURS[index % len(_COLOURS)]}"/>')
        parts.append(f'<text x="{x + 15:.0f}" y="45">{escape(shop)}</text>')
        x += len(shop) * 7.0 + 40
    for part in range(5):
        amount = most * part / 4
        y = top + inner_height * (1 - part / 4)
        parts.append(f'<text x="{left - 8}" y="{y + 4:.0f}" text-anchor="end">{amount:,.0f}</text>')
        parts.append(f'<path d="M{left},{y:.1f} h{inner_width}" stroke="#9ca3af" stroke-opacity="0.3"/>')
    labelled = max(1, len(revenue.minutes) // 8)
    for column, minute in enumerate(revenue.minutes):
        at = left + column * step
        y = float(top + inner_height)
        for index, shop in enumerate(revenue.shops):
            size = revenue.amounts.get((minute, shop), 0.0) / most * inner_height
            y -= size
            colour = _COLOURS[index % len(_COLOURS)]
            parts.append(
                f'<rect x="{at:.1f}" y="{y:.1f}" width="{step * 0.85:.1f}" height="{size:.1f}" fill="{colour}"/>'
            )
        if column % labelled == 0:
            middle = at + step * 0.42
            parts.append(f'<text x="{middle:.0f}" y="{height - 24}" text-anchor="middle">{minute[11:16]}</text>')
    return "\n".join([*parts, "</svg>", ""])
