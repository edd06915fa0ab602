"""Connections over real sockets: order, pipelining, backpressure, and frames that come in any shape."""

import itertools
import os
import socket
import struct
import threading
from functools import partial
from pathlib import Path

import pytest

from millstream.node.runtime.disk import RealDisk
from millstream.node.server.connection import TURN_REQUESTS
from tests.integration.node.server.conftest import NUMBER, RunningListener, Start, frame
from tests.waiting import TIMEOUT_SECONDS
from tests.wire import Closed, Wire


def resident_mb() -> float:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def test_responses_keep_the_order_of_requests_while_the_first_one_waits(start: Start) -> None:
    running = start()
    wire = running.connect()
    wire.send_raw(frame(b"wait a") + frame(b"say 1") + frame(b"wait b") + frame(b"none") + frame(b"say 2"))
    running.until(lambda: len(running.service.seen) == 5)  # all were handled although the first has no response
    running.respond(b"b", b"second")
    running.respond(b"a", b"first")
    assert [wire.receive_raw() for _ in range(4)] == [b"first", b"1", b"second", b"2"]


def test_one_connection_does_not_keep_the_others_from_their_turns(start: Start) -> None:
    running = start()
    first, second = running.connect(), running.connect()
    for wire in (first, second):
        wire.send_raw(frame(b"say ready"))
        assert wire.receive_raw() == b"ready"
    running.service.seen.clear()
    stopped, arrived = threading.Event(), threading.Event()

    def stop() -> None:
        stopped.set()
        arrived.wait(TIMEOUT_SECONDS)

    running.loop.call_soon_threadsafe(stop)  # the loop stands still until all of it has arrived
    assert stopped.wait(TIMEOUT_SECONDS)
    count = 1000
    for name, wire in ((b"a", first), (b"b", second)):
        wire.send_raw(b"".join(frame(b"say %s%d" % (name, number)) for number in range(count)))
    arrived.set()
    for name, wire in ((b"a", first), (b"b", second)):
        assert [wire.receive_raw() for _ in range(count)] == [b"%s%d" % (name, number) for number in range(count)]
    whose = [text[4:5] for text in running.service.seen]
    runs = [len(list(run)) for _, run in itertools.groupby(whose)]
    assert len(whose) == 2 * count
    assert max(runs[:10]) <= TURN_REQUESTS, "neither has more than its budget while the other waits"


def test_a_connection_whose_request_waits_for_its_turn_is_not_read_on(start: Start) -> None:
    running = start()
    wire, other = running.connect(), running.connect()
    wire.send_raw(frame(b"pause a") + frame(b"say 1") + frame(b"pause b") + frame(b"say 2"))
    running.until(lambda: b"a" in running.service.pauses)
    other.send_raw(frame(b"say other"))
    assert other.receive_raw() == b"other"
    assert running.service.seen == [b"pause a", b"say other"]
    running.on_loop(lambda: running.service.pauses[b"a"].end())
    assert [wire.receive_raw(), wire.receive_raw(), wire.receive_raw()] == [b"a", b"1", b"b"]
    running.on_loop(lambda: running.service.pauses[b"b"].end())
    assert wire.receive_raw() == b"2"


def test_a_connection_may_end_while_its_request_waits_for_its_turn(start: Start) -> None:
    running = start()
    wire = running.connect()
    wire.send_raw(frame(b"pause a") + frame(b"say 1"))
    running.until(lambda: b"a" in running.service.pauses)
    running.on_loop(lambda: next(iter(running.listener.connections)).close())
    running.on_loop(lambda: running.service.pauses[b"a"].end())
    assert running.service.seen == [b"pause a"]


def test_a_response_that_is_ready_is_sent_while_a_later_one_waits(start: Start) -> None:
    running = start()
    wire = running.connect()
    wire.send_raw(frame(b"say 1") + frame(b"wait a"))
    assert wire.receive_raw() == b"1"


def test_a_frame_may_be_split_anywhere(start: Start) -> None:
    wire = start().connect()
    wire.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    data = frame(b"say hello")
    for cut in range(1, len(data)):
        wire.send_raw(data[:cut])
        wire.send_raw(data[cut:] + data[:cut])
        wire.send_raw(data[cut:])
        assert [wire.receive_raw(), wire.receive_raw()] == [b"hello", b"hello"], f"cut at {cut}"


def test_frames_that_arrive_byte_by_byte_get_responses(start: Start) -> None:
    wire = start().connect()
    wire.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in frame(b"say slow") * 3:
        wire.send_raw(bytes((byte,)))
    assert [wire.receive_raw() for _ in range(3)] == [b"slow"] * 3


def test_thousands_of_frames_in_one_write(start: Start) -> None:
    wire = start().connect()
    wire.send_raw(b"".join(frame(b"say %d" % number) for number in range(20_000)))
    assert [wire.receive_raw() for _ in range(20_000)] == [b"%d" % number for number in range(20_000)]


@pytest.mark.parametrize("size", [65_531, 65_532, 65_533, 65_536, 1 << 20, (1 << 20) + 1, 5_000_000, 20_000_000])
def test_frames_larger_than_a_read(start: Start, size: int) -> None:
    running = start()
    wire = running.connect()
    content = b"size ".ljust(size, b"x")
    wire.send_raw(struct.pack(">i", size) + content + frame(b"say after"))
    assert NUMBER.unpack(wire.receive_raw()) == (size,)
    assert running.service.seen[0] == content
    assert wire.receive_raw() == b"after"
    assert running.on_loop(lambda: running.listener.memory.used_bytes) == 0


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 7, 1001, 2**31 - 1])
def test_a_size_that_cannot_be_costs_only_that_connection(start: Start, size: int) -> None:
    running = start(max_frame_bytes=1000)
    bystander, wire = running.connect(), running.connect()
    wire.send_raw(struct.pack(">i", size) + b"x" * 20)
    assert wire.is_closed()
    bystander.send_raw(frame(b"say alive"))
    assert bystander.receive_raw() == b"alive"


def test_requests_before_a_bad_frame_get_responses(start: Start) -> None:
    wire = start().connect()
    wire.send_raw(frame(b"say good") + frame(b"nonsense") + frame(b"say never"))
    assert wire.receive_raw() == b"good"
    assert wire.is_closed()


def test_a_large_size_alone_costs_no_memory(start: Start) -> None:
    running = start()
    before = resident_mb()
    for _ in range(5):
        running.connect().send_raw(struct.pack(">i", 100 << 20) + b"x" * 1000)
    running.until(lambda: running.listener.memory.used_bytes == 5 * (100 << 20))
    assert resident_mb() - before < 50


def test_requests_past_the_bound_of_waiting_responses_are_not_read(start: Start) -> None:
    running = start(max_waiting_responses=4)
    wire = running.connect()
    wire.send_raw(b"".join(frame(b"wait %d" % number) for number in range(10)))
    running.until(lambda: len(running.service.seen) == 4)
    for number in range(10):
        running.respond(b"%d" % number, b"response %d" % number)
        assert wire.receive_raw() == b"response %d" % number
        assert len(running.service.seen) <= number + 5
    wire.send_raw(frame(b"say on"))
    assert wire.receive_raw() == b"on"


def test_a_peer_that_does_not_read_is_not_read_either(start: Start) -> None:
    running = start(max_unsent_bytes=1 << 20, send_buffer_bytes=1 << 16)
    wire = running.connect()
    before = resident_mb()
    wire.send_raw(frame(b"large 1000000") * 500)
    running.until(lambda: len(running.service.seen) > 1)
    assert resident_mb() - before < 100
    assert len(running.service.seen) < 100  # the kernel's buffers take a few
    for _ in range(500):
        assert len(wire.receive_raw()) == 1_000_000
    wire.send_raw(frame(b"say on"))
    assert wire.receive_raw() == b"on"


def test_large_responses_behind_one_that_waits_are_bounded_too(start: Start) -> None:
    running = start(max_unsent_bytes=1 << 20)
    wire = running.connect()
    wire.send_raw(frame(b"wait a") + frame(b"large 1000000") * 200)
    running.until(lambda: len(running.service.seen) > 1)
    assert len(running.service.seen) < 10
    running.respond(b"a", b"go")
    assert wire.receive_raw() == b"go"
    for _ in range(200):
        assert len(wire.receive_raw()) == 1_000_000


def large_file(path: Path, size: int) -> object:
    path.write_bytes(os.urandom(1 << 20) * (size >> 20))
    return RealDisk().open(str(path))


def take(wire: Wire, size: int) -> bytes:
    (length,) = struct.unpack(">i", wire.receive_exactly(4))
    assert length == size
    return wire.receive_exactly(size)


def test_a_file_to_a_slow_reader_costs_no_memory_and_arrives_whole(start: Start, tmp_path: Path) -> None:
    running = start(send_buffer_bytes=1 << 16)
    size = 64 << 20
    running.service.file, running.service.file_length = large_file(tmp_path / "large", size), size
    slow, quick = running.connect(), running.connect()
    before = resident_mb()
    slow.send_raw(frame(b"file") + frame(b"say after"))
    running.until(lambda: len(running.service.seen) == 2)
    quick.send_raw(frame(b"say quick"))
    assert quick.receive_raw() == b"quick"
    assert resident_mb() - before < 30
    expected = (tmp_path / "large").read_bytes()
    assert take(slow, size) == expected
    assert slow.receive_raw() == b"after"


def test_a_file_that_is_shorter_than_promised_ends_the_connection(start: Start, tmp_path: Path) -> None:
    running = start()
    running.service.file, running.service.file_length = large_file(tmp_path / "short", 1 << 20), 2 << 20
    wire = running.connect()
    wire.send_raw(frame(b"file"))
    with pytest.raises(Closed):
        wire.receive_raw()
    assert running.connections == 0


def test_who_leaves_while_waiting_leaves_nothing_behind(start: Start) -> None:
    running = start()
    wires = [running.connect() for _ in range(20)]
    for number, wire in enumerate(wires):
        wire.send_raw(frame(b"wait %d" % number))
    running.until(lambda: len(running.service.waiting) == 20)
    for wire in wires:
        wire.close()
    running.until(lambda: len(running.service.abandoned) == 20)
    assert running.connections == 0
    for pending in running.service.waiting.values():  # a response that comes too late hurts no one
        running.on_loop(partial(pending.resolve, (b"late",)))


def test_a_half_closed_connection_is_closed(start: Start) -> None:
    running = start()
    wire = running.connect()
    wire.send_raw(frame(b"wait a"))
    running.until(lambda: running.service.waiting)
    wire.socket.shutdown(socket.SHUT_WR)
    assert wire.is_closed()
    running.until(lambda: running.service.abandoned == [b"a"])


def test_reset_in_the_middle_of_a_frame_gives_its_memory_back(start: Start) -> None:
    running = start()
    wire = running.connect()
    wire.send_raw(struct.pack(">i", 5_000_000) + b"x" * 100_000)
    running.until(lambda: running.listener.memory.used_bytes > 0)
    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.close()
    running.until(lambda: running.listener.memory.used_bytes == 0 and not running.listener.connections)


def test_a_failed_response_ends_the_connection_in_its_turn(start: Start) -> None:
    running: RunningListener = start()
    wire = running.connect()
    wire.send_raw(frame(b"say first") + frame(b"wait a") + frame(b"say never"))
    running.until(lambda: running.service.waiting)
    running.on_loop(lambda: running.service.waiting[b"a"].fail())
    assert wire.receive_raw() == b"first"
    assert wire.is_closed()


def test_a_last_response_is_sent_and_ends_the_connection_in_its_turn(start: Start) -> None:
    running: RunningListener = start()
    wire = running.connect()
    wire.send_raw(frame(b"wait a") + frame(b"wait b") + frame(b"say never"))
    running.until(lambda: len(running.service.waiting) == 2)
    running.on_loop(lambda: setattr(running.service.waiting[b"b"], "is_last", True))
    running.respond(b"b", b"second")
    running.respond(b"a", b"first")
    assert (wire.receive_raw(), wire.receive_raw()) == (b"first", b"second")
    assert wire.is_closed()
    running.until(lambda: not running.listener.connections)
