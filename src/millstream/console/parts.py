"""Small parts of pages: cards, big numbers, headings."""

from collections.abc import Iterator
from contextlib import contextmanager

from nicegui import ui


@contextmanager
def card(title: str, *, note: str = "", classes: str = "") -> Iterator[ui.element]:
    with ui.element("section").classes(f"ms-card {classes}") as box:
        if title:
            with ui.element("header").classes("ms-card-head"):
                ui.label(title).classes("ms-card-title")
                if note:
                    ui.label(note).classes("ms-muted")
        yield box


@contextmanager
def grid(columns: str = "auto") -> Iterator[ui.element]:
    """Cards side by side: auto, two or three to a row; on a narrow screen one below the other."""
    with ui.element("div").classes(f"ms-grid ms-grid-{columns}") as box:
        yield box


class Stat:
    """A big number with a word below."""

    def __init__(self, word: str, *, test_id: str = "") -> None:
        with ui.element("div").classes("ms-stat") as self._box:
            self._value = ui.label("–").classes("ms-stat-value")
            if test_id:
                self._value.props["data-testid"] = test_id
            ui.label(word).classes("ms-stat-word")

    def show(self, text: str, tone: str = "") -> None:
        self._value.set_text(text)
        self._box.classes(remove="ms-good ms-warn ms-bad ms-dim", add=f"ms-{tone}" if tone else "")


@contextmanager
def heading(title: str, subtitle: str = "") -> Iterator[ui.element]:
    """The page's heading; what is made inside (buttons) stands at its right."""
    with ui.element("div").classes("ms-heading"):
        with ui.element("div"):
            with ui.element("h1").classes("ms-title").props("data-testid=page-title"):
                ui.label(title)
            if subtitle:
                ui.label(subtitle).classes("ms-muted")
        with ui.element("div").classes("ms-heading-actions") as actions:
            yield actions
