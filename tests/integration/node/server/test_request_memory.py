"""Memory for requests in flight: bounded, reused, and a connection that waits gets a turn."""

import struct

from millstream.node.server.limits import RequestMemory
from tests.integration.node.server.conftest import NUMBER, Start

MB = 1 << 20


def test_past_the_limit_there_is_none_until_some_comes_back() -> None:
    memory = RequestMemory(4 * MB)
    first, second = memory.take(2 * MB), memory.take(2 * MB)
    assert first is not None and second is not None
    assert memory.take(MB) is None
    called = []
    memory.wait(lambda: called.append("resumed"))
    assert memory.is_contended
    memory.give_back(first, 2 * MB)
    assert called == ["resumed"] and not memory.is_contended
    assert memory.take(MB) is not None


def test_a_frame_larger_than_the_limit_passes_when_it_is_alone() -> None:
    memory = RequestMemory(MB)
    assert memory.take(5 * MB) is not None
    assert memory.take(MB) is None


def test_small_frames_never_wait() -> None:
    memory = RequestMemory(MB)
    assert memory.take(5 * MB) is not None
    assert memory.take(64 << 10) is not None


def test_buffers_grow_to_what_was_reserved_and_are_used_again() -> None:
    memory = RequestMemory(100 * MB)
    buffer = memory.take(5 * MB)
    assert buffer is not None and len(buffer) < 5 * MB
    while len(buffer) < 5 * MB:
        memory.extend(buffer, 5 * MB)
    assert len(buffer) == 8 * MB == memory.used_bytes
    memory.give_back(buffer, 5 * MB)
    assert memory.used_bytes == 0
    assert memory.take(6 * MB) is buffer
    memory.give_back(buffer, 6 * MB)
    memory.trim()
    assert memory.take(6 * MB) is not buffer


def test_very_large_buffers_end_at_their_size_and_are_not_kept() -> None:
    memory = RequestMemory(100 * MB)
    buffer = memory.take(9 * MB)
    assert buffer is not None
    while len(buffer) < 9 * MB:
        memory.extend(buffer, 9 * MB)
    assert len(buffer) == 9 * MB
    memory.give_back(buffer, 9 * MB)
    assert memory.take(9 * MB) is not buffer


def test_many_connections_with_more_than_there_is_room_for_all_come_through(start: Start) -> None:
    running = start(request_memory_bytes=2 * MB)
    wires = [running.connect() for _ in range(12)]
    size = 900_000
    content = b"size ".ljust(size, b"x")
    for wire in wires:  # all have begun before any can end
        wire.send_raw(struct.pack(">i", size) + content[:100])
    for wire in wires:
        wire.send_raw(content[100:])
    for wire in wires:
        assert NUMBER.unpack(wire.receive_raw()) == (size,)
    assert running.on_loop(lambda: running.listener.memory.used_bytes) == 0
