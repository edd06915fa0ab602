"""What all pages of one gateway share: the cluster, the schemas, and the eye on both."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from millstream.console.live.watcher import Watcher
from millstream.raw_client import Cluster
from millstream.registry.registry import Registry

_WORKERS = 32


@dataclass(frozen=True, slots=True)
class Console:
    cluster: Cluster
    registry: Registry
    watcher: Watcher
    workers: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(_WORKERS, "console-work"))
    """What people ask for runs here, so that one who waits for a cluster that is away keeps nobody else waiting."""

    def close(self) -> None:
        self.watcher.close()
        self.workers.shutdown(wait=False, cancel_futures=True)
