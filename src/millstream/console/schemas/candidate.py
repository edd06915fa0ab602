"""A schema that somebody pasted: checked against a subject, and registered if it may be."""

from collections.abc import Awaitable, Callable
from typing import Any

from nicegui import ui

from millstream.console.browsing import Typed, send_form, suggest
from millstream.console.frame import Frame
from millstream.console.schemas.subjects import EXAMPLES, TYPES, check, register
from millstream.registry.errors import RegistryError


class Candidate:
    """`subject` says for which one, by what was typed; `registered` is called afterwards with its name."""

    def __init__(
        self,
        frame: Frame,
        subject: Callable[[Typed], str],
        registered: Callable[[str], Awaitable[Any]],
        type_: str = "AVRO",
    ) -> None:
        self._frame = frame
        self._subject = subject
        self._registered = registered
        self._first_type = type_
        self._asked = 0
        with ui.element("div").classes("ms-form"):
            self._type = (
                ui.select(list(TYPES), value=type_, label="Type", on_change=self._type_changed)
                .props("outlined dense options-dense data-testid=schema-type")
                .classes("ms-field")
            )
        self._text = (
            ui.textarea("Schema", placeholder=EXAMPLES[type_])
            .props("outlined spellcheck=false data-testid=schema-text")
            .classes("ms-stack ms-editor")
        )
        self._verdict = ui.element("div").classes("ms-verdict").props("role=status data-testid=verdict")
        self._verdict.set_visibility(False)
        with ui.element("div").classes("ms-actions"):
            to_check = ui.button("Check", icon="rule").props("outline no-caps data-testid=check")
            send_form(to_check, self._check)
            to_register = ui.button("Register", icon="add").props("unelevated no-caps data-testid=register")
            send_form(to_register, self._register)

    def fill(self, text: str, type_: str) -> None:
        """A schema to begin with, which comes a little later than the page. What a person did meanwhile counts."""
        if self._type.value == self._first_type and not self._text.value:
            self._type.set_value(type_)
            suggest(self._text, text)

    def _type_changed(self) -> None:
        self._text.props["placeholder"] = EXAMPLES[str(self._type.value)]

    async def _check(self, typed: Typed) -> None:
        registry = self._frame.console.registry
        asked = self._ask()
        with self._frame.reporting("The schema cannot be checked"):
            try:
                against = await self._frame.run(check, registry, self._subject(typed), *self._typed(typed))
            except RegistryError as error:
                if asked == self._asked:
                    self._say("bad", "It cannot be used", [error.message])
                return
            if asked != self._asked:
                return  # something else was asked meanwhile, and its verdict counts
            if against:
                self._say("bad", "It is not compatible", against)
            else:
                self._say("good", "It is compatible: it may be registered", [])

    async def _register(self, typed: Typed) -> None:
        registry = self._frame.console.registry
        self._ask()
        with self._frame.reporting("The schema cannot be registered"):
            try:
                stored = await self._frame.run(register, registry, self._subject(typed), *self._typed(typed))
            except RegistryError as error:
                self._say("bad", "It was not registered", [error.message])
                return
            self._say("good", f"Version {stored.version} of {stored.subject} with id {stored.id}", [])
            self._frame.say(f"{stored.subject} has version {stored.version}.")
            await self._registered(str(stored.subject))

    def _ask(self) -> int:
        self._asked += 1
        return self._asked

    def _typed(self, typed: Typed) -> tuple[str, str]:
        return typed.text(self._text), str(self._type.value)

    def _say(self, tone: str, title: str, reasons: list[str]) -> None:
        self._verdict.clear()
        self._verdict.classes(remove="ms-good ms-bad", add=f"ms-{tone}")
        with self._verdict:
            ui.label(title).classes("ms-problem-what")
            if reasons:
                with ui.element("ul"):
                    for reason in reasons[:50]:
                        with ui.element("li"):
                            ui.label(reason)
        self._verdict.set_visibility(True)
