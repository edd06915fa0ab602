"""The Quotas page: who is throttled and why, and the quotas of the cluster."""

from nicegui import ui

from millstream.console.formats import count
from millstream.console.frame import Frame, console_page
from millstream.console.live.quotas import QuotaReport, QuotaUsage, read_quotas
from millstream.console.tables import Column, DataTable
from millstream.console.widgets import Stat, card, heading

_LOOK_EVERY_S = 2.0


@console_page("/quotas")
def quotas(frame: Frame) -> None:
    with heading("Quotas", "What users, client ids and addresses may use, and who is throttled"):
        pass
    with card(""), ui.element("div").classes("ms-stats"):
        entities = Stat("entities with quotas", test_id="quota-entities")
        throttled = Stat("throttled clients", test_id="throttled")
        muted = Stat("connections muted now", test_id="muted")
    with card("Usage", note="since the brokers started; a quota is a limit for each broker"):
        usage = DataTable(
            [
                Column("who", "Who", searched=True),
                Column("quota", "Quota", searched=True),
                Column("state", "State", cell="badge"),
                Column("limit", "Limit", _number, right=True),
                Column("rate", "Now", _number, right=True),
                Column("throttles", "Throttles", count, right=True),
                Column("seconds", "Throttled, s", _number, right=True),
            ],
            key="key",
            empty="No client with a quota has sent a request.",
            test_id="quota-usage",
            name="",
        )
    with card("Quotas"):
        table = DataTable(
            [
                Column("entity", "Entity", searched=True),
                Column("quota", "Quota", searched=True),
                Column("value", "Value", _number, right=True),
            ],
            key="key",
            empty="No quotas: every client may use what it wants. Set one with `millstream quota set`.",
            test_id="quotas",
        )
    note = ui.label("").classes("ms-muted")
    is_reading = False

    def show_report(report: QuotaReport) -> None:
        entities.show(count(len(report.entities)))
        throttled.show(count(sum(each.throttles > 0 for each in report.usages)))
        muted.show(count(report.muted))
        usage.update([_usage_row(each) for each in report.usages])
        table.update(
            [
                {"key": f"{row} {key}", "entity": str(row), "quota": key, "value": value}
                for row in report.entities
                for key, value in sorted(row.values.items())
            ]
        )
        note.set_text(f"No metrics of {', '.join(report.silent)}." if report.silent else "")

    async def look() -> None:
        nonlocal is_reading
        if is_reading:
            return
        is_reading = True
        try:
            with frame.reporting("The quotas cannot be read"):
                show_report(await frame.run(read_quotas, frame.console.cluster, frame.snapshot.brokers))
        finally:
            is_reading = False

    ui.timer(_LOOK_EVERY_S, look, immediate=True)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _usage_row(each: QuotaUsage) -> dict[str, object]:
    is_above = each.used > 1
    state = "above the quota" if is_above else "was throttled" if each.throttles else "within the quota"
    tone = "warn" if is_above else "dim" if each.throttles else "good"
    return {
        "key": f"{each.who} {each.quota}",
        "who": each.who,
        "quota": each.quota,
        "state": state,
        "_tones": {"state": tone},
        "limit": each.limit,
        "rate": each.rate,
        "throttles": each.throttles,
        "seconds": each.throttled_s,
    }
