"""A few machines on one fabric, for tests of the simulator's own parts."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from millstream.simulator.loop import Scheduler
from millstream.simulator.machine import Machine, Process
from millstream.simulator.network import Fabric


class Task:
    """A program that is one coroutine function."""

    def __init__(self, process: Process, main: Callable[[Process], Awaitable[None]]) -> None:
        self._process = process
        self._main = main

    async def start(self) -> None:
        await self._main(self._process)

    def stop(self) -> None:
        pass


class World:
    def __init__(self, seed: str = "test") -> None:
        self.scheduler = Scheduler()
        self.fabric = Fabric(self.scheduler, seed)
        self.complaints: list[tuple[str, dict[str, Any]]] = []
        self.seed = seed
        self.machines: dict[str, Machine] = {}
        self.exits: list[BaseException | None] = []

    def machine(self, name: str) -> Machine:
        if name not in self.machines:
            made = self.machines[name] = Machine(
                name,
                self.scheduler,
                self.fabric,
                self.seed,
                report_error=lambda where, what: self.report_error(where, what),
            )
            made.on_exit = self.exits.append
        return self.machines[name]

    def report_error(self, where: str, context: dict[str, Any]) -> None:
        self.complaints.append((where, context))

    def run_on(self, name: str, main: Callable[[Process], Awaitable[None]]) -> Process:
        return self.machine(name).start(lambda process: Task(process, main))

    def run(self, seconds: float) -> None:
        self.scheduler.run(until=self.scheduler.now + seconds)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    for machine in made.machines.values():
        machine.kill()
        machine.close_tasks()
    assert not made.complaints
    assert not [error for error in made.exits if error is not None]
