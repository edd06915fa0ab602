"""The table of actions of the console: each role, each action; and that pages change something only through it."""

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream.console
from millstream.access.roles import Role
from millstream.console.console import Console, UserError
from millstream.console.visitor import Action, Visitor

_PAGES = Path(millstream.console.__file__).parent
READING = {
    "self._statuses.refresh",
    "_examined",
    "_in_turn",
    "admin.plan_deletion",
    "admin.settings",
    "check",
    "explain_access",
    "export",
    "log_starts",
    "newest_reports",
    "pending_dead_letters",
    "preview_change",
    "preview_plan",
    "removable_broker",
    "preview_resets",
    "preview_reversal",
    "read",
    "read_all_brokers",
    "read_broker",
    "read_acls",
    "read_delivery",
    "read_link",
    "read_levels",
    "read_table_status",
    "read_links",
    "read_next",
    "read_quotas",
    "read_settings",
    "read_subject",
    "read_throttle",
    "read_tokens",
    "read_users",
    "registry.level",
    "self._make",
    "self._parsed",
    "self._reader.one",
    "subject_rows",
    "work",
}
"""What pages run without an action, because it only reads. Whatever is new here must not change anything."""


def visitor(role: Role, *, valid: bool = True) -> Visitor:
    nowhere: Any = None
    console: Console = nowhere
    return Visitor("ann", role, console, lambda _: None, lambda: valid, lambda: None, lambda: None)


class _Page:
    """What `Frame.act` needs of a page."""

    def __init__(self, user: Visitor) -> None:
        self.visitor = user

    async def run(self, work: Any, *arguments: Any) -> Any:
        self.visitor.check()
        return work(*arguments)


def act(user: Visitor, action: Action) -> list[str]:
    frame = pytest.importorskip("millstream.console.frame")
    done: list[str] = []
    page: Any = _Page(user)
    asyncio.run(frame.Frame.act(page, action, done.append, "done"))
    return done


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("action", list(Action))
def test_an_action_is_done_by_those_with_the_role_only(action: Action, role: Role) -> None:
    if role >= action.role:
        assert act(visitor(role), action) == ["done"]
        return
    with pytest.raises(UserError, match=f"your role is {role}, and only {action.role} may {action.words}"):
        act(visitor(role), action)


@pytest.mark.parametrize("action", list(Action))
def test_after_the_sign_out_no_action_is_done(action: Action) -> None:
    with pytest.raises(UserError, match="session has ended"):
        act(visitor(Role.ADMIN, valid=False), action)


def test_what_cannot_be_undone_needs_an_administrator_and_a_viewer_changes_nothing() -> None:
    for action in Action:
        assert action.role > Role.VIEWER
        if "delete" in action.words or "settings" in action.words:
            assert action.role is Role.ADMIN


def calls(name: str) -> Iterator[tuple[str, list[str]]]:
    """All calls of a method with this name in the console: the file and the texts of the arguments."""
    for path in sorted(_PAGES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name:
                yield path.name, [ast.unparse(each) for each in node.args]


def test_every_action_is_checked_where_it_is_done_and_offered_by_role() -> None:
    done = {arguments[0] for _, arguments in calls("act")}
    offered = {arguments[0] for name in ("offer", "may") for _, arguments in calls(name) if arguments[0] != "action"}
    everything = {f"Action.{action.name}" for action in Action}
    assert done == everything
    assert offered == everything


def test_pages_run_only_reading_work_without_an_action() -> None:
    ran = {
        arguments[0]
        for file, arguments in calls("run")
        if arguments and not (file == "frame.py" and arguments[0] == "work")
    }
    assert ran - READING == set()
