"""Output and failures of commands: tables for people, JSON for scripts, one line on stderr for errors.

`rich` is imported only when a table or a progress bar is drawn.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from millstream.cli import exit_codes

if TYPE_CHECKING:
    from rich.progress import Progress


class CommandFailedError(Exception):
    """A command failed, with the line for stderr and the exit code."""

    def __init__(self, message: str, exit_code: int = exit_codes.FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code


def print_json(document: Any) -> None:
    """Prints a JSON document: indented on a terminal, on one line otherwise."""
    indent = 2 if sys.stdout.isatty() else None
    print(json.dumps(document, indent=indent, ensure_ascii=False, default=str))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str = "") -> None:
    """Prints a table. Numbers are aligned to the right. Without a terminal nothing is cut off."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [tuple(row) for row in rows]
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        number = bool(cells) and all(_is_number(row[index]) for row in cells)
        table.add_column(column, justify="right" if number else "left", overflow="fold")
    for row in cells:
        # Text, not str: rich would read square brackets in names as markup.
        table.add_row(*(Text("" if cell is None else _shown(cell)) for cell in row))
    if sys.stdout.isatty():
        Console().print(table)
        return
    console = Console(width=10_000, no_color=True)
    with console.capture() as capture:
        console.print(table, soft_wrap=True)
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))


def note(text: str) -> None:
    """Prints a note on stderr if that is a terminal. stdout is for data only."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)


def complain(text: str) -> None:
    """Prints an error on stderr."""
    print(f"millstream: {text}", file=sys.stderr)


@contextmanager
def progress(*, wanted: bool = True, bytes_shown: bool = False) -> "Iterator[Progress | None]":
    """A progress display on stderr, or None when that is not a terminal."""
    if not wanted or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    count = DownloadColumn() if bytes_shown else MofNCompleteColumn()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        count,
        TimeRemainingColumn(),
        TextColumn("{task.fields[info]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as display:
        yield display


def _is_number(cell: Any) -> bool:
    if isinstance(cell, str):
        return not cell.strip("0123456789.,")
    return cell is None or isinstance(cell, (int, float))


def _shown(cell: Any) -> str:
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:,.3f}" if cell < 100 else f"{cell:,.0f}"
    return str(cell)
