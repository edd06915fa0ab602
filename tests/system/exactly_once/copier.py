"""One process of a copier: started, killed, paused; what it tells goes into the history as it comes."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from millstream.simulator.history import Assigned, Commit, Fate, History, Outcome, Poll, Seen, Send, Source, Transaction
from tools import apache_kafka

COPIERS = Path(__file__).resolve().parent / "copiers"


def python_command(program: str) -> list[str]:
    return [sys.executable, str(COPIERS / program)]


def java_command() -> list[str]:
    """Apache Kafka's clients; compiled once, into the cache."""
    kafka = apache_kafka.resolve()
    source = COPIERS / "Copier.java"
    classes = apache_kafka.CACHE / "exactly-once"
    stamp = classes / "compiled-from"
    with apache_kafka.exclusive("exactly-once"):
        if not stamp.exists() or stamp.read_bytes() != source.read_bytes():
            classes.mkdir(parents=True, exist_ok=True)
            compiler = ["javac", "-d", str(classes), "-cp", kafka.classpath, str(source)]
            subprocess.run(compiler, check=True)
            stamp.write_bytes(source.read_bytes())
    log4j = f"-Dlog4j2.configurationFile={kafka.directory / 'log4j2-tool.properties'}"
    options = ["-Xmx128m", *apache_kafka.QUICK_START_OPTIONS, log4j]
    return ["java", *options, "-cp", f"{kafka.classpath}:{classes}", "Copier"]


def go_command() -> list[str]:
    """franz-go, from the module that the client tests have."""
    module = COPIERS.parents[1] / "clients" / "go"
    built = apache_kafka.CACHE / "exactly-once-go"
    sources = b"".join((module / name).read_bytes() for name in ("go.mod", "go.sum", "copier/main.go"))
    stamp = built / "built-from"
    with apache_kafka.exclusive("exactly-once-go"):
        if not stamp.exists() or stamp.read_bytes() != sources:
            built.mkdir(parents=True, exist_ok=True)
            subprocess.run(["go", "build", "-o", str(built / "copier"), "./copier"], cwd=module, check=True)
            stamp.write_bytes(sources)
    return [str(built / "copier")]


class CopierProcess:
    """Use `history` only through what it has written there when it is gone and `drained`."""

    def __init__(self, command: list[str], arguments: Mapping[str, str], history: History, log_file: Path) -> None:
        self.name = arguments["name"]
        self.transactional_id = arguments["transactional_id"]
        self.troubles: list[str] = []
        self.committed = 0
        self.deliberate = False
        """Whether it was killed or asked to leave by us."""
        self._input, self._output, self._group = (arguments[each] for each in ("input", "output", "group"))
        self._history = history
        self._transactions: dict[str, Transaction] = {}
        self._commits: dict[str, Commit] = {}
        with log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *(f"{name}={value}" for name, value in arguments.items())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def killed_itself(self) -> bool:
        """At one of its points: 137 is how Java says what Python says by being killed."""
        return self.process.poll() in (-signal.SIGKILL, 137) and not self.deliberate

    def kill(self) -> None:
        self.deliberate = True
        if self.running:
            self.process.send_signal(signal.SIGKILL)
        self.wait()

    def pause(self) -> None:
        if self.running:
            self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        if self.running:
            self.process.send_signal(signal.SIGCONT)

    def leave(self) -> None:
        """Asks it to end after its transaction; does not wait."""
        self.deliberate = True
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass

    def wait(self, timeout_s: float = 60.0) -> bool:
        """Until it is gone and all it said is in the history; False if it had to be killed."""
        in_time = True
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            in_time = False
            self.process.kill()
            self.process.wait()
        self._reader.join()
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdout.close()
        if not self.process.stdin.closed:
            try:
                self.process.stdin.close()
            except BrokenPipeError:
                pass
        return in_time

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):  # the last one may be torn by its death
                self._note(json.loads(line))

    def _note(self, said: dict[str, Any]) -> None:
        at = said["at"]
        match said["event"]:
            case "assigned":
                positions = {self._source_name(partition): offset for partition, offset in said["positions"].items()}
                self._history.reading.append(Assigned(self.name, at, positions, self._group, committed_only=True))
            case "begin":
                self._begin(said["transaction"], said["since"], at, said["records"])
            case "offsets":
                offsets = {self._source_name(partition): offset for partition, offset in said["offsets"].items()}
                commit = Commit(self.name, self._group, offsets, at, transaction=said["transaction"])
                self._commits[said["transaction"]] = commit
                self._history.commits.append(commit)
            case "committing":
                transaction = self._transactions[said["transaction"]]
                transaction.commit_invoked_at, transaction.fate = at, Fate.UNKNOWN
            case "committed":
                transaction = self._transactions[said["transaction"]]
                transaction.ended_at, transaction.fate = at, Fate.COMMITTED
                commit = self._commits[said["transaction"]]
                commit.finished_at, commit.outcome = at, Outcome.ACKED
                self.committed += 1
            case "aborted":
                transaction = self._transactions[said["transaction"]]
                transaction.ended_at, transaction.fate = at, Fate.ABORTED
            case "trouble":
                self.troubles.append(said["what"])

    def _begin(self, name: str, since: float, at: float, records: list[tuple[int, int, str]]) -> None:
        transaction = Transaction(name, self.name, at)
        self._transactions[name] = transaction
        self._history.transactions.append(transaction)
        seen = tuple(Seen(self._source_name(partition), offset, value) for partition, offset, value in records)
        self._history.reading.append(Poll(self.name, since, at, seen))
        for partition, offset, value in records:
            self._history.sends.append(
                Send(
                    self.name,
                    f"{self._output}-{partition}",
                    f"{name} {value}",
                    at,
                    transaction=name,
                    source=Source(self._source_name(partition), offset),
                )
            )

    def _source_name(self, partition: int | str) -> str:
        return f"{self._input}-{partition}"
