"""The Access page: ACLs (list, add, remove, explain), and tabs for users and tokens (`users.py`).

The cluster decides who may see and change them (DESCRIBE and ALTER on the cluster), as for every client.
"""

from collections.abc import Sequence
from typing import Any

from nicegui import ui

from millstream.admin.acls import (
    RESOURCES,
    Acl,
    AclAdmin,
    AclSelection,
    Explanation,
    exactly,
    make_acl,
    read_principal,
    read_resource,
)
from millstream.console.console import UserError
from millstream.console.formats import plural
from millstream.console.frame import Frame, console_page
from millstream.console.tables import Column, DataTable
from millstream.console.users import TokenTab, UserTab
from millstream.console.visitor import Action
from millstream.console.widgets import FieldErrors, FormValues, card, dialog, heading, send_form
from millstream.formats.model.access_control import AclOperation, AclPatternType, AclPermission
from millstream.formats.model.errors import ErrorCode
from millstream.raw_client import Cluster, RefusedError, WireError

_LITERAL, _PREFIX = "exactly this name", "all names that begin so"
_ANY = "any resource"
_OPERATIONS = [each.name for each in AclOperation if each > AclOperation.ANY]
_TABS = {
    "acls": ("ACLs", "rule"),
    "explain": ("Explain", "help_outline"),
    "users": ("Users", "person"),
    "tokens": ("Tokens", "vpn_key"),
}


def read_acls(cluster: Cluster, principal: str, resource: str, name: str) -> Sequence[Acl]:
    """ACLs of a principal, and those that apply to a resource, patterns included. Empty: of all."""
    kind = RESOURCES.get(resource)
    wanted = AclSelection(principal=str(read_principal(principal)) if principal else None)
    if kind is not None:
        pattern = AclPatternType.MATCH if name else AclPatternType.ANY
        wanted = AclSelection(kind, name or None, pattern, wanted.principal)
    return AclAdmin(cluster).list(wanted)


def explain_access(
    cluster: Cluster, principal: str, groups: str, operation: str, resource: str, name: str, host: str
) -> Explanation:
    """InvalidArgumentError says which field is wrong."""
    kind, named, wanted = read_resource(resource, name, operation)
    texts = [principal.strip(), *(each.strip() for each in groups.split(",") if each.strip())]
    principals = [read_principal(text) for text in texts]
    return AclAdmin(cluster).explain(principals, wanted, kind, named, host.strip() or "127.0.0.1")


@console_page("/access")
def permissions(frame: Frame) -> None:
    with heading("Access", "Who may log in, and who may do what"):
        pass
    with ui.tabs().classes("ms-tabs").props("align=left no-caps dense inline-label outside-arrows") as tabs:
        acls, explain, users, tokens = (
            ui.tab(name, label, icon=icon).props(f"data-testid=tab-{name}") for name, (label, icon) in _TABS.items()
        )
    chosen = frame.url.choice("tab", _TABS, "acls")
    with ui.tab_panels(tabs, value=chosen, animated=False).classes("ms-panels"):
        with ui.tab_panel(acls):
            acl_tab = _AclTab(frame)
        with ui.tab_panel(explain):
            _ExplainTab(frame)
        with ui.tab_panel(users):
            user_tab = UserTab(frame)
        with ui.tab_panel(tokens):
            token_tab = TokenTab(frame)
    loads = {"acls": acl_tab.load, "users": user_tab.load, "tokens": token_tab.load}

    async def opened(event: Any) -> None:
        frame.url.write(tab=None if event.value == "acls" else event.value, push=True)
        if event.value in loads:
            await loads[event.value]()

    tabs.on_value_change(opened)
    if chosen in loads:
        ui.timer(0.01, loads[chosen], once=True)


class _AclTab:
    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._acls: dict[str, Acl] = {}
        self._note = ui.label("").classes("ms-muted").props("role=status data-testid=access-note")
        self._note.set_visibility(False)
        with card("ACLs", note="what a client may do; without an ACL it may do nothing"):
            with ui.element("div").classes("ms-form"):
                self._principal = self._field("Principal", "principal", "User:alice")
                resource = frame.url.choice("resource", RESOURCES, _ANY)
                self._resource = ui.select([_ANY, *RESOURCES], value=resource, label="Resource").props(
                    "outlined dense options-dense data-testid=acl-resource-filter"
                )
                self._resource.classes("ms-field").on_value_change(self._filtered)
                self._name = self._field("Applies to the name", "resource_name", "orders")
                add = ui.button("Add ACL", icon="add", on_click=self._open_form)
                self._add = frame.offer(Action.CHANGE_ACLS, add).props("unelevated no-caps data-testid=open-acl")
            self._table = DataTable(
                [
                    Column("principal", "Principal", searched=True),
                    Column("permission", "Permission", cell="badge", width=110),
                    Column("operation", "Operation", searched=True),
                    Column("resource", "Resource", searched=True),
                    Column("name", "Name", cell="mono", searched=True),
                    Column("host", "From"),
                ],
                key="key",
                empty="No ACLs. Add one here, or with `millstream acl add` or kafka-acls.",
                sort_by="principal",
                test_id="acls",
                name="",
                on_select=self._select if frame.may(Action.CHANGE_ACLS) else None,
            )
            with self._table.head:
                self._bulk = ui.button("", icon="delete_outline", on_click=self._remove).props(
                    "outline dense color=negative no-caps data-testid=remove-acls"
                )
            self._bulk.set_visibility(False)

    def _field(self, label: str, name: str, example: str) -> ui.input:
        value = self._frame.url.text(name)
        field = ui.input(label, value=value, placeholder=example, on_change=self._filtered).props(
            f"outlined dense clearable debounce=300 data-testid=acl-{name.replace('_', '-')}-filter"
        )
        return field.classes("ms-field")

    async def _filtered(self) -> None:
        resource = str(self._resource.value)
        self._frame.url.write(
            principal=self._principal.value, resource=None if resource == _ANY else resource,
            resource_name=self._name.value,
        )  # fmt: skip
        await self.load()

    async def load(self) -> None:
        frame, resource = self._frame, str(self._resource.value)
        name = str(self._name.value or "").strip()
        note = "Choose the type of the resource too." if name and resource == _ANY else ""
        found: Sequence[Acl] = ()
        with frame.reporting("The ACLs cannot be read"):
            try:
                found = await frame.run(
                    read_acls, frame.console.cluster, str(self._principal.value or "").strip(), resource, name
                )
            except RefusedError as error:
                note = f"{error}."
                if error.code is ErrorCode.SECURITY_DISABLED:
                    self._table.set_empty("ACLs are off.")
                self._add.set_visibility(
                    frame.may(Action.CHANGE_ACLS) and error.code is not ErrorCode.SECURITY_DISABLED
                )
        self._acls = {str(acl): acl for acl in found}
        self._table.update([_row(acl) for acl in found])
        self._note.set_text(note)
        self._note.set_visibility(bool(note))

    def _select(self, keys: Sequence[str]) -> None:
        self._bulk.set_text(f"Remove {plural(len(keys), 'ACL')}…")
        self._bulk.set_visibility(bool(keys))

    async def _remove(self) -> None:
        chosen = [self._acls[key] for key in self._table.selected if key in self._acls]
        title = f"Remove {plural(len(chosen), 'ACL')}?"
        if not chosen or not await self._frame.confirm(title, [str(acl) for acl in chosen], action="Remove"):
            return
        with self._frame.reporting("Not all ACLs were removed"):
            admin = AclAdmin(self._frame.console.cluster)
            for acl in chosen:
                await self._frame.act(Action.CHANGE_ACLS, _removed, str(acl), admin, acl)
            self._frame.notify(f"{plural(len(chosen), 'ACL')} removed.")
        self._table.unselect()
        self._select([])
        await self.load()

    def _open_form(self) -> None:
        with dialog("Add ACL", test_id="add-acl") as box:
            principal = ui.input("Principal", placeholder="User:alice").props(
                "outlined dense autofocus data-testid=acl-principal"
            )
            permission = ui.select(["ALLOW", "DENY"], value="ALLOW", label="Permission").props("outlined dense")
            operation = ui.select(_OPERATIONS, value="READ", label="Operation").props(
                "outlined dense data-testid=acl-operation"
            )
            resource = ui.select(list(RESOURCES), value="topic", label="Resource").props("outlined dense")
            name = ui.input("Name", placeholder="orders").props("outlined dense data-testid=acl-name")
            pattern = ui.select([_LITERAL, _PREFIX], value=_LITERAL, label="Pattern").props("outlined dense")
            host = ui.input("From", value="*").props("outlined dense")
            ui.label("Address, or a range such as 10.0.0.0/8; * is all.").classes("ms-help")
            for field in (principal, permission, operation, resource, name, pattern, host):
                field.classes("ms-stack")
            errors = FieldErrors()

            async def add(typed: FormValues) -> None:
                try:
                    acl = make_acl(
                        typed.text(principal),
                        str(operation.value),
                        str(resource.value),
                        typed.text(name),
                        prefixed=pattern.value == _PREFIX,
                        deny=permission.value == "DENY",
                        host=typed.text(host),
                    )
                    admin = AclAdmin(self._frame.console.cluster)
                    await self._frame.act(Action.CHANGE_ACLS, _added, str(acl), admin, acl)
                except (WireError, UserError) as error:
                    errors.show(str(error))
                    return
                box.close()
                self._frame.notify("The ACL was added.")
                await self.load()

            with ui.element("div").classes("ms-actions"):
                ui.button("Cancel", on_click=box.close).props("flat no-caps")
                send_form(ui.button("Add").props("unelevated no-caps data-testid=add-acl-now"), add)
        box.open()


class _ExplainTab:
    """Says whether a client may do something, by the rules of the broker, and which ACL decides it."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        url = frame.url.part("explain")
        with card("Explain", note="may this client do this, and why?"):
            with ui.element("div").classes("ms-form"):
                self._principal = self._field("Principal", "User:alice", url.text("principal"))
                self._operation = ui.select(
                    _OPERATIONS, value=url.choice("operation", _OPERATIONS, "READ"), label="Operation"
                )
                self._resource = ui.select(
                    list(RESOURCES), value=url.choice("resource", RESOURCES, "topic"), label="Resource"
                )
                for select in (self._operation, self._resource):
                    select.props("outlined dense options-dense").classes("ms-field")
                self._name = self._field("Name", "orders", url.text("name"))
                self._host = self._field("Address of the client", "127.0.0.1", url.text("host"))
                self._groups = self._field("Groups of the client", "Group:staff, Group:ops", url.text("groups"))
                send_form(ui.button("Explain").props("unelevated no-caps data-testid=explain-now"), self._explain)
            self._errors = FieldErrors()
            self._verdict = ui.element("div").classes("ms-verdict").props("role=status data-testid=explanation")
            self._verdict.set_visibility(False)
        self._url = url

    def _field(self, label: str, example: str, value: str) -> ui.input:
        test_id = f"explain-{label.split()[0].lower()}"
        return (
            ui.input(label, placeholder=example, value=value)
            .props(f"outlined dense data-testid={test_id}")
            .classes("ms-field")
        )

    async def _explain(self, typed: FormValues) -> None:
        operation, resource = str(self._operation.value), str(self._resource.value)
        principal, name = typed.text(self._principal), typed.text(self._name)
        host, groups = typed.text(self._host), typed.text(self._groups)
        self._url.write(
            principal=principal, operation=operation, resource=resource, name=name, host=host, groups=groups
        )
        self._verdict.set_visibility(False)
        self._errors.show("")
        try:
            found = await self._frame.run(
                explain_access, self._frame.console.cluster, principal, groups, operation, resource, name, host
            )
        except (WireError, UserError) as error:
            self._errors.show(str(error))
            return
        self._show(found, f"{principal.strip()} {operation} {resource} {name.strip()}")

    def _show(self, found: Explanation, what: str) -> None:
        self._verdict.clear()
        self._verdict.classes(remove="ms-good ms-bad", add="ms-good" if found.is_allowed else "ms-bad")
        with self._verdict:
            ui.label(f"{'Allowed' if found.is_allowed else 'Denied'}: {what}").classes("ms-problem-what")
            ui.label(f"Because {found.reason}.")
            if found.acl is not None:
                ui.label(str(found.acl)).classes("ms-mono")
            if found.command is not None:
                ui.label("This command permits it:").classes("ms-muted")
                ui.label(found.command).classes("ms-mono")
        self._verdict.set_visibility(True)


def _added(text: str, admin: AclAdmin, acl: Acl) -> None:
    """`text`: the ACL, for the record of the action."""
    admin.add([acl])


def _removed(text: str, admin: AclAdmin, acl: Acl) -> None:
    admin.remove([exactly(acl)])


def _row(acl: Acl) -> dict[str, object]:
    return {
        "key": str(acl),
        "principal": acl.principal,
        "permission": acl.permission.name,
        "_tones": {"permission": "good" if acl.permission is AclPermission.ALLOW else "bad"},
        "operation": acl.operation.name,
        "resource": acl.resource.name.lower().replace("_", "-"),
        "name": acl.name + ("*" if acl.pattern is AclPatternType.PREFIXED else ""),
        "host": acl.host,
    }
