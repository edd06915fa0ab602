"""Simulated streams: what TCP promises, and how it breaks."""

import asyncio
import hashlib
from collections.abc import Callable
from functools import partial
from typing import cast

import pytest

from millstream.node.runtime.disk import RealDisk
from millstream.node.server.network import CONNECT_TIMEOUT_SECONDS, UNACKNOWLEDGED_SECONDS
from millstream.node.server.service import FilePart
from millstream.node.storage.log.log_reader import Slice
from millstream.simulator.machine import Process
from millstream.simulator.transport import SimulatedTransport
from tests.unit.simulator.conftest import World


class Sink:
    """Accepts and reads everything."""

    def __init__(self, process: Process, port: int = 9092, *, reads: bool = True) -> None:
        self.received = bytearray()
        self.accepted: list[SimulatedTransport] = []
        self.ended = False
        self.broken: OSError | None = None
        self._reads = reads
        self.listening = process.network.listen("", port)
        self.listening.watch(self._accept)

    def _accept(self) -> None:
        transport = self.listening.accept()
        self.accepted.append(transport)
        if self._reads:
            transport.watch_readable(lambda: self._read(transport))

    def _read(self, transport: SimulatedTransport) -> None:
        buffer = bytearray(1000)
        try:
            count = transport.receive_into(memoryview(buffer))
        except OSError as error:
            self.broken = error
            transport.close()
            return
        if not count:
            self.ended = True
            transport.close()
        self.received += buffer[:count]


def _set(found: asyncio.Future[None]) -> None:
    if not found.done():
        found.set_result(None)


async def send_all(process: Process, transport: SimulatedTransport, data: bytes) -> None:
    position = 0
    while position < len(data):
        try:
            position += transport.send(data[position:])
        except BlockingIOError:
            writable: asyncio.Future[None] = process.loop.create_future()
            transport.watch_writable(partial(_set, writable))
            await writable
            transport.watch_writable(None)


def serve(world: World, name: str = "server", *, reads: bool = True) -> list[Sink]:
    sinks: list[Sink] = []

    async def main(process: Process) -> None:
        sinks.append(Sink(process, reads=reads))

    world.run_on(name, main)
    world.run(0.001)
    return sinks


def test_bytes_arrive_in_order_and_then_the_end(world: World) -> None:
    (sink,) = serve(world)
    data = bytes(range(256)) * 4000

    async def main(process: Process) -> None:
        transport = await process.network.connect("server", 9092)
        assert (transport.peer_host, transport.peer_port) == ("server", 9092)
        await send_all(process, transport, data)
        transport.close()

    world.run_on("client", main)
    world.run(30.0)
    assert hashlib.sha256(sink.received).digest() == hashlib.sha256(data).digest()
    assert sink.ended
    assert sink.accepted[0].peer_host == "client"


def test_files_are_sent_from_where_they_lie(world: World, tmp_path: object) -> None:
    (sink,) = serve(world)
    path = f"{tmp_path}/f"
    RealDisk().write_bytes(path, b"0123456789")

    async def main(process: Process) -> None:
        transport = await process.network.connect("server", 9092)
        assert transport.send_file(cast(FilePart, Slice(RealDisk().open(path), 2, 5, True)), 1) == 4

    world.run_on("client", main)
    world.run(1.0)
    assert sink.received == b"3456"


def test_connections_where_no_one_listens_are_refused(world: World) -> None:
    failures: list[OSError] = []

    async def main(process: Process) -> None:
        for host, port in (("server", 1), ("nowhere", 1)):
            try:
                await process.network.connect(host, port)
            except OSError as error:
                failures.append(error)

    serve(world)
    world.run_on("client", main)
    world.run(1.0)
    assert isinstance(failures[0], ConnectionRefusedError)
    assert "unknown host" in str(failures[1])


def test_an_address_is_taken_once_and_free_after_a_kill(world: World) -> None:
    async def main(process: Process) -> None:
        Sink(process)
        with pytest.raises(OSError, match="in use"):
            Sink(process)
        with pytest.raises(OSError, match="not an address"):
            process.network.listen("elsewhere", 9092)

    world.run_on("server", main)
    world.run(1.0)
    world.machine("server").kill()
    serve(world)


def connected(world: World, data: bytes = b"") -> list[SimulatedTransport]:
    """A client that has connected, sent something, and waits for whatever comes."""
    clients: list[SimulatedTransport] = []

    async def main(process: Process) -> None:
        transport = await process.network.connect("server", 9092)
        clients.append(transport)
        await send_all(process, transport, data)

    world.run_on("client", main)
    world.run(0.5)
    return clients


def state(transport: SimulatedTransport) -> str:
    try:
        return "ended" if transport.receive_into(memoryview(bytearray(10))) == 0 else "data"
    except BlockingIOError:
        return "silent"
    except OSError:
        return "broken"


def test_a_killed_process_says_goodbye(world: World) -> None:
    serve(world)
    (client,) = connected(world, b"hello")
    world.machine("server").kill()
    world.run(1.0)
    assert state(client) == "ended"
    client.send(b"anyone there?")
    world.run(1.0)
    assert state(client) == "broken"


def test_a_machine_without_power_says_nothing(world: World) -> None:
    serve(world)
    (client,) = connected(world)
    world.machine("server").kill(power_lost=True)
    client.send(b"anyone there?")
    world.run(UNACKNOWLEDGED_SECONDS - 0.1)
    assert state(client) == "silent"
    world.run(1.2)
    assert state(client) == "broken", "the kernel has given up"


def test_a_machine_that_comes_back_in_time_knows_nothing_of_the_stream(world: World) -> None:
    serve(world)
    (client,) = connected(world)
    world.machine("server").kill(power_lost=True)
    client.send(b"anyone there?")
    world.run(0.5)
    serve(world)
    world.run(1.5)
    assert state(client) == "broken"


def test_a_machine_that_comes_back_resets_a_stream_on_which_nothing_is_sent(world: World) -> None:
    """The last bytes were received before the power loss: only the keep-alive of the kernel notices it."""
    serve(world)
    (client,) = connected(world, b"hello")
    world.machine("server").kill(power_lost=True)
    world.run(0.5)
    serve(world)
    world.run(UNACKNOWLEDGED_SECONDS + 1.5)
    assert state(client) == "broken"


def attempts(world: World, blocked: Callable[[], None]) -> list[SimulatedTransport | OSError]:
    """What comes of attempts to connect, one after the other."""
    found: list[SimulatedTransport | OSError] = []

    async def main(process: Process) -> None:
        blocked()
        while not found or isinstance(found[-1], OSError):
            try:
                found.append(await process.network.connect("server", 9092))
            except OSError as error:
                found.append(error)

    world.run_on("client", main)
    return found


def test_an_attempt_to_connect_to_a_dead_machine_is_given_up(world: World) -> None:
    serve(world)
    found = attempts(world, lambda: world.machine("server").kill(power_lost=True))
    world.run(CONNECT_TIMEOUT_SECONDS + 0.5)
    assert [type(each) for each in found] == [TimeoutError]
    (sink,) = serve(world)
    world.run(CONNECT_TIMEOUT_SECONDS)
    assert len(found) == 3 and len(sink.accepted) == 1


@pytest.mark.parametrize("blocked", [("client", "server"), ("server", "client")])
def test_a_one_way_partition_keeps_connections_from_being_made(world: World, blocked: tuple[str, str]) -> None:
    serve(world)
    found = attempts(world, lambda: world.fabric.block(*blocked))
    world.run(5.0)
    assert {type(each) for each in found} == {TimeoutError}
    world.fabric.heal(*blocked)
    world.run(CONNECT_TIMEOUT_SECONDS + 0.1)
    assert isinstance(found[-1], SimulatedTransport)


async def _idle(process: Process) -> None:
    return


def test_a_short_partition_stalls_streams_and_loses_nothing(world: World) -> None:
    (sink,) = serve(world)
    (client,) = connected(world, b"before ")
    world.fabric.block("client", "server")
    client.send(b"during ")
    world.run(2.0)
    assert sink.received == b"before "
    world.fabric.heal("client", "server")
    client.send(b"after")
    world.run(0.5)
    assert sink.received == b"before ", "the kernel repeats after 0.2, 0.6, 1.4 and 3 s"
    world.run(1.5)
    assert sink.received == b"before during after"


@pytest.mark.parametrize("blocked", [("client", "server"), ("server", "client")])
def test_in_a_long_partition_the_end_that_connected_gives_up_and_the_other_does_not(
    world: World, blocked: tuple[str, str]
) -> None:
    (sink,) = serve(world)
    (client,) = connected(world, b"before ")
    world.fabric.block(*blocked)
    world.run(UNACKNOWLEDGED_SECONDS + 1.1)
    assert state(client) == "broken"
    client.close()
    world.fabric.heal(*blocked)
    world.run(5.0)
    assert not sink.ended and sink.broken is None
    sink.accepted[0].send(b"are you there?")
    world.run(1.0)
    assert isinstance(sink.broken, ConnectionResetError)


def test_without_acknowledgements_a_sender_gets_only_so_far(world: World) -> None:
    (sink,) = serve(world)
    (client,) = connected(world)
    world.fabric.block("server", "client")
    sent = 0
    with pytest.raises(BlockingIOError):
        while True:
            sent += client.send(b"x" * 1000)
            world.run(0.001)
    world.run(0.1)
    assert len(sink.received) == sent
    world.fabric.heal("server", "client")
    assert client.send(b"x") == 1


def test_a_reset_may_cut_at_any_byte(world: World) -> None:
    lengths = set()
    for _ in range(30):
        (sink,) = serve(world)
        (client,) = connected(world)
        client.send(b"x" * 100)
        client.reset()
        world.run(1.0)
        assert state(client) == "broken"
        assert isinstance(sink.broken, ConnectionResetError)
        lengths.add(len(sink.received))
        world.machine("server").kill()
        world.machine("client").kill()
    assert len(lengths) > 5
    assert max(lengths) == 100


def test_giving_up_while_connecting_leaves_nothing_open(world: World) -> None:
    (sink,) = serve(world)

    async def main(process: Process) -> None:
        task = asyncio.ensure_future(process.network.connect("server", 9092))
        await asyncio.sleep(delay)
        if not task.cancel():
            task.result().close()

    for step in range(40):
        delay = step * 0.0005
        world.run_on("client", main)
        world.run(1.0)
        assert not world.machine("client").process.network.transports  # type: ignore[union-attr]
        world.machine("client").kill()
    world.run(1.0)
    assert sink.accepted


def test_a_paused_reader_fills_its_window(world: World) -> None:
    serve(world)
    (client,) = connected(world)
    world.machine("server").pause()
    sent = 0
    with pytest.raises(BlockingIOError):
        while True:
            sent += client.send(b"x" * 1000)
    assert sent >= 4096
    world.machine("server").resume()
    world.run(1.0)
    assert client.send(b"x") == 1


def test_the_same_seed_gives_the_same_bytes_at_the_same_times() -> None:
    def run(seed: str) -> int:
        world = World(seed)
        serve(world)
        connected(world, b"some data" * 1000)
        return world.fabric.fingerprint

    assert run("1") == run("1") != run("2")
