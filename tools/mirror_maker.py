"""MirrorMaker 2 as one process of its own ("dedicated mode"). `kafka_libraries.connect` fetches its jars."""

from __future__ import annotations

import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tools.apache_kafka import KafkaDistribution

MAIN_CLASS = "org.apache.kafka.connect.mirror.MirrorMaker"
# bin/connect-mirror-maker.sh of the distribution.
DEFAULT_HEAP = ("-Xms256M", "-Xmx2G")


@dataclass
class MirrorMaker:
    """Copies topics from one cluster to another, under the same names. Use as a context manager."""

    distribution: KafkaDistribution
    directory: Path
    source: str
    destination: str
    topics: str
    tasks: int = 1
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def pid(self) -> int:
        assert self.process is not None, "MirrorMaker was not started"
        return self.process.pid

    @property
    def log_file(self) -> Path:
        return self.directory / "mirror-maker.log"

    def __enter__(self) -> MirrorMaker:
        self.directory.mkdir(parents=True, exist_ok=True)
        properties = self.directory / "mirror-maker.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in self._settings().items()))
        with open(self.log_file, "ab") as log:
            command = self.distribution.command(MAIN_CLASS, str(properties), jvm=DEFAULT_HEAP)
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def _settings(self) -> dict[str, str]:
        """MirrorMaker's defaults, but for replication factors of single nodes and the names of the topics."""
        kinds = ("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic", "offset.storage", "status.storage")
        return {
            "clusters": "source, here",
            "source.bootstrap.servers": self.source,
            "here.bootstrap.servers": self.destination,
            "source->here.enabled": "true",
            "source->here.topics": self.topics,
            "here->source.enabled": "false",
            "emit.heartbeats.enabled": "false",
            "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
            "refresh.topics.interval.seconds": "2",
            "tasks.max": str(self.tasks),
            "replication.factor": "1",
            "config.storage.replication.factor": "1",
            **{f"{kind}.replication.factor": "1" for kind in kinds},
        }
