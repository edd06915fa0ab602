"""What all pages of one gateway share: the cluster, the schemas, and the eye on both."""

from dataclasses import dataclass

from millstream.console.live.watcher import Watcher
from millstream.registry.registry import Registry
from millstream.wire import Cluster


@dataclass(frozen=True, slots=True)
class Console:
    cluster: Cluster
    registry: Registry
    watcher: Watcher
