"""DuckDB without access to the system: no files, network, extensions, settings or Python objects; bounded in memory.

`open_engine` is the only place that opens it. All of this is set before the first byte of a query is read, and then
locked, so that a query cannot change it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from millstream.sql.errors import NotInstalledError

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

DEFAULT_MEMORY_BYTES = 512 << 20
_PARSING_MEMORY_BYTES = 64 << 20
_LOCKS = (
    "SET python_enable_replacements=false",  # names of Python variables are no tables
    "SET TimeZone='UTC'",
    "SET enable_external_access=false",
    "SET lock_configuration=true",
)


def is_installed() -> bool:
    from importlib.util import find_spec

    return find_spec("duckdb") is not None


def check_installed() -> None:
    if not is_installed():
        raise NotInstalledError("SQL needs DuckDB, which is not installed", "pip install 'millstream[sql]'")


@contextmanager
def open_engine(memory_bytes: int = _PARSING_MEMORY_BYTES, threads: int = 2) -> "Iterator[duckdb.DuckDBPyConnection]":
    """An empty database in memory, for one query."""
    check_installed()
    import duckdb

    settings: dict[str, str | bool | int | float | list[str]] = {
        "threads": threads,
        "memory_limit": f"{max(1, memory_bytes >> 20)}MiB",
        "temp_directory": "",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
    }
    engine = duckdb.connect(":memory:", config=settings)
    try:
        for command in _LOCKS:
            engine.execute(command)
        yield engine
    finally:
        engine.close()


def define(engine: "duckdb.DuckDBPyConnection", path: tuple[str, ...], table: "pa.Table") -> None:
    """The table under the name that the query has for it."""
    if len(path) == 1:
        engine.register(path[0], table)
        return
    schema, name = path
    inner = f"__{schema}.{name}"
    engine.register(inner, table)
    engine.execute(f"CREATE SCHEMA IF NOT EXISTS {_quoted(schema)}")
    engine.execute(f"CREATE VIEW {_quoted(schema)}.{_quoted(name)} AS SELECT * FROM {_quoted(inner)}")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
