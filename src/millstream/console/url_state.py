"""The state of a page in its URL: filters, sort order, tab, position. A reload, the back button and a copied link then
show the same view.

    state = url_state()                         # of the page that is being built
    tab = state.choice("tab", ("settings", "readers"), "settings")
    state.write(tab="readers", push=True)       # a step that the back button undoes

A page reads its state when it is built. So the back button loads the page again, with the URL of that step.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from nicegui import Client, ui

from millstream.console.console import BASE

_LONGEST = 2000
"""Longer values are not read and not written: browsers and proxies limit the length of a URL."""


class UrlState:
    """`part("offsets")` is the state of one table: its names get the prefix `offsets.`."""

    def __init__(self, parameters: Mapping[str, str], prefix: str = "", base: str = BASE) -> None:
        """`base`: the path of the console of this cluster, before the path of the page."""
        self._parameters = parameters
        self._prefix = prefix
        self.base = base

    def part(self, name: str) -> "UrlState":
        return UrlState(self._parameters, f"{self._prefix}{name}.", self.base) if name else self

    def text(self, name: str, default: str = "") -> str:
        value = self._parameters.get(self._prefix + name, default)
        return value if len(value) <= _LONGEST else default

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """A whole number from `least` to `most`, else the default."""
        text = self.text(name)
        if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) < 20):
            return default
        return int(text) if least <= int(text) <= most else default

    def choice(self, name: str, allowed: Iterable[str], default: str) -> str:
        text = self.text(name, default)
        return text if text in allowed else default

    def flag(self, name: str, default: bool = False) -> bool:
        return self.choice(name, ("true", "false"), "true" if default else "false") == "true"

    def write(self, values: Mapping[str, Any] | None = None, /, *, push: bool = False, **more: Any) -> None:
        """Puts values into the URL of the browser. None, False and "" remove a value. `push`: a new step in the
        history of the browser; otherwise the current one changes."""
        wanted = {self._prefix + name: _text(value) for name, value in {**(values or {}), **more}.items()}
        changes = json.dumps(wanted).replace("<", "\\u003c")
        ui.run_javascript(f"millstreamUrl({changes}, {json.dumps(push)})")

    def remember(self, field: Any, name: str, *, push: bool = False) -> Any:
        """Writes the value of a field whenever it changes. Returns the field. Its first value: `text`, `flag`, …"""
        field.on_value_change(lambda event: self.write({name: event.value}, push=push))
        return field


def _text(value: Any) -> str | None:
    if value is None or value is False or value == "":
        return None
    text = "true" if value is True else str(value)
    return text if len(text) <= _LONGEST else None


_states: WeakKeyDictionary[Client, UrlState] = WeakKeyDictionary()


def begin_url_state(parameters: Mapping[str, str], base: str = BASE) -> UrlState:
    """For the page that is being built."""
    state = _states[ui.context.client] = UrlState(parameters, base=base)
    return state


def url_state() -> UrlState:
    """The state of the current page."""
    return _states.get(ui.context.client) or begin_url_state({})
