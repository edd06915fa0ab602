"""A set with an order."""

from typing import TypeVar

T = TypeVar("T")


class OrderedSet(dict[T, None]):
    """Things in the order in which they came. A set of objects has another order in each process, so whatever is done
    with all of its members would be done in another order, too, and no simulated run could be repeated."""

    __slots__ = ()

    def add(self, item: T) -> None:
        self[item] = None

    def discard(self, item: T) -> None:
        self.pop(item, None)
