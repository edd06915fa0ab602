"""The number of nodes of a data directory, and its change: logs move between the folders of the nodes by rename.

`cores/cores.json` in the data directory has the number of nodes; without it there is one. When `serve --cores` gives
another number, this happens before any node runs:

1. The plan is written to `cores.json`: which log goes to which node.
2. The offsets of these logs (recovery points, log start offsets, high watermarks and so on) are added to the
   checkpoints of their new folders. A folder that gets logs of a node that did not stop cleanly loses its own mark of a
   clean stop, so that its logs are checked.
3. The directories of the logs are renamed.
4. Each folder gets a `handover.json`. Its node reports it when it registers, and the controller changes the metadata
   (`node/metadata/handover.py`).
5. When all nodes serve, the `handover.json` files are removed, then the folders of nodes that are gone, then the plan.

Every step can be repeated. So a process that was killed at any point goes on with the plan at the next start, and until
the plan is done no other number of nodes is accepted. A log is never copied and never removed: what cannot be moved
stays in its folder, and a line in the log names it.
"""

import contextlib
import fcntl
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Collection, Generator, Iterator, Sequence
from typing import IO, Any
from uuid import UUID

from millstream.common.lazy_dataclass import dataclass
from millstream.config.broker_config import BrokerConfig
from millstream.config.cores import FOLDERS, MAX_CORES, core_folder, core_id
from millstream.config.setting import ConfigError
from millstream.formats.model.identifiers import NO_TOPIC_ID, BrokerId, TopicPartition
from millstream.node.metadata.handover import AdoptedReplica
from millstream.node.metadata.topic_names import CLUSTER_METADATA_TOPIC
from millstream.node.runtime.disk import RealDisk
from millstream.node.runtime.handover_file import FILE_NAME as HANDOVER
from millstream.node.runtime.handover_file import Handover, encode_handover
from millstream.node.runtime.identity import read_identity
from millstream.node.storage.file_formats import (
    CLEAN_SHUTDOWN,
    CLEANED_OFFSETS,
    HIGH_WATERMARKS,
    LOCK,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    TRANSACTION_INDEXES,
    DamagedFileError,
    decode_offset_lists,
    encode_offset_lists,
    parse_directory,
)
from millstream.node.storage.log.loader import read_topic_id
from millstream.node.tier.cache import CACHE_DIRECTORY

_log = logging.getLogger("millstream.cores")
STATE_FILE = "cores.json"
CONTROLLER_PORT = "controller-port"
"""The file with the port of the listener between the nodes, so that it stays the same."""
_PREDECESSOR_TIMEOUT_SECONDS = 15.0
"""A node whose supervisor was killed ends within ten seconds."""
_POLL_INTERVAL_SECONDS = 0.05
_CHECKPOINTS = (RECOVERY_POINTS, LOG_START_OFFSETS, HIGH_WATERMARKS, CLEANED_OFFSETS, TRANSACTION_INDEXES)


@dataclass(frozen=True, slots=True)
class Move:
    """A log, and the places of the node that has it and of the one that gets it. Place 0 is the first node."""

    directory: str
    source: int
    target: int


def plan_moves(held: Sequence[Collection[str]], count: int) -> list[Move]:
    """The moves from the present nodes, with the logs that each of them has, to `count` nodes.

    With more nodes, logs move only to new ones, until these have their share; the partitions of each topic are spread.
    With fewer nodes, the logs of those that go move to the others. A log that all others have too moves to the first:
    it is not renamed, and its replica is dropped.
    """
    logs = [set(each) for each in held] + [set() for _ in range(count - len(held))]
    topics = [Counter(_topic(name) for name in each) for each in logs]
    moves: list[Move] = []

    def move(directory: str, source: int, target: int) -> None:
        moves.append(Move(directory, source, target))
        logs[source].discard(directory)
        topics[source][_topic(directory)] -= 1
        logs[target].add(directory)
        topics[target][_topic(directory)] += 1

    for source in range(count, len(held)):
        for directory in sorted(held[source]):
            free = [index for index in range(count) if directory not in logs[index]]
            if free:
                move(directory, source, min(free, key=lambda i: (topics[i][_topic(directory)], len(logs[i]), i)))
            else:
                moves.append(Move(directory, source, 0))
    while len(held) < count:
        source = max(range(len(held)), key=lambda index: (len(logs[index]), -index))
        target = min(range(len(held), count), key=lambda index: (len(logs[index]), index))
        movable = logs[source] - logs[target]
        if len(logs[source]) - len(logs[target]) < 2 or not movable:
            break
        move(
            max(movable, key=lambda name: (topics[source][_topic(name)] - topics[target][_topic(name)], name)),
            source,
            target,
        )
    return moves


def _topic(directory: str) -> str:
    return directory.rpartition("-")[0]


def stored_nodes(data_dir: str) -> int:
    """The number of nodes of a data directory; during a change, the larger one."""
    state = _read_state(os.path.abspath(data_dir))
    plan = state.get("plan")
    return int(max(state["nodes"], plan["from"] if plan else 0, plan["to"] if plan else 0))


class Resizing:
    """The nodes of one data directory. Use it in a `with` statement: it locks the directory.

    `run` prepares the folders for `count` nodes; `finish` ends the change when all nodes serve.
    """

    def __init__(self, config: BrokerConfig, count: int) -> None:
        self._config = config
        self._count = count
        self._root = os.path.abspath(config.data_dir)
        self._disk = RealDisk()
        self._lock: IO[str] | None = None

    def __enter__(self) -> "Resizing":
        os.makedirs(f"{self._root}/{FOLDERS}", exist_ok=True)
        self._lock = open(f"{self._root}/{FOLDERS}/{LOCK}", "w")  # held until __exit__
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise ConfigError(
                f"{self._root} is in use by another `millstream serve --cores`: stop it, or use another --data-dir",
                name="log.dirs",
            ) from None
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            if os.listdir(f"{self._root}/{FOLDERS}") == [LOCK]:
                os.remove(f"{self._root}/{FOLDERS}/{LOCK}")
                os.rmdir(f"{self._root}/{FOLDERS}")
        if self._lock is not None:
            self._lock.close()

    def run(self) -> None:
        """Prepares the folders; continues a change that was interrupted."""
        for step in self.steps():
            _log.debug("cores_change step=%s", step)

    def steps(self) -> Generator[str, None, None]:
        """The steps of `run`; each has its name when it is done."""
        state = _read_state(self._root)
        plan = state.get("plan")
        self._wait_for_predecessors(max(state["nodes"], self._count))
        if plan is None and state["nodes"] == self._count:
            return
        if plan is not None and plan["to"] != self._count:
            raise ConfigError(
                f"the change of {self._root} from {plan['from']} to {plan['to']} nodes is not complete: start it once "
                f"with --cores {plan['to']}, then with --cores {self._count}",
                name="millstream.cores",
            )
        with self._folders_locked(max(state["nodes"], self._count)):
            if plan is None:
                self._check_several_directories(state["nodes"])
                plan = self._plan(state["nodes"])
                self._write_state({"nodes": state["nodes"], "plan": plan})
                _log.info("cores_change from=%d to=%d logs=%d", plan["from"], plan["to"], len(plan["moves"]))
                yield "plan"
            moves = [Move(row["directory"], row["source"], row["target"]) for row in plan["moves"]]
            self._remove_marks(plan, moves)
            yield "marks"
            for index in sorted({each.target for each in moves}):
                self._add_checkpoints(index, [each for each in moves if each.target == index])
                yield f"checkpoints {index + 1}"
            for each in moves:
                if self._rename(each):
                    yield f"rename {each.directory}"
            for index in range(self._count):
                self._write_handover(index, plan, moves)
                yield f"handover {index + 1}"

    def _check_several_directories(self, present: int) -> None:
        """Logs are renamed within one directory. With several log directories the number of nodes stays."""
        if len(self._config.log_dirs) == 1:
            return
        for directory in self._config.log_dirs:
            for index in range(present):
                folder = core_folder(os.path.abspath(directory), index)
                if any(_log_directories(self._disk, folder)):
                    raise ConfigError(
                        f"{folder} has logs, and log.dirs has {len(self._config.log_dirs)} directories: the number of "
                        f"nodes cannot change then. Start with --cores {present}, or use empty log directories",
                        name="millstream.cores",
                    )

    def finish(self) -> None:
        """Ends the change: all nodes have registered, and serve."""
        state = _read_state(self._root)
        plan = state.get("plan")
        if plan is None:
            return
        for index in range(max(plan["from"], plan["to"])):
            path = f"{self._folder(index)}/{HANDOVER}"
            if self._disk.exists(path):
                self._disk.remove(path)
        left = [self._remove_folder(index) for index in range(self._count, plan["from"])]
        if self._count > 1 or not all(left):
            self._write_state({"nodes": self._count})
        else:
            for name in (STATE_FILE, CONTROLLER_PORT):
                if self._disk.exists(f"{self._root}/{FOLDERS}/{name}"):
                    self._disk.remove(f"{self._root}/{FOLDERS}/{name}")
        self._disk.sync_directory(f"{self._root}/{FOLDERS}")
        _log.info("cores_change_complete from=%d to=%d logs=%d", plan["from"], plan["to"], len(plan["moves"]))

    # The plan

    def _plan(self, present: int) -> dict[str, Any]:
        held: list[set[str]] = []
        nodes: list[dict[str, Any]] = []
        for index in range(present):
            folder = self._folder(index)
            held.append(set(_log_directories(self._disk, folder)))
            identity = read_identity(self._disk, folder)
            nodes.append(
                {
                    "directory": None if identity is None else str(identity.directory_id),
                    "epoch": _clean_epoch(self._disk, folder),
                }
            )
        moves = plan_moves(held, self._count)
        ids = {}
        for each in moves:
            topic_id = read_topic_id(self._disk, f"{self._folder(each.source)}/{each.directory}")
            if topic_id == NO_TOPIC_ID:
                raise ConfigError(
                    f"{self._folder(each.source)}/{each.directory}: the file partition.metadata is damaged: start with "
                    f"--cores {present} once, which restores it",
                    name="log.dirs",
                )
            if nodes[each.source]["directory"] is None:
                raise ConfigError(
                    f"{self._folder(each.source)}/meta.properties has no directory.id: start with --cores {present} "
                    "once, which adds it",
                    name="log.dirs",
                )
            ids[each.directory] = str(topic_id)
        return {
            "from": present,
            "to": self._count,
            "nodes": nodes,
            "moves": [
                {
                    "directory": each.directory,
                    "source": each.source,
                    "target": each.target,
                    "topic_id": ids[each.directory],
                }
                for each in moves
            ],
        }

    def _write_state(self, state: dict[str, Any]) -> None:
        text = json.dumps({"version": 1, **state}, indent=1) + "\n"
        self._disk.write_atomically(f"{self._root}/{FOLDERS}/{STATE_FILE}", text.encode())

    # Folders

    def _folder(self, index: int) -> str:
        return core_folder(self._root, index)

    @contextlib.contextmanager
    def _folders_locked(self, count: int) -> Iterator[None]:
        """Holds the locks of all nodes: none of them runs."""
        with contextlib.ExitStack() as locks:
            for index in range(count):
                self._disk.make_directory(self._folder(index))
                lock = self._disk.lock(f"{self._folder(index)}/{LOCK}")
                if lock is None:
                    raise self._in_use(index)
                locks.callback(lock.release)
            yield

    def _wait_for_predecessors(self, count: int) -> None:
        """Waits until the nodes of a supervisor that was killed have ended; they do so by themselves."""
        give_up_s = time.monotonic() + _PREDECESSOR_TIMEOUT_SECONDS
        is_noted = False
        for index in range(count):
            while self._disk.exists(path := f"{self._folder(index)}/{LOCK}"):
                lock = self._disk.lock(path)
                if lock is not None:
                    lock.release()
                    break
                if time.monotonic() > give_up_s:
                    raise self._in_use(index)
                if not is_noted:
                    _log.warning("directory_in_use folder=%s: waiting until its node has ended", self._folder(index))
                    is_noted = True
                time.sleep(_POLL_INTERVAL_SECONDS)

    def _in_use(self, index: int) -> ConfigError:
        return ConfigError(
            f"{self._folder(index)} is in use by another broker (its lock file {LOCK} is held): stop it, or use "
            "another --data-dir",
            name="log.dirs",
        )

    def _remove_marks(self, plan: dict[str, Any], moves: Sequence[Move]) -> None:
        for index in {each.target for each in moves if plan["nodes"][each.source]["epoch"] < 0}:
            path = f"{self._folder(index)}/{CLEAN_SHUTDOWN}"
            if self._disk.exists(path):
                self._disk.remove(path)
                self._disk.sync_directory(self._folder(index))

    def _add_checkpoints(self, target: int, moves: Sequence[Move]) -> None:
        """Adds the entries of logs that are not renamed yet; the others have been added before."""
        waiting = [each for each in moves if self._is_waiting(each)]
        for name in _CHECKPOINTS if waiting else ():
            entries = _entries(self._disk, f"{self._folder(target)}/{name}")
            sources = {each.source: _entries(self._disk, f"{self._folder(each.source)}/{name}") for each in waiting}
            path = f"{self._folder(target)}/{name}"
            if name == TRANSACTION_INDEXES:
                # Without this file the next start searches all segments. It must list all logs, or be missing.
                if None in sources.values() and self._disk.exists(path):
                    self._disk.remove(path)
                if None in sources.values() or (
                    entries is None and any(_log_directories(self._disk, self._folder(target)))
                ):
                    continue
            merged = dict(entries or {})
            for each in waiting:
                partition = parse_directory(each.directory)
                assert partition is not None
                found = (sources[each.source] or {}).get(partition)
                if found is None:
                    merged.pop(partition, None)
                else:
                    merged[partition] = found
            self._disk.write_atomically(path, encode_offset_lists(merged))

    def _is_waiting(self, move: Move) -> bool:
        return self._disk.exists(self._path(move.source, move)) and not self._disk.exists(self._path(move.target, move))

    def _path(self, index: int, move: Move) -> str:
        return f"{self._folder(index)}/{move.directory}"

    def _rename(self, move: Move) -> bool:
        if not self._is_waiting(move):
            return False
        source, target = self._path(move.source, move), self._path(move.target, move)
        try:
            self._disk.rename(source, target)
        except OSError as error:
            raise ConfigError(
                f"{source} cannot be renamed to {target} ({error.strerror}): all folders of a data directory must be "
                "on one file system",
                name="log.dirs",
            ) from error
        self._disk.sync_directory(self._folder(move.target))
        self._disk.sync_directory(self._folder(move.source))
        return True

    def _write_handover(self, index: int, plan: dict[str, Any], moves: Sequence[Move]) -> None:
        topic_ids = {row["directory"]: UUID(row["topic_id"]) for row in plan["moves"]}
        adopted: list[AdoptedReplica] = []
        given: list[tuple[UUID, int]] = []
        for each in moves:
            partition = parse_directory(each.directory)
            assert partition is not None
            is_dropped = each.source >= self._count and self._disk.exists(self._path(each.source, each))
            # A log that is in its old folder again was moved back since: it is not given twice.
            if self._disk.exists(self._path(each.source, each)) and not is_dropped:
                continue
            if each.target == index:
                former = plan["nodes"][each.source]
                adopted.append(
                    AdoptedReplica(
                        topic_id=topic_ids[each.directory],
                        partition=partition.partition,
                        from_broker=BrokerId(core_id(self._config, each.source)),
                        from_directory=UUID(former["directory"]),
                        from_epoch=former["epoch"],
                    )
                )
            elif each.source == index:
                given.append((topic_ids[each.directory], partition.partition))
        retired = tuple(core_id(self._config, gone) for gone in range(self._count, plan["from"]))
        handover = Handover(adopted=tuple(adopted), given=tuple(given), retired=retired)
        self._disk.write_atomically(f"{self._folder(index)}/{HANDOVER}", encode_handover(handover))

    def _remove_folder(self, index: int) -> bool:
        """Removes the folder of a node that is gone, unless there is a log in it; returns whether it was removed."""
        folder = self._folder(index)
        left = [
            name
            for name, is_directory in (self._disk.list(folder) if self._disk.exists(folder) else ())
            if is_directory and not name.startswith(f"{CLUSTER_METADATA_TOPIC}-") and name != CACHE_DIRECTORY
        ]
        if left:
            _log.warning(
                "folder_kept folder=%s logs=%d first=%s: these logs were not moved, because another node of this "
                "machine has the partition, or because they belong to no known topic; the folder can be removed by "
                "hand when `millstream cluster status` shows no problem",
                folder, len(left), left[0],
            )  # fmt: skip
            return False
        if self._disk.exists(folder):
            self._disk.remove_directory(folder)
        return True


def _read_state(data_dir: str) -> dict[str, Any]:
    path = f"{data_dir}/{FOLDERS}/{STATE_FILE}"
    try:
        with open(path, encoding="utf-8") as file:
            state = json.load(file)
        if state["version"] != 1 or not 1 <= state["nodes"] <= MAX_CORES:
            raise ValueError(state)
    except FileNotFoundError:
        return {"nodes": 1}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} cannot be read ({type(error).__name__}): restore it; it has the number of nodes, for example "
            '{"version": 1, "nodes": 2}',
            name="log.dirs",
        ) from None
    found: dict[str, Any] = state
    return found


def _log_directories(disk: RealDisk, folder: str) -> Iterator[str]:
    for name, is_directory in disk.list(folder) if disk.exists(folder) else ():
        partition = parse_directory(name) if is_directory else None
        if partition is not None and partition.topic != CLUSTER_METADATA_TOPIC:
            yield name


def _clean_epoch(disk: RealDisk, folder: str) -> int:
    """The broker epoch in the mark of a clean stop; -1 without one."""
    path = f"{folder}/{CLEAN_SHUTDOWN}"
    if not disk.exists(path):
        return -1
    try:
        return int(json.loads(disk.read_bytes(path))["brokerEpoch"])
    except (ValueError, KeyError, TypeError):
        return -1


def _entries(disk: RealDisk, path: str) -> dict[TopicPartition, list[int]] | None:
    """The entries of a checkpoint; None if there is none, or it is damaged."""
    if not disk.exists(path):
        return None
    try:
        return decode_offset_lists(disk.read_bytes(path))
    except DamagedFileError:
        return None
