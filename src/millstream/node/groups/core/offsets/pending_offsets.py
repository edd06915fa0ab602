"""Offsets committed in transactions that are still open: what counts of them is known when the transaction ends.

Of all commits of one partition the last in the log wins, whenever its transaction ends. So a plain commit, or one of a
transaction that has ended, takes the place of all that stand before it in the log: these are *superseded*, and change
nothing any more when their own transactions commit. They still stand for an open transaction. A deletion takes
everything with it.

Keys and values are as in the log, and are not read before somebody needs them.
"""

from collections.abc import Iterator

Key = bytes
Value = bytes


class PendingOffsets:
    __slots__ = ("_by_key", "_by_producer")

    def __init__(self) -> None:
        self._by_key: dict[Key, dict[int, Value | None]] = {}
        """For each key the open transactions' producers, in the order of the log; None is superseded."""
        self._by_producer: dict[int, dict[Key, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_producer)

    def __contains__(self, key: Key) -> bool:
        """Whether an open transaction has committed this partition's offset."""
        return key in self._by_key

    def __iter__(self) -> Iterator[tuple[Key, list[Value]]]:
        """Each key with what may become its value; nothing is left of one that was superseded."""
        for key, by_producer in self._by_key.items():
            yield key, [value for value in by_producer.values() if value is not None]

    def add(self, producer_id: int, key: Key, value: Value) -> None:
        by_producer = self._by_key.setdefault(key, {})
        by_producer.pop(producer_id, None)  # it is the last in the log now
        by_producer[producer_id] = value
        self._by_producer.setdefault(producer_id, {})[key] = None

    def supersede(self, key: Key) -> None:
        """There is a commit behind all of those."""
        by_producer = self._by_key.get(key)
        if by_producer is not None:
            for producer_id in by_producer:
                by_producer[producer_id] = None

    def drop(self, key: Key) -> None:
        """The offset was deleted, and with it whatever was to become of it."""
        for producer_id in self._by_key.pop(key, ()):
            keys = self._by_producer[producer_id]
            del keys[key]
            if not keys:
                del self._by_producer[producer_id]

    def end(self, producer_id: int, *, committed: bool) -> list[tuple[Key, Value]]:
        """The producer's transaction is over; returns what counts of it from now on."""
        counting: list[tuple[Key, Value]] = []
        for key in self._by_producer.pop(producer_id, ()):
            by_producer = self._by_key[key]
            value = by_producer[producer_id]
            if committed and value is not None:
                counting.append((key, value))
                for earlier in by_producer:
                    if earlier == producer_id:
                        break
                    by_producer[earlier] = None
            del by_producer[producer_id]
            if not by_producer:
                del self._by_key[key]
        return counting
