"""The Overview page: throughput, latency, brokers, quorum and problems."""

from nicegui import ui

from millstream.console.connect import FirstSteps, user_topics
from millstream.console.console import href
from millstream.console.formats import count, milliseconds, rate, short_count, size
from millstream.console.frame import Frame, console_page
from millstream.console.live.problems import Problem, Severity, broker_state, problems_of
from millstream.console.live.snapshot import Snapshot
from millstream.console.tables import Column, DataTable
from millstream.console.widgets import Stat, TimeChart, card, grid, heading

_WINDOW_SECONDS = 300.0
_OLD_SECONDS = 15.0
"""A rate that is older is not shown as the current one."""
_TONES = {Severity.CRITICAL: "bad", Severity.WARNING: "warn", Severity.INFO: "info"}
_ICONS = {Severity.CRITICAL: "error", Severity.WARNING: "warning", Severity.INFO: "info"}


@console_page("/")
def overview(frame: Frame) -> None:
    with heading("Overview"):
        pass
    guide = ui.element("div").classes("ms-stack").props("data-testid=first-steps")
    _offer_first_steps(frame, guide)
    with card(""), ui.element("div").classes("ms-stats"):
        stats = {
            "records": Stat("records/s in", test_id="stat-records"),
            "bytes_in": Stat("bytes/s in"),
            "bytes_out": Stat("bytes/s out"),
            "produce": Stat("produce p99"),
            "brokers": Stat("brokers up", test_id="stat-brokers"),
            "topics": Stat("topics"),
            "partitions": Stat("partitions"),
            "groups": Stat("groups"),
            "lag": Stat("total lag"),
        }
    with card("Health"):
        health = ui.element("div").classes("ms-problems").props("data-testid=problems")
    with grid("two"):
        with card("Records written", note="per second"):
            records = TimeChart(["records/s"], test_id="chart-records")
        with card("Bytes", note="per second, as counted by the brokers"):
            traffic = TimeChart(["in", "out"], test_id="chart-bytes")
        with card("Produce latency", note="ms, of the slowest broker"):
            latency = TimeChart(["p99", "p50"], test_id="chart-latency")
            absent = ui.label("").classes("ms-muted")
        with card("Busiest topics", note="records per second"):
            busiest = DataTable(
                [
                    Column("topic", "Topic", cell="link"),
                    Column("rate", "Records/s", rate, right=True),
                    Column("size", "Size", size, right=True),
                ],
                key="topic",
                empty="No topics yet",
                filtered=False,
                sort_by="rate",
                descending=True,
                test_id="busiest",
            )
    with grid("two"):
        with card("Brokers"):
            brokers = DataTable(
                [
                    Column("id", "Broker", cell="link", width=84),
                    Column("state", "State", cell="badge", width=108),
                    Column("address", "Address", cell="nowrap"),
                    Column("leads", "Leaders", count, right=True, width=92),
                    Column("disk", "On disk", size, right=True, width=92),
                ],
                key="id",
                empty="No brokers",
                filtered=False,
                test_id="brokers",
            )
        with card("Metadata quorum"):
            quorum = DataTable(
                [
                    Column("id", "Node", width=84),
                    Column("role", "Role", cell="badge"),
                    Column("end", "Log end", count, right=True),
                    Column("lag", "Lag", count, right=True),
                ],
                key="id",
                empty="No quorum information",
                filtered=False,
                test_id="quorum",
            )

    shown: list[Problem] | None = None

    def show(snapshot: Snapshot) -> None:
        nonlocal shown
        history = frame.console.watcher.history
        since = snapshot.at - _WINDOW_SECONDS
        _show_stats(stats, snapshot, history.records_in.last(snapshot.at - _OLD_SECONDS))
        found = problems_of(snapshot)
        if found != shown and snapshot.number:
            shown = found
            _show_problems(health, found)
        records.update({"records/s": history.records_in.points(since)})
        traffic.update({"in": history.bytes_in.points(since), "out": history.bytes_out.points(since)})
        latency.update({"p99": history.produce_p99_ms.points(since), "p50": history.produce_p50_ms.points(since)})
        absent.set_text(
            "" if snapshot.metrics or not snapshot.number else
            "No broker serves metrics (GET /metrics on its Kafka port), so bytes and latency are unknown."
        )  # fmt: skip
        brokers.update(broker_rows(snapshot))
        quorum.update(quorum_rows(snapshot))
        ranked = sorted(snapshot.rates, key=lambda name: -snapshot.rates[name])[:8]
        busiest.update(
            [
                {
                    "topic": name,
                    "rate": snapshot.rates[name],
                    "size": snapshot.size(snapshot.topics[name]),
                    "_href": href("/topics", topic=name),
                }
                for name in ranked
                if name in snapshot.topics
            ]
        )

    frame.live(show)


def _offer_first_steps(frame: Frame, box: ui.element) -> None:
    """On the overview of a cluster without topics. They stay when the first topic is made."""
    is_offered = False

    def look(snapshot: Snapshot) -> None:
        nonlocal is_offered
        if is_offered or not snapshot.topics_at or user_topics(snapshot):
            return
        is_offered = True
        with box:
            ui.label("This cluster has no topics yet").classes("ms-card-title")
            FirstSteps(frame)

    frame.live(look)


def _show_stats(stats: dict[str, Stat], snapshot: Snapshot, records: float | None) -> None:
    measured = snapshot.metrics.values()
    stats["records"].show("–" if records is None else short_count(records))
    for name in ("bytes_in", "bytes_out"):
        known = [each[name] for each in measured if name in each]
        stats[name].show(size(sum(known)) if known else "–")
    slowest = [each["produce_p99_ms"] for each in measured if "produce_p99_ms" in each]
    stats["produce"].show(milliseconds(max(slowest)) if slowest else "–")
    up = sum(broker.is_up for broker in snapshot.brokers)
    stats["brokers"].show(f"{up} / {len(snapshot.brokers)}", "bad" if up < len(snapshot.brokers) else "")
    stats["topics"].show(count(len(snapshot.topics)))
    stats["partitions"].show(count(len(snapshot.partitions)))
    stats["groups"].show(count(len(snapshot.groups)) if snapshot.groups_known else "–")
    stats["lag"].show(short_count(sum(group.lag for group in snapshot.groups.values())))


def _show_problems(box: ui.element, found: list[Problem]) -> None:
    box.clear()
    with box:
        if all(problem.severity is Severity.INFO for problem in found):
            with ui.element("div").classes("ms-problem ms-good"):
                ui.icon("check_circle")
                ui.label("The cluster is healthy").classes("ms-problem-what")
                ui.label("All brokers respond. All partitions have a leader, and all replicas are in sync.")
        for problem in found:
            with ui.element("div").classes(f"ms-problem ms-{_TONES[problem.severity]}"):
                ui.icon(_ICONS[problem.severity])
                ui.label(problem.what).classes("ms-problem-what")
                ui.label(problem.why)
                ui.label(problem.next_step).classes("ms-problem-next")


def broker_rows(snapshot: Snapshot) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for broker in snapshot.brokers:
        state, tone = broker_state(snapshot, broker)
        disk = snapshot.disks.get(broker.id)
        rows.append(
            {
                "id": broker.id,
                "state": state,
                "_tones": {"state": tone},
                "address": broker.address,
                "rack": broker.rack or "",
                "leads": snapshot.leader_counts.get(broker.id, 0),
                "replicas": snapshot.replica_counts.get(broker.id, 0),
                "disk": disk.used_bytes if disk is not None else None,
                "_href": href("/brokers", broker=str(broker.id)),
            }
        )
    return rows


def quorum_rows(snapshot: Snapshot) -> list[dict[str, object]]:
    if snapshot.quorum is None:
        return []
    return [
        {
            "id": node.id,
            "role": "leader" if node.is_leader else "voter" if node.is_voter else "observer",
            "_tones": {"role": "good" if node.is_leader else "info" if node.is_voter else "dim"},
            "end": max(0, node.log_end_offset),
            "lag": node.lag,
            "caught_up": node.behind_ms,
        }
        for node in snapshot.quorum.nodes
    ]
