"""The fuzzer of the wire: `python -m tests.system.fuzz.frames --frames 1000000 [--seed N]`.

Starts a broker of its own and sends it frames of every API and version it offers, with values that are often absurd
(`values.py`, `batches.py`) and then mutated, some mildly and some beyond recognition (`mutation.py`): pipelined over
several connections, with connections reset in the middle and others that begin a frame and never end it. Now and then,
and at the end, a real client checks that the broker serves and that nothing it acknowledged is lost, and memory and
descriptors are looked at. Any trouble ends the run with exit code 1, the seed, and the frame in hex where it can be
found again.
"""

import argparse
import random
import selectors
import socket
import sys
import time
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tests.system.fuzz.mutation import leave_unfinished, mutate
from tests.system.fuzz.target import Target, Trouble
from tests.system.fuzz.values import Requests
from tests.system.fuzz.volley import Volley, connect, reset
from tests.wire import Closed, Wire

CONNECTIONS = 12
FRAMES_PER_VOLLEY = 100
CHECK_EVERY = 50_000
STALLED_SECONDS = 2.0
UNFINISHED_SHARE = 0.01
UNFINISHED_KEPT = 20
ABANDONED_SHARE = 0.02
SAMPLES_PER_VERSION = 12
RENEWED_PER_VOLLEY = 15
SOURCES = tuple(f"127.0.0.{number}" for number in range(2, 32))
LARGEST_GROWTH_MB = 150.0
LARGEST_DESCRIPTORS = 3000
# Those that wait for the disk, or respond with much, come less often: the time is better spent on more frames.
SELDOM = {
    "create_topics": 0.03,
    "delete_topics": 0.01,
    "create_partitions": 0.03,
    "alter_configs": 0.05,
    "incremental_alter_configs": 0.05,
    "describe_configs": 0.1,
    "describe_log_dirs": 0.1,
    "delete_records": 0.2,
    "join_group": 0.05,
    "sync_group": 0.1,
}


@dataclass
class Summary:
    frames: int = 0
    connections: int = 0
    closed_by_broker: int = 0
    waited: int = 0
    unfinished: int = 0
    seconds: float = 0.0
    resident_mb: list[float] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)


class Fuzzer:
    def __init__(self, target: Target, seed: int, apis: Collection[str] = ()) -> None:
        """Frames of the named APIs, or of all that the broker offers."""
        self._target = target
        self._chance = random.Random(seed)
        self._offered = [row for row in target.offered() if not apis or row[0] in apis]
        self._weights = [SELDOM.get(api, 1.0) for api, _, _ in self._offered]
        host, _, port = target.address.rpartition(":")
        self._address = (host, int(port))
        self._selector = selectors.DefaultSelector()
        self._unfinished: deque[socket.socket] = deque()
        self._requests = Requests(self._chance, [])
        self._kinds: list[tuple[str, int]] = []
        self.corpus: list[bytes] = []
        self.recent: deque[bytes] = deque(maxlen=CONNECTIONS * FRAMES_PER_VOLLEY * 4)
        self.summary = Summary()

    def run(self, frames: int) -> Iterator[int]:
        """Sends this many frames; yields how many the broker has dealt with so far."""
        summary, started = self.summary, time.monotonic()
        while summary.frames < frames:
            self.renew_corpus()
            yield from self._send(min(CHECK_EVERY, frames - summary.frames))
            self._check()
        summary.seconds = time.monotonic() - started

    def renew_corpus(self) -> None:
        self._requests = Requests(self._chance, self._target.tidy())
        self.corpus = []
        self._kinds = []
        for (api, first, last), weight in zip(self._offered, self._weights, strict=True):
            samples = max(1, round(SAMPLES_PER_VERSION * weight))
            kinds = [(api, version) for version in range(first, last + 1) for _ in range(samples)]
            # As many of an API with few versions as of one with many.
            kinds *= max(1, round(10 * weight / (last - first + 1))) if weight >= 1 else 1
            self._kinds += kinds
        self.corpus = [self._requests.frame(*kind) for kind in self._kinds]

    def _send(self, count: int) -> Iterator[int]:
        summary, goal = self.summary, self.summary.frames + count
        running: set[Volley] = set()
        while summary.frames < goal or running:
            while summary.frames + len(running) * FRAMES_PER_VOLLEY < goal and len(running) < CONNECTIONS:
                volley = self._new_volley()
                running.add(volley)
                self._watch(volley)
            if not running:
                volley = self._new_volley()
                running.add(volley)
                self._watch(volley)
            for key, events in self._selector.select(0.2):
                volley = key.data
                before = volley.done
                if events & selectors.EVENT_WRITE:
                    volley.send()
                    if not volley.wants_to_send:
                        self._selector.modify(volley.socket, selectors.EVENT_READ, volley)
                goes_on = True
                if events & selectors.EVENT_READ:
                    goes_on = self._receive(volley)
                summary.frames += volley.done - before
                if not goes_on:
                    self._next_step(volley, running)
            self._look_for_stalled(running)
            yield summary.frames

    def _receive(self, volley: Volley) -> bool:
        descriptor = volley.socket
        if volley.receive():
            return True
        self._selector.unregister(descriptor)
        return False

    def _next_step(self, volley: Volley, running: set[Volley]) -> None:
        """A connection is over: the rest of its frames goes over another, or the volley has ended."""
        if volley.finished:
            running.discard(volley)
            self.summary.connections += volley.connections
            self.summary.closed_by_broker += volley.closed_by_broker
            if volley.socket.fileno() >= 0:
                if self._chance.random() < 0.5:
                    reset(volley.socket)
                else:
                    volley.socket.close()
            return
        volley.open()
        self._watch(volley)

    def _watch(self, volley: Volley) -> None:
        self._selector.register(volley.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, volley)

    def _look_for_stalled(self, running: set[Volley]) -> None:
        now = time.monotonic()
        for volley in [each for each in running if now - each.last_progress > STALLED_SECONDS]:
            # A fetch whose time to wait was hit by a mutation; or the broker hangs, which the probe tells.
            self._target.probe()
            self._selector.unregister(volley.socket)
            before = volley.done
            volley.give_up()
            self.summary.waited += 1
            self.summary.frames += volley.done - before
            self._next_step(volley, running)

    def _new_volley(self) -> Volley:
        chance, corpus = self._chance, self.corpus
        for _ in range(RENEWED_PER_VOLLEY):
            place = chance.randrange(len(corpus))
            corpus[place] = self._requests.frame(*self._kinds[place])
        frames = [mutate(chance.choice(corpus), chance) for _ in range(FRAMES_PER_VOLLEY)]
        self.recent.extend(bytes(frame) for frame in frames)
        if chance.random() < UNFINISHED_SHARE * 10:
            self._begin_unfinished()
        if chance.random() < ABANDONED_SHARE:
            self._abandon(frames)
        return Volley(frames, self._address, chance.choice(SOURCES))

    def _begin_unfinished(self) -> None:
        """A connection that begins a frame, and then says no more."""
        chance = self._chance
        sock = connect(self._address, chance.choice(SOURCES))
        frame = leave_unfinished(bytearray(chance.choice(self.corpus)), chance)
        sock.send(frame[: chance.choice((1, 3, 4, 5, 13, 999))])
        self._unfinished.append(sock)
        self.summary.unfinished += 1
        if len(self._unfinished) > UNFINISHED_KEPT:
            reset(self._unfinished.popleft())

    def _abandon(self, frames: list[bytearray]) -> None:
        """A connection that asks much and is gone before the first response."""
        sock = connect(self._address, self._chance.choice(SOURCES))
        sock.send(b"".join(frames)[: self._chance.choice((100, 5000, 50_000))])
        reset(sock)

    def _check(self) -> None:
        while self._unfinished:
            reset(self._unfinished.popleft())
        target, summary = self._target, self.summary
        target.probe()
        target.check_log()
        target.check_kept()
        summary.resident_mb.append(target.resident_mb())
        summary.descriptors.append(target.descriptors())
        # The first look is the measure: by then every API has been used and every cache is warm.
        if summary.resident_mb[-1] - summary.resident_mb[0] > LARGEST_GROWTH_MB:
            raise Trouble(f"resident memory grew from {summary.resident_mb[0]:.0f} to {summary.resident_mb[-1]:.0f} MB")
        if summary.descriptors[-1] > LARGEST_DESCRIPTORS:
            raise Trouble(f"the broker holds {summary.descriptors[-1]} descriptors")

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.data.socket.close()
        self._selector.close()
        while self._unfinished:
            self._unfinished.popleft().close()

    def find_culprits(self) -> list[bytes]:
        """Which of the frames sent last make the broker log a failure again."""
        culprits = []
        for frame in self.recent:
            if not self._target.broker.running:
                break
            try:
                with Wire(self._target.address, timeout=2) as wire:
                    wire.send_raw(frame)
                    wire.receive_raw()
            except (OSError, Closed):
                pass
            try:
                self._target.check_log()
            except Trouble:
                culprits.append(frame)
        return culprits


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.system.fuzz.frames", description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--apis", default="", help="comma-separated names, as in wire.schema; all by default")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    console = Console()
    with Target() as target:
        fuzzer = Fuzzer(target, seed, [name for name in options.apis.split(",") if name])
        try:
            columns = (TextColumn("seed {task.fields[seed]}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            with Progress(*columns, console=console) as progress:
                task = progress.add_task("frames", total=options.frames, seed=seed)
                for done in fuzzer.run(options.frames):
                    progress.update(task, completed=min(done, options.frames))
        except (Trouble, OSError, Closed) as trouble:
            console.print(f"TROUBLE with seed {seed} after {fuzzer.summary.frames} frames: {trouble}", markup=False)
            for frame in fuzzer.find_culprits()[:5]:
                console.print(f"frame: {frame[:2000].hex()}", markup=False, soft_wrap=True)
            return 1
        finally:
            fuzzer.close()
        _report(console, seed, fuzzer.summary)
    return 0


def _report(console: Console, seed: int, summary: Summary) -> None:
    table = Table(title=f"The broker still serves (seed {seed})", show_header=False)
    rows = {
        "mutated frames dealt with": f"{summary.frames:,}",
        "frames per second": f"{summary.frames / max(summary.seconds, 0.001):,.0f}",
        "connections": f"{summary.connections:,}",
        "closed by the broker": f"{summary.closed_by_broker:,}",
        "given up while it waited": f"{summary.waited:,}",
        "frames begun, never ended": f"{summary.unfinished:,}",
        "resident memory": f"{summary.resident_mb[0]:.0f} MB at first, {summary.resident_mb[-1]:.0f} MB at last",
        "descriptors": f"{summary.descriptors[0]} at first, {summary.descriptors[-1]} at last",
    }
    for name, text in rows.items():
        table.add_row(name, text)
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
