"""The Clients page: why it is slow, in one sentence with its evidence, and the clients that push metrics (KIP-714)."""

import time
from collections.abc import Mapping

from nicegui import ui

from millstream.console.formats import count
from millstream.console.frame import Frame, console_page
from millstream.console.tables import Column, DataTable
from millstream.console.widgets import card, heading
from millstream.doctor.diagnosis import ClientReport, Diagnosis, diagnose
from millstream.doctor.evidence import Reading, broker_report, partition_counts, read_clients, read_pages
from millstream.raw_client import Cluster

_LOOK_EVERY_SECONDS = 5.0


@console_page("/clients")
def clients(frame: Frame) -> None:
    with heading("Clients", "Why is it slow? What clients, brokers and disks report"):
        pass
    with card(""):
        sentence = ui.label("Reading the metrics of the brokers …").props("data-testid=diagnosis")
    with card("Findings", note="the largest delay first; of the last seconds"):
        findings = DataTable(
            [
                Column("cause", "Cause", cell="badge"),
                Column("sentence", "What", cell="wrap", searched=True),
                Column("delay", "Delay, ms", _number, right=True),
                Column("evidence", "Evidence", cell="wrap", searched=True),
                Column("advice", "What to do", cell="wrap"),
            ],
            key="key",
            empty="Reading …",
            test_id="findings",
            name="",
        )
    with card("Clients", note="that pushed metrics"):
        table = DataTable(
            [
                Column("client", "Client id", searched=True),
                Column("software", "Software", searched=True),
                Column("who", "Principal", searched=True),
                Column("latency", "Request, ms", _number, right=True),
                Column("queue", "Queue, ms", _number, right=True),
                Column("throttle", "Throttle, ms", _number, right=True),
                Column("batch", "Records/request", _number, right=True),
                Column("rebalance", "Rebalance, ms", _number, right=True),
                Column("age", "Age, s", count, right=True),
            ],
            key="key",
            empty="No client has pushed metrics. `millstream doctor --subscribe` asks all clients for them.",
            test_id="clients",
        )
    note = ui.label("").classes("ms-muted")
    is_reading = False
    before: dict[str, Reading] = {}

    async def look() -> None:
        nonlocal is_reading, before
        if is_reading:
            return
        is_reading = True
        try:
            with frame.reporting("The metrics cannot be read"):
                diagnosis, found, before, silent = await frame.run(_examined, frame.console.cluster, before)
                sentence.set_text(diagnosis.sentence)
                findings.set_empty("Nothing is slow.")
                findings.update(_finding_rows(diagnosis))
                table.update([_client_row(number, each) for number, each in enumerate(found)])
                note.set_text(f"No metrics of {', '.join(silent)}." if silent else "")
        finally:
            is_reading = False

    ui.timer(_LOOK_EVERY_SECONDS, look, immediate=True)


def _examined(
    cluster: Cluster, before: Mapping[str, Reading]
) -> tuple[Diagnosis, list[ClientReport], dict[str, Reading], list[str]]:
    """The first look has nothing to compare with: it waits a second."""
    if not before:
        before, _ = read_pages(cluster)
        time.sleep(1.0)
    after, silent = read_pages(cluster)
    reports = read_clients(cluster)
    brokers = [broker_report(name, before[name], after[name]) for name in after if name in before]
    return diagnose(reports, brokers, partition_counts(cluster)), reports, after, silent


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _finding_rows(diagnosis: Diagnosis) -> list[dict[str, object]]:
    return [
        {
            "key": str(number),
            "cause": each.cause,
            "_tones": {"cause": "warn" if number == 0 else "dim"},
            "sentence": each.sentence,
            "delay": each.delay_ms,
            "evidence": "; ".join(each.evidence),
            "advice": each.advice,
        }
        for number, each in enumerate(diagnosis.findings)
    ]


def _client_row(number: int, client: ClientReport) -> dict[str, object]:
    metrics = client.metrics

    def first(*names: str) -> float | None:
        return next((metrics[name] for name in names if name in metrics), None)

    return {
        "key": f"{client.client_id} {number}",
        "client": client.client_id,
        "software": client.software,
        "who": f"{client.principal} {client.address}",
        "latency": first(
            "producer.request.latency.avg",
            "producer.node.request.latency.avg",
            "consumer.fetch.manager.fetch.latency.avg",
            "consumer.node.request.latency.avg",
        ),
        "queue": first("producer.record.queue.time.avg"),
        "throttle": first("producer.produce.throttle.time.avg", "consumer.fetch.manager.fetch.throttle.time.avg"),
        "batch": first("producer.records.per.request.avg"),
        "rebalance": first("consumer.coordinator.rebalance.latency.avg"),
        "age": int(client.age_s),
    }
