"""Places of brokers, and the rule by which replicas are spread over them: as many machines as possible, then zones."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Place(NamedTuple):
    """Where a broker is. What fails together is in one zone (`broker.rack`), or on one machine."""

    zone: str | None
    machine: str


def default_machine(broker_id: int) -> str:
    """The machine of a broker that names none: it has one of its own."""
    return f"machine-{broker_id}"


class Used:
    """The machines and zones of the replicas of one partition.

    A machine counts before a zone. This costs no zone: one without a replica has only machines without one.
    """

    def __init__(self, places: Mapping[int, Place], replicas: Iterable[int]) -> None:
        self._places = places
        self._machines: Counter[str] = Counter()
        self._zones: Counter[str | None] = Counter()
        for broker in replicas:
            self.add(broker)

    def add(self, broker: int) -> None:
        """Counts a replica; brokers whose place is not known do not count."""
        place = self._places.get(broker)
        if place is not None:
            self._machines[place.machine] += 1
            self._zones[place.zone] += 1

    def cost(self, broker: int) -> tuple[int, int]:
        """The replicas that the machine and the zone of a broker have already; the lowest is the best."""
        place = self._places[broker]
        return self._machines[place.machine], self._zones[place.zone]
