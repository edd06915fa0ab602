"""DuckDB in a process of its own, for queries of others: the gateway and the console.

DuckDB cannot be interrupted within a function (`levenshtein` of long texts), and its limit of memory does not count the
texts that functions make (`repeat('x', 4000000000)`). So the process has limits of memory and CPU from the operating
system, and is killed when the query must end. A process runs one query. The next one is started when a query has ended,
and waits some minutes for its task: the start of Python and DuckDB takes longer than most queries.

The parent writes to its input: a line of JSON (`_Task`), then each table as an Arrow IPC stream. The process writes
frames: a kind (1 byte), a length (4 bytes), the data. Kinds: S the schema, T the types in DuckDB's words (JSON), B a
batch, E an error, Z the end.
"""

import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from struct import Struct
from typing import IO

import pyarrow as pa

from millstream.sql.engine import define, open_engine
from millstream.sql.errors import SqlError, Stop

RESULT_ROWS = 8192
_FRAME = Struct(">cI")
_MAX_FRAME_BYTES = 128 << 20
_BASE_BYTES = 1 << 30
"""Address space for Python, its libraries, and the stacks and arenas of threads."""
_SPARE_SECONDS = 300.0
"""How long a process waits for a query. It takes about 100 MB of memory."""
_ENVIRONMENT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG")
"""The process gets no other variables of the gateway: they may hold secrets."""
_ALLOCATION = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}
"""The limit of memory counts addresses. By default Arrow reserves 1 GB of them, and each thread 64 MB."""


_ENDED = "the process of the query has ended: it needs too much memory or time"


class EngineError(Exception):
    """What DuckDB said, or how its process ended."""


class IsolatedResult:
    """The schema, and then the batches."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self.schema = pa.ipc.read_schema(pa.py_buffer(self._next(b"S")))
        self.types: list[str] = json.loads(self._next(b"T"))

    def batches(self) -> Iterator[pa.RecordBatch]:
        while data := self._next(b"B"):
            yield pa.ipc.read_record_batch(pa.py_buffer(data), self.schema)

    def _next(self, wanted: bytes) -> bytes:
        """Empty at the end."""
        head = self._source.read(_FRAME.size)
        if len(head) < _FRAME.size:
            raise EngineError(_ENDED)
        kind, size = _FRAME.unpack(head)
        data = self._source.read(size) if size <= _MAX_FRAME_BYTES else b""
        if len(data) < size:
            raise EngineError(_ENDED)
        if kind == b"E":
            raise EngineError(data.decode(errors="replace"))
        if kind not in (wanted, b"Z"):
            raise EngineError(f"the process of the query sent {kind!r} instead of {wanted!r}")
        return data


class _Spare:
    """A process that has started and waits for a task. Thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._timer: threading.Timer | None = None

    def take(self) -> subprocess.Popen[bytes]:
        """The one that waits, else a new one."""
        process = self._remove()
        if process is not None and process.poll() is None:
            return process
        if process is not None:
            _end(process)
        return _start()

    def fill(self) -> None:
        """Starts one for the next query, unless one waits."""
        with self._lock:
            if self._process is None:
                self._process = _start()
                self._timer = threading.Timer(_SPARE_SECONDS, self.drop)
                self._timer.daemon = True
                self._timer.start()

    def drop(self) -> None:
        """Ends the one that waits."""
        process = self._remove()
        if process is not None:
            _end(process)

    def _remove(self) -> subprocess.Popen[bytes] | None:
        with self._lock:
            process, self._process = self._process, None
            if self._timer is not None:
                self._timer.cancel()
            return process


spare = _Spare()


def _start() -> subprocess.Popen[bytes]:
    # -P: no module of the working directory.
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "millstream.sql.isolated"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=_ALLOCATION | {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.kill()
    process.stdout.close()
    try:
        process.stdin.close()
    except OSError:
        pass  # bytes that it did not read
    process.wait()


@contextmanager
def run_isolated(
    text: str, tables: Mapping[tuple[str, ...], pa.Table], memory_bytes: int, stop: Stop
) -> Iterator[IsolatedResult]:
    """EngineError says what is wrong. `stop` kills the process."""
    process = spare.take()
    assert process.stdin is not None and process.stdout is not None
    try:
        stop.interrupts(process.kill)
        size_bytes = sum(table.nbytes for table in tables.values())
        task = {
            "text": text,
            "paths": list(tables),
            "memory_bytes": memory_bytes,
            "address_bytes": _BASE_BYTES + 2 * memory_bytes + 2 * size_bytes,
            "cpu_s": int(stop.timeout_s * (os.cpu_count() or 1)) + 10,
        }
        try:
            process.stdin.write(json.dumps(task).encode() + b"\n")
            for table in tables.values():
                with pa.ipc.new_stream(process.stdin, table.schema) as writer:
                    writer.write_table(table)
            process.stdin.close()
        except OSError:
            pass  # it has ended: its last frame says why
        yield IsolatedResult(process.stdout)
    finally:
        stop.finish()
        _end(process)
        spare.fill()


def _main(source: IO[bytes], out: IO[bytes]) -> None:
    import duckdb

    line = source.readline()
    if not line:
        return  # there was no query
    task = json.loads(line)
    _limit(resource.RLIMIT_CPU, task["cpu_s"])
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, task["address_bytes"])
    try:
        tables = [pa.ipc.open_stream(source).read_all() for _ in task["paths"]]
        with open_engine(task["memory_bytes"]) as engine:
            for path, table in zip(task["paths"], tables, strict=True):
                define(engine, tuple(path), table)
            relation = engine.sql(task["text"])
            types = [str(kind) for kind in relation.types]
            reader = relation.to_arrow_reader(RESULT_ROWS)
            _send(out, b"S", reader.schema.serialize())
            _send(out, b"T", json.dumps(types).encode())
            for batch in reader:
                _send(out, b"B", batch.serialize())
        _send(out, b"Z", b"")
    except SqlError as error:
        _send(out, b"E", str(error).encode())
    except MemoryError:
        _send(out, b"E", b"Out of Memory")
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        text = str(error)
        _send(out, b"E", b"Out of Memory" if "bad_alloc" in text else text.encode()[:_MAX_FRAME_BYTES])


def _limit(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(kind, (most, most))


def _send(out: IO[bytes], kind: bytes, data: "bytes | pa.Buffer") -> None:
    size = len(data)
    if size > _MAX_FRAME_BYTES:
        raise SqlError(f"rows of the result are larger than {_MAX_FRAME_BYTES >> 20} MB", "select smaller values")
    out.write(_FRAME.pack(kind, size))
    out.write(data)
    out.flush()


if __name__ == "__main__":
    _main(sys.stdin.buffer, sys.stdout.buffer)
    os._exit(0)  # DuckDB's module writes of leaks at a usual exit
