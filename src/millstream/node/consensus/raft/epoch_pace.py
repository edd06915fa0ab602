"""How fast requests of other nodes may raise the epoch of this replica. Pure: the time is an argument.

An election raises the epoch by one and takes a few network round trips. A request that raises it by a thousand millions
is forged or damaged, and the highest epoch there is would end the quorum for good: no later election could go beyond.
So requests may raise the epoch by `BURST` at once and by `PER_SECOND` in the long run. Then the highest epoch is
years away.

A voter that was away for more elections than that is not locked out: it asks the other voters itself, and the epoch in
their responses is not limited here.
"""

BURST = 1000
PER_SECOND = 20


class EpochPace:
    __slots__ = ("_credit", "_refilled_ms")

    def __init__(self, now_ms: int) -> None:
        self._credit = float(BURST)
        self._refilled_ms = now_ms

    def admits(self, step: int, now_ms: int) -> bool:
        """Whether a request may raise the epoch by `step`; if so, that counts as done."""
        if step <= 0:
            return True
        elapsed_ms = max(0, now_ms - self._refilled_ms)
        self._credit = min(BURST, self._credit + elapsed_ms * PER_SECOND / 1000)
        self._refilled_ms = now_ms
        if step > self._credit:
            return False
        self._credit -= step
        return True
