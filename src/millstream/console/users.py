"""The tabs Users and Tokens of the Access page: SCRAM users (add, change the password, delete) and delegation tokens
(list, expire).

A password goes from the form to `UserAdmin`, which salts and hashes it. It is never shown, logged or audited. The HMAC
of a token, by which clients log in, does not leave the gateway.
"""

import time
from collections.abc import Sequence
from datetime import UTC, datetime

from nicegui import ui

from millstream.admin.users import MECHANISMS, UserAdmin
from millstream.console.console import UserError
from millstream.console.formats import plural
from millstream.console.frame import Frame
from millstream.console.tables import Column, DataTable
from millstream.console.visitor import Action
from millstream.console.widgets import FieldErrors, FormValues, card, dialog, send_form
from millstream.raw_client import Cluster, RefusedError, WireError

_BOTH = "both"


class Password:
    """A password on its way to the cluster. Not a text, so that no record of an action and no error can have it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text


def read_users(cluster: Cluster) -> Sequence[dict[str, object]]:
    return [
        {
            "name": user.name,
            "mechanisms": ", ".join(sorted(user.iterations)),
            "iterations": ", ".join(sorted({f"{number:,}" for number in user.iterations.values()})),
        }
        for user in UserAdmin(cluster).users()
    ]


def read_tokens(cluster: Cluster) -> Sequence[dict[str, object]]:
    """Without their HMACs, which are secrets."""
    now_ms = time.time() * 1000
    return [
        {
            "token": token.token_id,
            "owner": token.owner,
            "requester": token.requester,
            "renewers": ", ".join(token.renewers),
            "state": "valid" if token.expires_ms > now_ms else "expired",
            "_tones": {"state": "good" if token.expires_ms > now_ms else "dim"},
            "expires": _when(token.expires_ms),
            "latest": _when(token.max_ms),
        }
        for token in UserAdmin(cluster).tokens()
    ]


def _when(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _typed_password(typed: FormValues, first: ui.input, again: ui.input) -> Password:
    text = typed.text(first)
    if not text:
        raise UserError("the password is empty: enter one")
    if text != typed.text(again):
        raise UserError("the two passwords differ: enter the same one twice")
    return Password(text)


def _password_fields() -> tuple[ui.input, ui.input]:
    made = []
    for label, test_id in (("Password", "user-password"), ("The same password again", "user-password-again")):
        field = ui.input(label, password=True).props(f"outlined dense autocomplete=new-password data-testid={test_id}")
        made.append(field.classes("ms-stack"))
    return made[0], made[1]


class UserTab:
    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._note = ui.label("").classes("ms-muted").props("role=status data-testid=users-note")
        may_change = frame.may(Action.CHANGE_USERS)
        with card("Users", note="who log in by SCRAM; users of PLAIN are in the settings of the nodes"):
            self._table = DataTable(
                [
                    Column("name", "User", searched=True),
                    Column("mechanisms", "Mechanisms", cell="nowrap"),
                    Column("iterations", "Iterations", right=True),
                ],
                key="name",
                empty="No users with SCRAM passwords."
                + (" Add one here, or with `millstream user add`." if may_change else ""),
                test_id="users",
                on_select=self._select if may_change else None,
            )
            with self._table.head:
                add = ui.button("Add user", icon="person_add", on_click=self._open_addition)
                frame.offer(Action.CHANGE_USERS, add).props("unelevated dense no-caps data-testid=open-user")
                self._change = ui.button("Change password…", icon="password", on_click=self._open_change).props(
                    "outline dense no-caps data-testid=open-password"
                )
                self._delete = ui.button("", icon="delete_outline", on_click=self._remove).props(
                    "outline dense color=negative no-caps data-testid=delete-users"
                )
        self._select([])

    async def load(self) -> None:
        note = ""
        rows: Sequence[dict[str, object]] = ()
        with self._frame.reporting("The users cannot be read"):
            try:
                rows = await self._frame.run(read_users, self._frame.console.cluster)
            except RefusedError as error:
                note = f"The users cannot be read: {error}."
        self._table.update(rows)
        self._note.set_text(note)
        self._note.set_visibility(bool(note))

    def _select(self, names: Sequence[str]) -> None:
        self._change.set_visibility(len(names) == 1)
        self._delete.set_text(f"Delete {plural(len(names), 'user')}…")
        self._delete.set_visibility(bool(names))

    def _open_addition(self) -> None:
        with dialog("Add user", test_id="add-user") as box:
            name = ui.input("Name", placeholder="alice").props("outlined dense autofocus data-testid=user-name")
            name.classes("ms-stack")
            first, again = _password_fields()
            mechanism = ui.select([_BOTH, *MECHANISMS], value=_BOTH, label="Mechanism").props("outlined dense")
            mechanism.classes("ms-stack")
            ui.label("The cluster stores keys that are made of the password, and not the password.").classes("ms-help")
            errors = FieldErrors()

            async def add(typed: FormValues) -> None:
                wanted = typed.text(name).strip()
                mechanisms = tuple(MECHANISMS) if mechanism.value == _BOTH else (str(mechanism.value),)
                try:
                    password = _typed_password(typed, first, again)
                    admin = UserAdmin(self._frame.console.cluster)
                    await self._frame.act(Action.CHANGE_USERS, _added, wanted, admin, password, mechanisms)
                except (WireError, UserError) as error:
                    errors.show(str(error))
                    return
                box.close()
                self._frame.notify(f"User {wanted} was added. ACLs give it permissions.")
                await self.load()

            with ui.element("div").classes("ms-actions"):
                ui.button("Cancel", on_click=box.close).props("flat no-caps")
                send_form(ui.button("Add").props("unelevated no-caps data-testid=add-user-now"), add)
        box.open()

    def _open_change(self) -> None:
        if len(self._table.selected) != 1:
            return
        (user,) = self._table.selected
        with dialog(f"Change the password of {user}", test_id="change-password") as box:
            first, again = _password_fields()
            ui.label(
                "For all mechanisms of the user. Open connections stay until they authenticate again "
                "(connections.max.reauth.ms)."
            ).classes("ms-help")
            errors = FieldErrors()

            async def change(typed: FormValues) -> None:
                try:
                    password = _typed_password(typed, first, again)
                    admin = UserAdmin(self._frame.console.cluster)
                    await self._frame.act(Action.CHANGE_USERS, _changed, user, admin, password)
                except (WireError, UserError) as error:
                    errors.show(str(error))
                    return
                box.close()
                self._frame.notify(f"The password of {user} was changed.")

            with ui.element("div").classes("ms-actions"):
                ui.button("Cancel", on_click=box.close).props("flat no-caps")
                send_form(ui.button("Change").props("unelevated no-caps data-testid=change-password-now"), change)
        box.open()

    async def _remove(self) -> None:
        names = list(self._table.selected)
        more = "They cannot log in any more. Open connections and ACLs of the users stay."
        title = f"Delete {plural(len(names), 'user')}?"
        if not names or not await self._frame.confirm(title, names, action="Delete", more=more):
            return
        with self._frame.reporting("Not all users were deleted"):
            admin = UserAdmin(self._frame.console.cluster)
            for name in names:
                await self._frame.act(Action.CHANGE_USERS, admin.remove, name)
            self._frame.notify(f"{plural(len(names), 'user')} deleted.")
        self._table.unselect()
        self._select([])
        await self.load()


class TokenTab:
    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._note = ui.label("").classes("ms-muted").props("role=status data-testid=tokens-note")
        with card("Delegation tokens", note="short-lived logins; you see those that the cluster shows to you"):
            self._table = DataTable(
                [
                    Column("token", "Token", cell="mono", searched=True),
                    Column("owner", "Owner", searched=True),
                    Column("requester", "Requester", searched=True),
                    Column("renewers", "Renewers"),
                    Column("state", "State", cell="badge", width=100),
                    Column("expires", "Expires", cell="nowrap"),
                    Column("latest", "At the latest", cell="nowrap"),
                ],
                key="token",
                empty="No tokens. `millstream user token create` makes one.",
                test_id="tokens",
                on_select=self._select if frame.may(Action.EXPIRE_TOKENS) else None,
            )
            with self._table.head:
                self._expire = ui.button("", icon="delete_outline", on_click=self._ask).props(
                    "outline dense color=negative no-caps data-testid=expire-tokens"
                )
            self._expire.set_visibility(False)

    async def load(self) -> None:
        note = ""
        rows: Sequence[dict[str, object]] = ()
        with self._frame.reporting("The tokens cannot be read"):
            try:
                rows = await self._frame.run(read_tokens, self._frame.console.cluster)
            except RefusedError as error:
                note = f"{str(error)[:1].upper()}{str(error)[1:]}."
        self._table.update(rows)
        self._note.set_text(note)
        self._note.set_visibility(bool(note))

    def _select(self, ids: Sequence[str]) -> None:
        self._expire.set_text(f"Expire {plural(len(ids), 'token')}…")
        self._expire.set_visibility(bool(ids))

    async def _ask(self) -> None:
        ids = list(self._table.selected)
        title = f"Expire {plural(len(ids), 'token')}?"
        more = "No client can log in with them any more. This cannot be undone."
        if not ids or not await self._frame.confirm(title, ids, action="Expire", more=more):
            return
        with self._frame.reporting("Not all tokens were expired"):
            admin = UserAdmin(self._frame.console.cluster)
            for token_id in ids:
                await self._frame.act(Action.EXPIRE_TOKENS, admin.remove_token, token_id)
            self._frame.notify(f"{plural(len(ids), 'token')} expired.")
        self._table.unselect()
        self._select([])
        await self.load()


def _added(name: str, admin: UserAdmin, password: Password, mechanisms: Sequence[str]) -> None:
    admin.add(name, password.reveal(), mechanisms)


def _changed(name: str, admin: UserAdmin, password: Password) -> None:
    admin.change_password(name, password.reveal())
