"""`millstream kafka-script NAME …`: the scripts of Apache Kafka's `bin`, with their common options.

For compose files, health checks and `docker exec` lines that were written for the image apache/kafka: the image of
Millstream has `/opt/kafka/bin/kafka-topics.sh` and the others (`--install DIR` writes them), and each calls this
program. What scripts read is printed as Kafka prints it. An option that is not known here is an error that says so; a
script that is not provided names the command of `millstream` that does the same. Exit codes are Kafka's: 0 or 1.
"""

import os
import sys
from collections.abc import Callable, Sequence

from millstream.cli import exit_codes
from millstream.cli.kafka_scripts.cluster import broker_api_versions, cluster_id, metadata_quorum
from millstream.cli.kafka_scripts.configs import configs
from millstream.cli.kafka_scripts.groups import consumer_groups
from millstream.cli.kafka_scripts.options import UsageError, failed
from millstream.cli.kafka_scripts.process import server_start, storage
from millstream.cli.kafka_scripts.records import console_consumer, console_producer, get_offsets
from millstream.cli.kafka_scripts.topics import topics

_SCRIPTS: dict[str, Callable[[str, Sequence[str]], int]] = {
    "kafka-topics": topics,
    "kafka-broker-api-versions": broker_api_versions,
    "kafka-metadata-quorum": metadata_quorum,
    "kafka-cluster": cluster_id,
    "kafka-console-producer": console_producer,
    "kafka-console-consumer": console_consumer,
    "kafka-consumer-groups": consumer_groups,
    "kafka-get-offsets": get_offsets,
    "kafka-configs": configs,
    "kafka-storage": storage,
    "kafka-server-start": server_start,
}
_LINE = '#!/bin/sh\nexec {program} kafka-script {name} "$@"\n'
_ELSEWHERE = {
    "kafka-acls": "millstream acl",
    "kafka-delegation-tokens": "millstream user token",
    "kafka-delete-records": "millstream topic delete, or the console",
    "kafka-dump-log": "millstream log dump",
    "kafka-features": "millstream cluster status, millstream cluster upgrade",
    "kafka-groups": "millstream group list, millstream share list",
    "kafka-leader-election": "millstream cluster balance --leaders",
    "kafka-log-dirs": "millstream broker disks",
    "kafka-producer-perf-test": "millstream bench",
    "kafka-consumer-perf-test": "millstream bench",
    "kafka-reassign-partitions": "millstream cluster balance, millstream broker drain",
    "kafka-server-stop": "SIGTERM to the process",
    "kafka-share-groups": "millstream share",
    "kafka-transactions": "millstream txn",
}
"""Scripts that are not provided, and what does the same."""


def run(arguments: Sequence[str]) -> int:
    if len(arguments) == 2 and arguments[0] == "--install":
        return install(arguments[1])
    name = arguments[0].removesuffix(".sh") if arguments else ""
    if name in _ELSEWHERE:
        return failed(name, f"not provided by Millstream: use `{_ELSEWHERE[name]}`")
    script = _SCRIPTS.get(name)
    if script is None:
        return failed("millstream kafka-script", f"give one of {', '.join(_SCRIPTS)}, or --install DIR")
    from millstream.admin.errors import AdminError
    from millstream.config.setting import ConfigError
    from millstream.raw_client.errors import WireError

    try:
        return script(name, arguments[1:])
    except UsageError as error:
        return failed(name, str(error))
    except ConfigError as error:
        return failed(name, error.message)
    except (WireError, AdminError, OSError) as error:
        return failed(name, f"Error while executing the command: {error}")
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED


def install(directory: str) -> int:
    """Writes a script for each name; they call the `millstream` beside this Python."""
    program = os.path.join(os.path.dirname(sys.executable), "millstream")
    os.makedirs(directory, exist_ok=True)
    for name in (*_SCRIPTS, *_ELSEWHERE):
        path = os.path.join(directory, f"{name}.sh")
        with open(path, "w", encoding="utf-8") as file:
            file.write(_LINE.format(program=program, name=name))
        os.chmod(path, 0o755)  # nosec B103: a program for all users of the image
    return exit_codes.OK
