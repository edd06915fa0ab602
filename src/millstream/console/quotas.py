"""The Quotas page: who is throttled and why; lists, sets and removes the quotas of the cluster."""

from collections.abc import Sequence

from nicegui import ui

from millstream.admin.quotas import (
    DEFAULT_NAME,
    OF_ADDRESSES,
    UNITS,
    Entity,
    EntityQuotas,
    QuotaAdmin,
    entity_text,
    make_entity,
    read_value,
)
from millstream.console.console import UserError
from millstream.console.formats import count, plural
from millstream.console.frame import Frame, console_page
from millstream.console.live.quotas import QuotaReport, QuotaUsage, read_quotas
from millstream.console.tables import Column, DataTable
from millstream.console.visitor import Action
from millstream.console.widgets import FieldErrors, FormValues, Stat, card, dialog, heading, send_form
from millstream.raw_client import WireError

_LOOK_EVERY_SECONDS = 2.0


@console_page("/quotas")
def quotas(frame: Frame) -> None:
    view = _QuotaView(frame)
    ui.timer(_LOOK_EVERY_SECONDS, view.look, immediate=True)


class _QuotaView:
    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._is_reading = False
        self._entities: dict[str, tuple[EntityQuotas, str]] = {}
        with heading("Quotas", "What users, client ids and addresses may use, and who is throttled"):
            button = ui.button("Set quota", icon="add", on_click=self._open_form)
            frame.offer(Action.CHANGE_QUOTAS, button).props("unelevated no-caps data-testid=open-quota")
        with card(""), ui.element("div").classes("ms-stats"):
            self._entity_count = Stat("entities with quotas", test_id="quota-entities")
            self._throttled = Stat("throttled clients", test_id="throttled")
            self._muted = Stat("connections muted now", test_id="muted")
        with card("Usage", note="since the brokers started; a quota is a limit for each broker"):
            self._usage = DataTable(
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
            may_change = frame.may(Action.CHANGE_QUOTAS)
            self._table = DataTable(
                [
                    Column("entity", "Entity", searched=True),
                    Column("quota", "Quota", searched=True),
                    Column("value", "Value", _number, right=True, width=170),
                    Column("unit", "Unit"),
                ],
                key="key",
                empty="No quotas: every client may use what it wants."
                + (" Set one here, or with `millstream quota set`." if may_change else ""),
                test_id="quotas",
                on_select=self._select if may_change else None,
            )
            with self._table.head:
                self._bulk = ui.button("", icon="delete_outline", on_click=self._remove).props(
                    "outline dense color=negative no-caps data-testid=remove-quotas"
                )
            self._bulk.set_visibility(False)
        self._note = ui.label("").classes("ms-muted")

    async def look(self) -> None:
        if self._is_reading:
            return
        self._is_reading = True
        try:
            with self._frame.reporting("The quotas cannot be read"):
                frame = self._frame
                self._show(await frame.run(read_quotas, frame.console.cluster, frame.snapshot.brokers))
        finally:
            self._is_reading = False

    def _show(self, report: QuotaReport) -> None:
        self._entity_count.show(count(len(report.entities)))
        self._throttled.show(count(sum(each.throttles > 0 for each in report.usages)))
        self._muted.show(count(report.muted))
        self._usage.update([_usage_row(each) for each in report.usages])
        self._entities = {f"{row} {key}": (row, key) for row in report.entities for key in sorted(row.values)}
        self._table.update(
            [
                {
                    "key": name,
                    "entity": str(row),
                    "quota": key,
                    "value": row.values[key],
                    "unit": UNITS.get(key, ""),
                }
                for name, (row, key) in self._entities.items()
            ]
        )
        self._note.set_text(f"No metrics of {', '.join(report.silent)}." if report.silent else "")

    def _select(self, keys: Sequence[str]) -> None:
        self._bulk.set_text(f"Remove {plural(len(keys), 'quota')}…")
        self._bulk.set_visibility(bool(keys))

    async def _remove(self) -> None:
        chosen = [self._entities[key] for key in self._table.selected if key in self._entities]
        words = [f"{row}: {key}={row.values[key]:g}" for row, key in chosen]
        title = f"Remove {plural(len(chosen), 'quota')}?"
        more = "The next quota by precedence applies at once; without one, nothing is limited."
        if not chosen or not await self._frame.confirm(title, words, action="Remove", more=more):
            return
        with self._frame.reporting("Not all quotas were removed"):
            admin = QuotaAdmin(self._frame.console.cluster)
            for row, key in chosen:
                await self._frame.act(Action.CHANGE_QUOTAS, _removed, str(row), key, admin, row.entity)
            self._frame.notify(f"{plural(len(chosen), 'quota')} removed.")
        self._table.unselect()
        self._select([])
        await self.look()

    def _open_form(self) -> None:
        with dialog("Set quota", test_id="set-quota") as box:
            user = ui.input("User", placeholder="alice").props("outlined dense autofocus data-testid=quota-user")
            client_id = ui.input("Client id").props("outlined dense data-testid=quota-client-id")
            ip = ui.input("Address", placeholder="192.0.2.7").props("outlined dense data-testid=quota-ip")
            ui.label(
                f"A user, a client id, both, or an address. {DEFAULT_NAME} is for all that have no quota of their own."
            ).classes("ms-help")
            words = {key: f"{key} ({unit})" for key, unit in UNITS.items()}
            quota = ui.select(words, value=next(iter(UNITS)), label="Quota").props(
                "outlined dense options-dense data-testid=quota-key"
            )
            value = ui.input("Value", placeholder="10MB").props("outlined dense data-testid=quota-value")
            ui.label("For each broker. Byte rates may have a unit: 10MB. It applies at once.").classes("ms-help")
            for field in (user, client_id, ip, quota, value):
                field.classes("ms-stack")
            errors = FieldErrors()

            async def set_now(typed: FormValues) -> None:
                key = str(quota.value)
                try:
                    entity = _entity(typed.text(user), typed.text(client_id), typed.text(ip), key)
                    wanted = read_value(key, typed.text(value).strip())
                    admin = QuotaAdmin(self._frame.console.cluster)
                    await self._frame.act(
                        Action.CHANGE_QUOTAS, _set, entity_text(entity), f"{key}={wanted:g}", admin, entity, key, wanted
                    )
                except (WireError, UserError) as error:
                    errors.show(str(error))
                    return
                box.close()
                self._frame.notify(f"The quota of {entity_text(entity)} was set.")
                await self.look()

            with ui.element("div").classes("ms-actions"):
                ui.button("Cancel", on_click=box.close).props("flat no-caps")
                send_form(ui.button("Set").props("unelevated no-caps data-testid=set-quota-now"), set_now)
        box.open()


def _entity(user: str, client_id: str, ip: str, key: str) -> Entity:
    """UserError or InvalidArgumentError says what is missing."""
    entity = make_entity(*(text.strip() or None for text in (user, client_id, ip)))
    if not entity:
        raise UserError("enter a user, a client id, both, or an address")
    if (key in OF_ADDRESSES) != ("ip" in entity):
        of = "an address" if key in OF_ADDRESSES else "a user or a client id"
        raise UserError(f"{key} is a quota of {of}")
    return entity


def _set(who: str, what: str, admin: QuotaAdmin, entity: Entity, key: str, value: float) -> None:
    """`who`, `what`: for the record of the action."""
    admin.alter(entity, {key: value})


def _removed(who: str, key: str, admin: QuotaAdmin, entity: Entity) -> None:
    admin.remove(entity, [key])


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
