"""The end of an upgrade in a cluster with nodes of two versions: the rest is restarted with the newest version, the
levels of features are raised, and a controller that wrote the new formats dies.

During the faults, before, each start of a node is one of the earlier or of the newest version (`Cluster.start_node`).
"""

from collections.abc import Callable

from millstream.formats.model.errors import ErrorCode
from millstream.node.metadata.image import MetadataImage
from millstream.simulator.clients.client import SimulatedClient
from millstream.simulator.cluster import Cluster
from millstream.simulator.machine import Process
from millstream.simulator.results import Violation

_UPGRADE = 1


class Upgrader:
    """A client that raises levels of features, until they are acknowledged."""

    def __init__(self, process: Process, cluster: Cluster, levels: dict[str, int]) -> None:
        self._cluster = cluster
        self._levels = levels
        self._client = SimulatedClient(process, cluster.bootstrap, process.machine.name)
        self._loop = process.loop

    def start(self) -> None:
        self._loop.create_task(self._run())

    def stop(self) -> None:
        pass

    async def _run(self) -> None:
        updates = [
            {"feature": name, "max_version_level": level, "upgrade_type": _UPGRADE}
            for name, level in self._levels.items()
        ]
        fields = {"feature_updates": updates, "timeout_ms": 2000, "validate_only": False}
        while True:
            try:
                response = await self._client.request_any("update_features", fields)
            except OSError as error:
                self._cluster.log_event("upgrader", f"no response: {error}")
            else:
                code = ErrorCode(response.error_code)
                self._cluster.log_event("upgrader", f"{self._levels}: {code.name} {response.error_message or ''}")
                if code is ErrorCode.NONE:
                    return
            await self._client.pause(0.1, 0.4)


class Upgrade:
    """`run_until` runs the simulation for at most so many seconds; `repair` until all clients make progress."""

    def __init__(
        self,
        cluster: Cluster,
        image: Callable[[], MetadataImage | None],
        run_until: Callable[[float, Callable[[], bool]], bool],
        repair: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._image = image
        self._run_until = run_until
        self._repair = repair

    def end(self, earlier: dict[str, int], most_seconds: float) -> None:
        """`earlier`: the highest levels of the earlier version. None may be higher before the upgrade is ended."""
        cluster = self._cluster
        for node_id in cluster.leave_earlier_version():
            self._restart(node_id, most_seconds)
        levels = self._levels()
        if wrong := {name: levels[name] for name in sorted(earlier) if levels.get(name, 0) > earlier[name]}:
            raise Violation("LevelsChangeOnlyByRequest", f"before the upgrade was ended, the levels are {wrong}")
        newest = self._supported(earlier)
        cluster.add_client("upgrader", lambda process: Upgrader(process, cluster, newest))
        if not self._run_until(
            most_seconds, lambda: self._levels().get("metadata.version") == newest["metadata.version"]
        ):
            raise Violation("Liveness", f"the levels {newest} are not reached after {most_seconds:g} s")
        self._repair()
        controller = cluster.controller()
        if controller:
            cluster.kill(controller)
            cluster.start_node(controller)
        self._repair()

    def _restart(self, node_id: int, most_seconds: float) -> None:
        machine = self._cluster.machines[node_id]
        life = machine.process
        machine.stop(lambda: self._cluster.start_node(node_id))
        if not self._run_until(most_seconds, lambda: machine.process is not life and self._cluster.is_ready(node_id)):
            raise Violation("Liveness", f"node {node_id} is not upgraded after {most_seconds:g} s")
        self._repair()

    def _levels(self) -> dict[str, int]:
        image = self._image()
        return dict(image.features) if image is not None else {}

    def _supported(self, names: dict[str, int]) -> dict[str, int]:
        """The highest level of each feature that all brokers support."""
        image = self._image()
        if image is None:
            raise Violation("Liveness", "the quorum has no leader")
        found = [
            {each.name: each.max_supported_version for each in broker.features} for broker in image.brokers.values()
        ]
        return {name: min(levels[name] for levels in found) for name in names}
