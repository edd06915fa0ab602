"""The log of a Parquet table: what is in the table is what its log says, one small JSON file per version.

`_millstream_log/%020d.json` is created only if it is not there (so of two writers one wins, and the other looks again),
and holds what changed: files added and removed, the schema, the newest transaction of an app. Now and then a
`.checkpoint.json` holds the whole state, so that a reader reads a few files and not all of them.
"""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from millstream.lake.errors import LakeError
from millstream.lake.storage import Storage
from millstream.spark.sink.batch_input import BatchInput

LOG_DIRECTORY: Final = "_millstream_log"
CHECKPOINT_EVERY: Final = 50
_ENTRY: Final = re.compile(rf"{LOG_DIRECTORY}/(\d{{20}})(\.checkpoint)?\.json")


@dataclass(frozen=True)
class LoggedFile:
    """A data file in the log; values and bounds as JSON has them."""

    path: str
    size: int
    rows: int
    partition: dict[str, str | None] = field(default_factory=dict)
    ranges: dict[str, list[Any]] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "size": self.size,
            "rows": self.rows,
            "partition": self.partition,
            "ranges": self.ranges,
        }


@dataclass(frozen=True)
class LogState:
    """A table at one version."""

    version: int
    schema: pa.Schema
    partition_by: str
    files: dict[str, LoggedFile] = field(default_factory=dict)
    apps: dict[str, int] = field(default_factory=dict)
    inputs: dict[str, BatchInput] = field(default_factory=dict)
    """What the newest write of each app was made of, where that is known."""


@dataclass(frozen=True)
class LogEntry:
    """What one version changed."""

    operation: str
    time: datetime
    schema: pa.Schema | None = None
    partition_by: str | None = None
    added: Sequence[LoggedFile] = ()
    removed: Sequence[str] = ()
    app: tuple[str, int] | None = None
    input: BatchInput | None = None

    def document(self) -> dict[str, Any]:
        return {
            "operation": self.operation,
            "time": self.time.isoformat(),
            "schema": None if self.schema is None else schema_to_text(self.schema),
            "columns": None if self.schema is None else {each.name: str(each.type) for each in self.schema},
            "partitionBy": self.partition_by,
            "add": [file.document() for file in self.added],
            "remove": list(self.removed),
            "app": None if self.app is None else self._app_document(*self.app),
        }

    def _app_document(self, app: str, number: int) -> dict[str, Any]:
        document = {"id": app, "number": number}
        return document if self.input is None else {**document, "input": self.input.to_json()}

    @staticmethod
    def parse(data: bytes, path: str) -> "LogEntry":
        try:
            document = json.loads(data)
            app = document["app"]
            return LogEntry(
                document["operation"],
                datetime.fromisoformat(document["time"]),
                None if document["schema"] is None else schema_from_text(document["schema"]),
                document["partitionBy"],
                [LoggedFile(**file) for file in document["add"]],
                document["remove"],
                None if app is None else (app["id"], app["number"]),
                None if app is None else BatchInput.from_json(app.get("input")),
            )
        except (ValueError, KeyError, TypeError, pa.ArrowInvalid) as error:
            raise LakeError(f"{path} is not an entry of a table's log: {error}") from error


class ParquetLog:
    """Reading and appending to the log of one table."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def newest(self) -> LogState | None:
        """The newest state, or None if there is no table."""
        return self.at(None)

    def at(self, version: int | None) -> LogState | None:
        """The state at a version (None: the newest); None if there is no such."""
        entries, checkpoints = self._listed()
        last = max(entries, default=None) if version is None else version
        if last is None or last not in entries:
            return None
        start = max((each for each in checkpoints if each <= last), default=None)
        state = None if start is None else self._read_checkpoint(start)
        for number in range(0 if start is None else start + 1, last + 1):
            state = _apply(state, number, self.entry(number))
        return state

    def entry(self, version: int) -> LogEntry:
        path = _path(version)
        data = self._storage.get(path)
        if data is None:
            raise LakeError(f"{self._storage.full(path)} is missing: the table's log has a hole")
        return LogEntry.parse(data, self._storage.full(path))

    def versions(self) -> list[int]:
        return sorted(self._listed()[0])

    def append(self, state: LogState | None, entry: LogEntry) -> LogState | None:
        """Make the version after `state`; None if somebody else made it first."""
        version = 0 if state is None else state.version + 1
        if not self._storage.create_only(_path(version), json.dumps(entry.document()).encode()):
            return None
        if state is not None and self._storage.get(_path(state.version)) is None:
            # That version was trimmed, and so was the one that followed it: we are long behind.
            self._storage.delete(_path(version))
            return None
        new = _apply(state, version, entry)
        if version and version % CHECKPOINT_EVERY == 0:
            self._storage.put(_path(version, ".checkpoint"), json.dumps(_checkpoint(new)).encode())
        return new

    def trim(self, limit: datetime) -> int:
        """Delete entries from before the newest checkpoint of that age: these versions can no longer be read."""
        entries, checkpoints = self._listed()
        old = [each for each in checkpoints if each in entries and self.entry(each).time <= limit]
        if not old:
            return 0
        gone = [_path(each) for each in sorted(entries) if each < max(old)]  # in order: `append` relies on it
        gone += [_path(each, ".checkpoint") for each in checkpoints if each < max(old)]
        for path in gone:
            self._storage.delete(path)
        return len(gone)

    def _listed(self) -> tuple[set[int], set[int]]:
        found = [_ENTRY.fullmatch(each.path) for each in self._storage.listed(LOG_DIRECTORY)]
        entries = {int(match[1]) for match in found if match and not match[2]}
        return entries, {int(match[1]) for match in found if match and match[2]}

    def _read_checkpoint(self, version: int) -> LogState:
        path = _path(version, ".checkpoint")
        try:
            document = json.loads(self._storage.get(path) or b"")
            files = [LoggedFile(**file) for file in document["files"]]
            return LogState(
                version,
                schema_from_text(document["schema"]),
                document["partitionBy"],
                {file.path: file for file in files},
                document["apps"],
                _inputs_from(document.get("inputs", {})),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise LakeError(
                f"{self._storage.full(path)} is damaged ({error}): delete it, the log has all of it"
            ) from error


def now() -> datetime:
    return datetime.now(UTC)


def schema_to_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def schema_from_text(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _path(version: int, kind: str = "") -> str:
    return f"{LOG_DIRECTORY}/{version:020d}{kind}.json"


def _apply(state: LogState | None, version: int, entry: LogEntry) -> LogState:
    if state is None:
        if entry.schema is None:
            raise LakeError(f"version {version} of a table's log has no schema, and none is before it")
        state = LogState(version, entry.schema, entry.partition_by or "")
    gone = set(entry.removed)
    files = {path: file for path, file in state.files.items() if path not in gone} if gone else dict(state.files)
    files |= {file.path: file for file in entry.added}
    apps = state.apps if entry.app is None else {**state.apps, entry.app[0]: entry.app[1]}
    inputs = state.inputs
    if entry.app is not None:
        inputs = {app: each for app, each in inputs.items() if app != entry.app[0]}
        if entry.input is not None:
            inputs[entry.app[0]] = entry.input
    return replace(state, version=version, schema=entry.schema or state.schema, files=files, apps=apps, inputs=inputs)


def _inputs_from(document: Mapping[str, Any]) -> dict[str, BatchInput]:
    parsed = {app: BatchInput.from_json(each) for app, each in document.items()}
    return {app: each for app, each in parsed.items() if each is not None}


def _checkpoint(state: LogState) -> dict[str, Any]:
    return {
        "schema": schema_to_text(state.schema),
        "partitionBy": state.partition_by,
        "files": [file.document() for file in state.files.values()],
        "apps": state.apps,
        "inputs": {app: each.to_json() for app, each in state.inputs.items()},
    }
