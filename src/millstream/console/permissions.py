"""The Access page: users and ACLs of the cluster; adds and removes ACLs. Passwords are not set here: `millstream user`.

The cluster decides who may see and change them (DESCRIBE and ALTER on the cluster), as for every client.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from nicegui import ui

from millstream.admin.acls import Acl, AclAdmin, exactly
from millstream.admin.users import User, UserAdmin
from millstream.console.console import UserError
from millstream.console.formats import count
from millstream.console.frame import Frame, console_page
from millstream.console.tables import Column, DataTable
from millstream.console.visitor import Action
from millstream.console.widgets import FieldErrors, FormValues, Stat, card, dialog, grid, heading, send_form
from millstream.formats.model.access_control import (
    CLUSTER_NAME,
    OPERATIONS,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
    parse_principal,
)
from millstream.formats.model.errors import ErrorCode
from millstream.raw_client import Cluster, RefusedError, WireError

_RESOURCES = {each.name.lower().replace("_", "-"): each for each in OPERATIONS}
_LITERAL, _PREFIX = "exactly this name", "all names that begin so"


@dataclass(frozen=True, slots=True)
class AccessReport:
    users: Sequence[User]
    acls: Sequence[Acl]
    note: str = ""
    """What could not be read, and why."""


def read_access(cluster: Cluster) -> AccessReport:
    """Reads what the user may see."""
    users: list[User] = []
    acls: list[Acl] = []
    notes = []
    try:
        users = UserAdmin(cluster).users()
    except RefusedError as error:
        notes.append(f"The users cannot be read: {error}.")
    try:
        acls = AclAdmin(cluster).list()
    except RefusedError as error:
        if error.code is ErrorCode.SECURITY_DISABLED:
            notes.append("ACLs are off: authorizer.class.name is not set, so every user may do everything.")
        else:
            notes.append(f"The ACLs cannot be read: {error}.")
    return AccessReport(users, acls, " ".join(notes))


def parse_acl(
    principal: str, operation: str, resource: str, name: str, pattern: str, host: str, permission: str
) -> Acl:
    """UserError says which field is wrong."""
    try:
        parse_principal(principal.strip())
    except ValueError as error:
        raise UserError(f"principal: {error}") from None
    kind = _RESOURCES[resource]
    wanted = AclOperation[operation]
    if wanted is not AclOperation.ALL and wanted not in OPERATIONS[kind]:
        fitting = ", ".join(each.name for each in OPERATIONS[kind])
        raise UserError(f"{operation} is no operation of {resource}: choose ALL, {fitting}")
    named = CLUSTER_NAME if kind is AclResourceType.CLUSTER else name.strip()
    if not named:
        raise UserError("name: enter the name of the resource, or * for all")
    prefixed = pattern == _PREFIX and kind is not AclResourceType.CLUSTER
    return Acl(
        principal.strip(),
        kind,
        named,
        AclPatternType.PREFIXED if prefixed else AclPatternType.LITERAL,
        wanted,
        AclPermission[permission],
        host.strip() or "*",
    )


@console_page("/access")
def permissions(frame: Frame) -> None:
    view = _AccessView(frame)
    ui.timer(0.01, view.load, once=True)


class _AccessView:
    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._acls: dict[str, Acl] = {}
        with heading("Access", "Who may do what: users and ACLs of the cluster"):
            add = ui.button("Add ACL", icon="add", on_click=self._open_form)
            frame.offer(Action.CHANGE_ACLS, add).props("unelevated no-caps data-testid=open-acl")
        with card(""), ui.element("div").classes("ms-stats"):
            self._user_count = Stat("users with a password", test_id="user-count")
            self._acl_count = Stat("ACLs", test_id="acl-count")
        self._note = ui.label("").classes("ms-muted").props("role=status data-testid=access-note")
        with grid("two"):
            with card("ACLs", note="click one to remove it" if frame.may(Action.CHANGE_ACLS) else ""):
                self._table = DataTable(
                    [
                        Column("principal", "Principal", searched=True),
                        Column("permission", "", cell="badge"),
                        Column("operation", "Operation", searched=True),
                        Column("resource", "Resource", searched=True),
                        Column("name", "Name", cell="mono", searched=True),
                        Column("host", "From"),
                    ],
                    key="key",
                    empty="No ACLs. Add one, or use `millstream acl add` or kafka-acls.",
                    sort_by="principal",
                    test_id="acls",
                    name="",
                    on_pick=self._remove if frame.may(Action.CHANGE_ACLS) else None,
                )
            with card("Users", note="SCRAM; set passwords with `millstream user add`"):
                self._users = DataTable(
                    [Column("name", "User", searched=True), Column("mechanisms", "Mechanisms")],
                    key="name",
                    empty="No users with SCRAM passwords.",
                    test_id="users",
                )

    async def load(self) -> None:
        with self._frame.reporting("Users and ACLs cannot be read"):
            report = await self._frame.run(read_access, self._frame.console.cluster)
            self._note.set_text(report.note)
            self._user_count.show(count(len(report.users)))
            self._acl_count.show(count(len(report.acls)))
            self._acls = {str(acl): acl for acl in report.acls}
            self._table.update([_row(acl) for acl in report.acls])
            self._users.update(
                [{"name": user.name, "mechanisms": ", ".join(sorted(user.iterations))} for user in report.users]
            )

    async def _remove(self, key: str) -> None:
        acl = self._acls.get(key)
        if acl is None or not await self._frame.confirm("Remove this ACL?", [str(acl)], action="Remove"):
            return
        with self._frame.reporting("The ACL was not removed"):
            await self._frame.act(Action.CHANGE_ACLS, _removed, str(acl), AclAdmin(self._frame.console.cluster), acl)
            self._frame.notify("The ACL was removed.")
        await self.load()

    def _open_form(self) -> None:
        with dialog("Add ACL", test_id="add-acl") as box:
            principal = ui.input("Principal", placeholder="User:alice").props(
                "outlined dense autofocus data-testid=acl-principal"
            )
            permission = ui.select(["ALLOW", "DENY"], value="ALLOW", label="Permission").props("outlined dense")
            operations = [each.name for each in AclOperation if each > AclOperation.ANY]
            operation = ui.select(operations, value="READ", label="Operation").props(
                "outlined dense data-testid=acl-operation"
            )
            resource = ui.select(list(_RESOURCES), value="topic", label="Resource").props("outlined dense")
            name = ui.input("Name", placeholder="orders").props("outlined dense data-testid=acl-name")
            pattern = ui.select([_LITERAL, _PREFIX], value=_LITERAL, label="Pattern").props("outlined dense")
            host = ui.input("From", value="*").props("outlined dense")
            ui.label("Address, or a range such as 10.0.0.0/8; * is all.").classes("ms-help")
            for field in (principal, permission, operation, resource, name, pattern, host):
                field.classes("ms-stack")
            errors = FieldErrors()

            async def add(typed: FormValues) -> None:
                try:
                    acl = parse_acl(
                        typed.text(principal),
                        str(operation.value),
                        str(resource.value),
                        typed.text(name),
                        str(pattern.value),
                        typed.text(host),
                        str(permission.value),
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
