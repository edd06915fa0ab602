"""The replay of a coordinator's log, to its end."""

from millstream.node.coordination.replay import Slices


def finished(slices: Slices) -> int:
    """What a replay returns at its end."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            reached: int = end.value
            return reached
