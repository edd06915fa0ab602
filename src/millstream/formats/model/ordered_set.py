"""A set that keeps the order of insertion."""

from typing import TypeVar

T = TypeVar("T")


class OrderedSet(dict[T, None]):
    """Items in the order of insertion. A plain set of objects has another order in each process, and a simulated run
    could not be repeated."""

    __slots__ = ()

    def add(self, item: T) -> None:
        self[item] = None

    def discard(self, item: T) -> None:
        self.pop(item, None)
