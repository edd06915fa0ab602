"""A lane: an input topic, an output topic, a group, and the copiers of one client library between them."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from millstream.simulator.history import History
from tests.system.exactly_once.copier import CopierProcess, go_command, java_command, python_command

PARTITIONS = 2
COPIERS = 2
TRANSACTION_TIMEOUT_MS = 10_000
_BY_ERROR = "ended by an error"
_HOPELESS = 300


@dataclass(frozen=True, slots=True)
class Library:
    """How a client library copies."""

    name: str
    command: Callable[[], list[str]]
    group_protocol: str = "classic"
    assigned: bool = False
    """Each copier has its partitions, and with them its transactional id; else they share them as a group."""


LIBRARIES: Mapping[str, Library] = {
    each.name: each
    for each in (
        Library("confluent", lambda: python_command("confluent_copier.py")),
        Library("java", java_command, group_protocol="consumer"),
        Library("aiokafka", lambda: python_command("aiokafka_copier.py"), assigned=True),
        Library("franz-go", go_command),
    )
}


USUAL = ("confluent", "java", "aiokafka")
"""Two cores have enough to do with these."""


@dataclass
class Lane:
    """Keeps its copiers alive: who has died is started again at once, until it is time to leave."""

    library: Library
    bootstrap: str
    history: History
    directory: Path
    seed: int
    abort_chance: float = 0.15
    death_chance: float = 0.02
    careless: bool = False
    """Offsets are committed after the transaction instead of in it, which must be found out."""
    started: int = field(default=0, init=False)
    ends: Counter[str] = field(default_factory=Counter, init=False)
    troubles: list[str] = field(default_factory=list, init=False)
    copiers: dict[str, CopierProcess] = field(default_factory=dict, init=False)
    """By transactional id: the one that should be running."""
    past: list[CopierProcess] = field(default_factory=list, init=False)
    _closing: bool = field(default=False, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    @property
    def input(self) -> str:
        return f"in-{self.library.name}"

    @property
    def output(self) -> str:
        return f"out-{self.library.name}"

    @property
    def group(self) -> str:
        return f"group-{self.library.name}"

    @property
    def inputs(self) -> list[str]:
        return [f"{self.input}-{partition}" for partition in range(PARTITIONS)]

    @property
    def outputs(self) -> list[str]:
        return [f"{self.output}-{partition}" for partition in range(PARTITIONS)]

    @property
    def committed(self) -> int:
        """Transactions that copiers know to be committed."""
        with self._lock:
            return sum(each.committed for each in (*self.past, *self.copiers.values()))

    def start(self) -> None:
        for number in range(COPIERS):
            self._start(f"{self.library.name}-{number}", number)

    def tend(self) -> None:
        """Start the programs again that have ended; if they do nothing else, that is a problem, which is raised."""
        with self._lock:
            if self.ends[_BY_ERROR] > _HOPELESS:
                raise RuntimeError(f"copiers of {self.library.name} only end: {self.troubles[-1:]}")
            for number, (transactional_id, copier) in enumerate(list(self.copiers.items())):
                if not copier.running and not self._closing:
                    self._bury(copier)
                    self._start(transactional_id, number)

    def replace(self, transactional_id: str) -> CopierProcess:
        """Start another with the same transactional id beside the one that runs, which is returned."""
        with self._lock:
            number = list(self.copiers).index(transactional_id)
            old = self.copiers[transactional_id]
            self._start(transactional_id, number)
            return old

    def some_copier(self, chance: random.Random) -> CopierProcess:
        return self.copiers[chance.choice(sorted(self.copiers))]

    def bury(self, copier: CopierProcess) -> None:
        with self._lock:
            self._bury(copier)

    def leave(self) -> None:
        """Ask all to leave; no one is started again."""
        with self._lock:
            self._closing = True
            for copier in self.copiers.values():
                copier.leave()

    def close(self, deadline: float) -> list[str]:
        """Wait until all have left; who has not by then is killed, and told."""
        with self._lock:
            copiers = list(self.copiers.values())
            late = [copier.name for copier in copiers if not copier.wait(max(0.1, deadline - time.monotonic()))]
            for copier in copiers:
                self._bury(copier)
            self.copiers.clear()
        return [f"{name} did not leave when it was asked to" for name in late]

    def _start(self, transactional_id: str, number: int) -> None:
        self.started += 1
        arguments = {
            "bootstrap": self.bootstrap,
            "group": self.group,
            "input": self.input,
            "output": self.output,
            "transactional_id": transactional_id,
            "name": f"{transactional_id}.{self.started}",
            "partitions": str(number) if self.library.assigned else "",
            "seed": str(self.seed),
            "abort_chance": str(self.abort_chance),
            "death_chance": str(self.death_chance),
            "timeout_ms": str(TRANSACTION_TIMEOUT_MS),
            "max_records": "40",
            "group_protocol": self.library.group_protocol,
            "careless": "yes" if self.careless else "no",
        }
        log_file = self.directory / f"{transactional_id}.log"
        self.copiers[transactional_id] = CopierProcess(self.library.command(), arguments, self.history, log_file)

    def _bury(self, copier: CopierProcess) -> None:
        copier.wait()
        self.past.append(copier)
        self.troubles += [f"{copier.name}: {text}" for text in copier.troubles]
        if copier.killed_itself:
            self.ends["died in a transaction"] += 1
        elif copier.deliberate:
            self.ends["killed or asked to leave"] += 1
        else:
            self.ends[_BY_ERROR] += 1
