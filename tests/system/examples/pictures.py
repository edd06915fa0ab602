"""Pictures of the examples' results: small, the same bytes for the same rows, readable on light and dark pages."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

_COLOURS = ("#2563eb", "#f59e0b", "#15803d", "#be185d", "#6d28d9")


@contextmanager
def _figure(path: Path, title: str, across: str, up: str) -> Iterator[Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    # Text stays text, and names of parts do not depend on the run.
    with matplotlib.rc_context({"svg.hashsalt": "millstream", "svg.fonttype": "none", "font.size": 9}):
        figure, axes = pyplot.subplots(figsize=(7.2, 3.2))
        yield axes
        axes.set(title=title, xlabel=across, ylabel=up)
        axes.spines[["top", "right"]].set_visible(False)
        figure.tight_layout()
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
    # matplotlib ends lines with blanks, which version control complains about.
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")


def revenue(path: Path, rows: list[dict[str, Any]]) -> None:
    minutes = sorted({row["window_start"] for row in rows})
    begin = datetime.fromisoformat(minutes[0])
    by_shop: dict[str, dict[str, float]] = defaultdict(dict)
    for row in rows:
        by_shop[row["shop"]][row["window_start"]] = float(row["revenue"])
    shops = sorted(by_shop, key=lambda shop: -sum(by_shop[shop].values()))
    with _figure(path, "Revenue per minute", f"minutes after {begin:%H:%M} (event time)", "revenue") as axes:
        across = [(datetime.fromisoformat(minute) - begin).total_seconds() / 60 for minute in minutes]
        layers = [[by_shop[shop].get(minute, 0.0) for minute in minutes] for shop in shops]
        axes.stackplot(across, *layers, labels=shops, colors=_COLOURS, alpha=0.85)
        axes.legend(loc="upper left", ncols=5, frameon=False, fontsize=8)
        axes.set_ylim(top=1.25 * max(sum(column) for column in zip(*layers, strict=True)))


def sessions(path: Path, rows: list[dict[str, Any]]) -> None:
    with _figure(path, "Visits by length and clicks", "minutes from first to last click", "clicks") as axes:
        axes.scatter(
            [row["seconds"] / 60 for row in rows], [row["clicks"] for row in rows], s=14, alpha=0.6, color=_COLOURS[0]
        )


def payments(path: Path, rows: list[dict[str, Any]]) -> None:
    with _figure(path, "How long orders waited for their payment", "minutes", "payments") as axes:
        _bars(axes, [row["seconds_to_pay"] / 60 for row in rows], 0.5)
        axes.axvline(10, color=_COLOURS[3], linestyle="--", linewidth=1)


def countries(path: Path, rows: list[dict[str, Any]]) -> None:
    totals: Counter[str] = Counter()
    for row in rows:
        totals[row["country"]] += row["amount"]
    names = [name for name, _ in totals.most_common()]
    with _figure(path, "Purchases by the customer's country", "", "amount") as axes:
        axes.bar(names, [totals[name] for name in names], color=_COLOURS[0])


def transfers(path: Path, rows: list[dict[str, Any]], rejected: int) -> None:
    with _figure(path, "Where 2,000 transfers went", "transfers", "") as axes:
        large = sum(row["large"] for row in rows)
        names = ["rejected (dead letters)", "copied, 10,000 and more", "copied"]
        counts = [rejected, large, len(rows) - large]
        bars = axes.barh(names, counts, color=(_COLOURS[3], _COLOURS[1], _COLOURS[0]))
        axes.bar_label(bars, padding=3)


def readings(path: Path, rows: Sequence[tuple[Any, ...]]) -> None:
    begin = min(row[1] for row in rows)
    warmth: dict[int, list[float]] = defaultdict(list)
    damp: dict[int, list[float]] = defaultdict(list)
    for _, at, celsius, humidity in rows:
        hour = int((at - begin).total_seconds() // 3600)
        warmth[hour].append(celsius)
        if humidity is not None:
            damp[hour].append(humidity)
    with _figure(path, "Means per hour in the table; humidity came later", "days", "°C") as axes:
        axes.plot(*_means(warmth), color=_COLOURS[0], linewidth=1)
        beside = axes.twinx()
        beside.plot(*_means(damp), color=_COLOURS[1], linewidth=1)
        beside.set_ylabel("humidity")
        beside.set_ylim(0, 1.4)
        beside.spines[["top"]].set_visible(False)
        axes.axvline(3, color="#6b7280", linestyle="--", linewidth=1)


def _means(by_hour: dict[int, list[float]]) -> tuple[list[float], list[float]]:
    hours = sorted(by_hour)
    return [hour / 24 for hour in hours], [sum(by_hour[hour]) / len(by_hour[hour]) for hour in hours]


def _bars(axes: Any, values: Sequence[float], width: float) -> None:
    counts = Counter(int(value / width) for value in values)
    axes.bar([(bin_ + 0.5) * width for bin_ in counts], list(counts.values()), width=0.9 * width, color=_COLOURS[0])
