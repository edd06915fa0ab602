"""Apache Kafka's command-line tools, all run by one virtual machine: its start would cost more than what they do."""

from __future__ import annotations

import contextlib
import json
import subprocess
from pathlib import Path
from typing import Any

from tools import apache_kafka, install_test_clients

_SOURCE = Path(__file__).parent / "java" / "Tools.java"
_MAIN_CLASSES = {
    "kafka-topics": apache_kafka.TOPIC_COMMAND,
    "kafka-configs": apache_kafka.CONFIG_COMMAND,
    "kafka-get-offsets": apache_kafka.GET_OFFSETS,
    "kafka-log-dirs": apache_kafka.LOG_DIRS_COMMAND,
    "kafka-cluster": apache_kafka.CLUSTER_TOOL,
    "kafka-broker-api-versions": apache_kafka.BROKER_API_VERSIONS_COMMAND,
    "kafka-dump-log": apache_kafka.DUMP_LOG_SEGMENTS,
    "kafka-delete-records": apache_kafka.DELETE_RECORDS_COMMAND,
    "kafka-console-consumer": apache_kafka.CONSOLE_CONSUMER,
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "kafka-streams-groups": "org.apache.kafka.tools.streams.StreamsGroupCommand",
    "kafka-replica-verification": "org.apache.kafka.tools.ReplicaVerificationTool",
}


class KafkaTools:
    """`tools("kafka-topics", "--list", …)` is what it printed; a tool that fails raises `ToolFailedError`.

    A tool is named as its script, or by its main class."""

    def __init__(self, log_file: Path, jvm: tuple[str, ...] = ()) -> None:
        kafka = apache_kafka.resolve()
        install_test_clients.need("javac", "a JDK, 17 or newer")
        classes = install_test_clients.fill(
            "cluster-tools",
            [_SOURCE, kafka.directory / "pom.xml"],
            lambda into: install_test_clients.run("javac", "-d", str(into), "-cp", kafka.classpath, str(_SOURCE)),
        )
        log4j = f"-Dlog4j2.configurationFile={kafka.directory / 'log4j2-tool.properties'}"
        command = ["java", "-Xmx256m", *apache_kafka.QUICK_START_OPTIONS, log4j, *jvm]
        with open(log_file, "wb") as log:
            self._process = subprocess.Popen(
                [*command, "-cp", f"{kafka.classpath}:{classes}", "Tools"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def __call__(self, tool: str, *arguments: str, stdin: str = "") -> str:
        code, said = self.outcome(tool, *arguments, stdin=stdin)
        if code != 0:
            raise ToolFailedError(f"{tool} {' '.join(arguments)}\n{said}")
        return said

    def outcome(self, tool: str, *arguments: str, stdin: str = "") -> tuple[int, str]:
        """The exit code and what was printed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        request = {"main": _MAIN_CLASSES.get(tool, tool), "arguments": arguments, "stdin": stdin}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the virtual machine of the tools ended during {tool}"
        response: dict[str, Any] = json.loads(line)
        return response["code"], response["said"]

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


class ToolFailedError(AssertionError):
    """A tool ended with an error; the text is what it said."""
