"""Stands where a service will be while a node starts: requests are kept, within bounds, and answered when it is there.

So a node can take connections early, and answer probes, without telling clients anything too soon.
"""

from millstream.node.server.service import Parts, Peer, Pending, Refused, Service

_MOST = 1024
_LARGEST_BYTES = 64 << 10
"""Who comes to a node that starts has only questions; data is sent to those that have answered some."""


class HeldRequests:
    def __init__(self) -> None:
        self._held: list[tuple[bytearray, Peer, Pending]] = []

    def handle(self, buffer: bytearray, start: int, end: int, peer: Peer) -> Pending:
        if end - start > _LARGEST_BYTES or len(self._held) >= _MOST:
            raise Refused("the node is starting, and too much waits for it: try again")
        answer = Pending()
        self._held.append((buffer[start:end], peer, answer))
        return answer

    def give_to(self, service: Service) -> None:
        """Has everything answered that still wants to be."""
        held, self._held = self._held, []
        for frame, peer, answer in held:
            if answer.abandoned:
                continue
            try:
                _pass_on(service.handle(frame, 0, len(frame), peer), answer)
            except Refused:
                answer.fail()


def _pass_on(given: "Parts | Pending | None", answer: Pending) -> None:
    if not isinstance(given, Pending):
        answer.resolve(given)
        return

    def resolved() -> None:
        if given.failed:
            answer.fail()
        else:
            answer.resolve(given.parts)

    answer.on_abandon = given.abandon
    given.when_resolved(resolved)
    if given.resolved:
        resolved()
