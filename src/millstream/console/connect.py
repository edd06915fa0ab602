"""The Connect page, and the first steps on the overview of an empty cluster: make a topic, connect a client, send a
record and see it arrive.
"""

import json
import time
from urllib.parse import urlencode

from nicegui import ui

from millstream.admin.topics import TopicAdmin
from millstream.console.console import UserError
from millstream.console.frame import Frame, console_page
from millstream.console.live.snapshot import Snapshot
from millstream.console.messages.writing import RecordWriter
from millstream.console.snippets import SNIPPETS, Connection, connection_of, topic_of_link
from millstream.console.topics.settings import name_error
from millstream.console.visitor import Action
from millstream.console.widgets import FieldErrors, FormValues, LiveSelect, card, heading, send_form, send_form_on_enter
from millstream.raw_client import WireError

_FIRST_TOPIC = "orders"
_MOST_ADDRESSES = 3


def user_topics(snapshot: Snapshot) -> list[str]:
    """The topics that people made, in order."""
    return snapshot.once(_user_topics)


def _user_topics(snapshot: Snapshot) -> list[str]:
    found = snapshot.topics.values()
    return sorted(each.name for each in found if not each.is_internal and not each.name.startswith("_"))


@console_page("/connect")
def connect(frame: Frame) -> None:
    with heading("Connect", "Programs that write and read a topic of this cluster, with its address"):
        pass
    FirstSteps(frame)


class FirstSteps:
    """Three steps. The topic is made in the first one, or one that exists is chosen."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._reader = frame.reader()
        self._shown: Connection | None = None
        self._topic = topic_of_link(frame.url.text("topic"))
        with card("1. A topic"):
            if frame.may(Action.CREATE_TOPIC):
                with ui.element("div").classes("ms-form"):
                    self._name = (
                        send_form_on_enter(ui.input("New topic", value=_FIRST_TOPIC), self._create)
                        .props("outlined dense data-testid=first-topic")
                        .classes("ms-field")
                    )
                    make = ui.button("Make the topic").props("unelevated no-caps data-testid=first-create")
                    send_form(make, self._create)
            self._errors = FieldErrors()
            self._choice = (
                LiveSelect([self._topic] if self._topic else [], value=self._topic or None, label="Topic")
                .props("outlined dense options-dense data-testid=connect-topic")
                .classes("ms-field")
            )
            self._choice.on_value_change(lambda event: self._choose(str(event.value or "")))
        with card("2. Your program", note="the address is that of this cluster"):
            tools = [name for name in SNIPPETS if name != "curl" or frame.visitor.serves_http]
            tool = frame.url.choice("tool", tools, tools[0])
            with ui.tabs().classes("ms-tabs").props("align=left no-caps dense outside-arrows") as tabs:
                for name in tools:
                    ui.tab(name).props(f"data-testid=tool-{name.lower()}")
            with ui.tab_panels(tabs, value=tool, animated=False).classes("ms-panels"):
                self._programs = {name: self._add_program(name) for name in tools}
            # After the panels, which set the first value: the URL has what a person chose.
            tabs.on_value_change(lambda event: frame.url.write(tool=event.value if event.value != tools[0] else None))
        with card("3. A test record"), ui.element("div").classes("ms-status"):
            self._send = ui.button("Send a test record", icon="send", on_click=self._send_record)
            frame.offer(Action.PRODUCE, self._send).props("outline no-caps data-testid=first-record")
            self._arrived = ui.label("").classes("ms-mono").props("data-testid=first-arrived role=status")
            self._look = ui.link("See the records", "/messages").props("data-testid=first-look")
            self._look.set_visibility(False)
        frame.live(self._show)

    @staticmethod
    def _add_program(name: str) -> ui.label:
        with ui.tab_panel(name), ui.element("div").classes("ms-program"):
            text = ui.label("").classes("ms-pre").props(f"data-testid=program-{name.lower()}")
            ui.button(icon="content_copy", color=None).props('flat dense round size=sm aria-label="Copy"').classes(
                "ms-program-copy"
            ).on("click", js_handler=f"() => millstreamCopy(document.getElementById('{text.html_id}').innerText)")
        return text

    def _show(self, snapshot: Snapshot) -> None:
        names = user_topics(snapshot)
        if not self._topic and names:
            self._choose(names[0])
        if names != self._choice.options:
            self._choice.set_options(names, value=self._topic if self._topic in names else None)
        self._choice.set_visibility(bool(names))
        self._send.set_enabled(self._topic in names)
        addresses = [broker.address for broker in snapshot.brokers if broker.is_up][:_MOST_ADDRESSES]
        cluster = self._frame.console.cluster
        wanted = connection_of(
            cluster.settings,
            ",".join(addresses) or cluster.bootstrap,
            self._topic or _FIRST_TOPIC,
            self._frame.origin,
            gateway_login=bool(self._frame.visitor.name),
        )
        if wanted != self._shown:
            self._shown = wanted
            for name, label in self._programs.items():
                label.set_text(SNIPPETS[name](wanted))

    def _choose(self, name: str) -> None:
        if name and name != self._topic:
            self._topic = name
            self._frame.url.write(topic=name)
            self._show(self._frame.snapshot)

    async def _create(self, typed: FormValues) -> None:
        name = typed.text(self._name).strip()
        wrong = name_error(name, self._frame.snapshot.topics)
        self._errors.show(wrong or "")
        if wrong:
            return
        try:
            await self._frame.act(Action.CREATE_TOPIC, TopicAdmin(self._frame.console.cluster).create, name)
        except (WireError, UserError) as error:
            self._errors.show(str(error))
            return
        self._frame.notify(f"Topic {name} was created.")
        self._frame.poll_now()
        self._choose(name)

    async def _send_record(self) -> None:
        topic, frame = self._topic, self._frame
        value = json.dumps({"hello": "Millstream", "at": time.strftime("%H:%M:%S")}).encode()
        self._send.props("loading")
        try:
            with frame.reporting("The record was not sent"):
                frame.visitor.check_topic(topic)
                writer = RecordWriter(frame.console.cluster)
                at = await frame.act(Action.PRODUCE, writer.write, topic, b"first", value)
                found = await frame.run(self._reader.one, topic, at.partition, at.offset)
                text = "not found" if found is None or found.value is None else found.value.decode(errors="replace")
                self._arrived.set_text(f"Arrived in partition {at.partition} at offset {at.offset}: {text}")
                self._look.props["href"] = f"/messages?{urlencode({'topic': topic})}"
                self._look.set_visibility(True)
        finally:
            self._send.props(remove="loading")
