"""Requests that come before there is anyone to respond to them."""

import pytest

from millstream.node.server.service import HeldRequests, Parts, Peer, Pending, Refused


class Echo:
    def __init__(self) -> None:
        self.later: list[Pending] = []

    def handle(self, buffer: bytearray, start: int, end: int, peer: Peer) -> Parts | Pending | None:
        word = bytes(buffer[start:end])
        if word == b"refuse":
            raise Refused("no")
        if word == b"later":
            self.later.append(Pending())
            return self.later[-1]
        return None if word == b"none" else (word,)


def hold(held: HeldRequests, word: bytes) -> Pending:
    buffer = bytearray(b"--" + word + b"--")
    response = held.handle(buffer, 2, 2 + len(word), Peer("here", 1, "PLAINTEXT"))
    buffer[:] = b"?" * len(buffer)  # the buffer is everyone's
    return response


def test_held_requests_get_responses_when_the_broker_serves() -> None:
    held, echo = HeldRequests(), Echo()
    first, none, refused, later = (hold(held, word) for word in (b"first", b"none", b"refuse", b"later"))
    assert not any(response.resolved for response in (first, none, refused, later))
    held.give_to(echo)
    assert first.parts == (b"first",) and none.resolved and none.parts is None and refused.failed
    assert not later.resolved
    echo.later[0].resolve((b"now",))
    assert later.parts == (b"now",)


def test_a_client_that_has_gone_gets_no_response() -> None:
    held, echo = HeldRequests(), Echo()
    gone, leaving = hold(held, b"later"), hold(held, b"later")
    gone.abandon()
    held.give_to(echo)
    assert len(echo.later) == 1
    leaving.abandon()
    assert echo.later[0].abandoned


def test_there_is_a_limit() -> None:
    held = HeldRequests()
    with pytest.raises(Refused):
        hold(held, b"x" * (65 << 10))
    for _ in range(1024):
        hold(held, b"x")
    with pytest.raises(Refused):
        hold(held, b"x")
