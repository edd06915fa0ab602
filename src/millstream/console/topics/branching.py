"""The dialog that creates a branch of a topic, at its end or at an earlier time."""

from datetime import UTC, datetime

from nicegui import ui

from millstream.admin.topics import TopicAdmin
from millstream.console.console import UserError
from millstream.console.frame import Frame, go
from millstream.console.messages.query import parse_moment
from millstream.console.visitor import Action
from millstream.console.widgets import FieldErrors, FormValues, dialog, send_form
from millstream.raw_client import WireError


def open_branching(frame: Frame, topic: str) -> None:
    """Shows the dialog, and the branch once it is created."""
    with dialog(f"Branch {topic}", test_id="branch") as box:
        name = ui.input("Name of the branch").props("outlined dense autofocus data-testid=branch-name")
        moment = ui.input("Only records before").props("outlined dense data-testid=branch-at")
        ui.label("Empty for all records, or 2026-01-31 12:00 (UTC), or an age such as 7d.").classes("ms-muted")
        ui.label(
            f"The branch has the records of {topic} under the same offsets, and goes on by itself. It shares the files "
            "of the topic, so it takes no space. Either can be deleted without the other."
        ).classes("ms-help")
        errors = FieldErrors()

        async def create(typed: FormValues) -> None:
            branch, text = typed.text(name).strip(), typed.text(moment).strip()
            if not branch:
                errors.show("enter the name of the branch")
                return
            try:
                at_ms = parse_moment(text, UTC, datetime.now(UTC)) if text else None
                frame.visitor.check_topic(topic)
                if frame.visitor.mask_of(topic) is not None:
                    raise UserError(f"Parts of {topic} are hidden from you: a branch would show them.")
                admin = TopicAdmin(frame.console.cluster)
                made = await frame.act(Action.CREATE_TOPIC, admin.branch, topic, branch, at_ms=at_ms)
            except (ValueError, UserError, WireError) as error:
                errors.show(str(error))
                return
            box.close()
            frame.poll_now()
            frame.notify(f"{made.topic} is a branch of {topic}.")
            go("/topics", topic=made.topic)

        with ui.element("div").classes("ms-actions"):
            ui.button("Cancel", on_click=box.close).props("flat no-caps")
            send_form(ui.button("Create branch").props("unelevated no-caps data-testid=branch-create"), create)
    box.open()
