"""Warnings about zones and machines: brokers whose `broker.rack` does not mean a zone.

Before machines had their own setting, a rack stood for a machine where several brokers ran on one. Such a cluster still
works, but it is not what the settings say: replicas are spread over zones first, and a machine in two zones counts for
both.
"""

from collections.abc import Sequence
from typing import NamedTuple

from millstream.formats.model.placement import default_machine


class BrokerAddress(NamedTuple):
    id: int
    host: str
    rack: str | None
    machine_id: str | None


def topology_warnings(brokers: Sequence[BrokerAddress]) -> list[str]:
    """One line for each machine whose brokers are in several zones, and for each rack that is the name of a machine."""
    lines = []
    by_machine: dict[str, list[BrokerAddress]] = {}
    by_rack: dict[str, list[BrokerAddress]] = {}
    for broker in brokers:
        by_machine.setdefault(broker.machine_id or default_machine(broker.id), []).append(broker)
        if broker.rack is not None:
            by_rack.setdefault(broker.rack, []).append(broker)
    for machine, members in sorted(by_machine.items()):
        racks = sorted({broker.rack or "none" for broker in members})
        if len(racks) > 1:
            lines.append(
                f"machine {machine} has brokers in several zones (broker.rack {', '.join(racks)}): a rack is a zone "
                "with whole machines; set the same broker.rack for all brokers of a machine"
            )
    hosts = {broker.host for broker in brokers}
    for rack, members in sorted(by_rack.items()):
        host = members[0].host
        alone = all(broker.host == host for broker in members) and len(members) > 1 and len(hosts) > 1
        others = any(broker.host == host and broker.rack != rack for broker in brokers)
        if alone and not others and len({broker.machine_id or broker.id for broker in members}) > 1:
            numbers = ", ".join(str(broker.id) for broker in members)
            lines.append(
                f"brokers {numbers} have the same host and a broker.rack of their own, {rack}: a rack is a zone now; "
                f"set millstream.machine.id={rack} for them, and broker.rack to their zone"
            )
    return lines
