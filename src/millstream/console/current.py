"""The console that pages of this process belong to: NiceGUI's app is one for the whole process."""

from millstream.console.console import Console

_console: Console | None = None


def current_console() -> Console:
    assert _console is not None, "no page is served before there is a console"
    return _console


def set_console(console: Console | None) -> None:
    global _console
    _console = console
