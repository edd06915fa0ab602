"""Records: the console producer and consumer, by `millstream produce` and `consume`, and `kafka-get-offsets`."""

import re
from collections.abc import Sequence

from millstream.cli import exit_codes
from millstream.cli.kafka_scripts.options import (
    Options,
    UsageError,
    assigned_whole,
    config_of,
    failed,
    number_of,
    open_cluster,
    run_millstream,
    topics_of,
)


def console_producer(name: str, words: Sequence[str]) -> int:
    parser = Options(name)
    parser.connection()
    parser.add_argument("--topic", required=True)
    parser.values("--producer.config", "--request-required-acks", "--timeout", "--batch-size", "--max-block-ms")
    parser.add_argument("--compression-codec", nargs="?", const="gzip")
    parser.flags("--sync")
    parser.lists("--property", "--reader-property", "--producer-property", "--command-property")
    options = parser.parsed(words)
    command = ["produce", options.topic, "--bootstrap", options.bootstrap_server]
    command += config_of(options, "producer.config")
    properties = assigned_whole([*options.property, *options.reader_property])
    unknown = set(properties) - {"parse.key", "key.separator", "null.marker", "ignore.error"}
    if unknown:
        raise UsageError(f"--property {sorted(unknown)[0]} is not supported. Supported: parse.key, key.separator")
    if _truth(properties.get("parse.key", "false")):
        command += ["--key-separator", properties.get("key.separator", "\t")]
    if options.compression_codec:
        command += ["--compression", options.compression_codec]
    for each in (*options.producer_property, *options.command_property):
        command += ["-X", each]
    if options.request_required_acks:
        command += ["--acks", options.request_required_acks.replace("-1", "all")]
    return run_millstream(command)


def console_consumer(name: str, words: Sequence[str]) -> int:
    parser = Options(name)
    parser.connection()
    parser.add_argument("--topic", required=True)
    parser.values("--group", "--partition", "--offset", "--max-messages", "--timeout-ms", "--consumer.config")
    parser.values("--isolation-level", "--formatter")
    parser.flags("--from-beginning", "--skip-message-on-error", "--enable-systest-events")
    parser.lists("--property", "--formatter-property", "--consumer-property", "--command-property")
    options = parser.parsed(words)
    if options.formatter:
        raise UsageError("--formatter is a class of Java: use `millstream consume --format`")
    command = ["consume", options.topic, "--bootstrap", options.bootstrap_server, "--follow"]
    command += config_of(options, "consumer.config")
    start = options.offset or ("earliest" if options.from_beginning else "latest")
    command += ["--from", start]
    if options.timeout_ms:
        command += ["--idle", str(number_of(options, "timeout_ms") / 1000)]
    for option, value in (("--group", options.group), ("--count", options.max_messages)):
        command += [option, value] if value else []
    command += ["--partition", options.partition] if options.partition else []
    settings = [*options.consumer_property, *options.command_property]
    if options.isolation_level:
        settings.append(f"isolation.level={options.isolation_level}")
    for each in settings:
        command += ["-X", each]
    command += ["--format", _format(assigned_whole([*options.property, *options.formatter_property]))]
    return run_millstream(command)


_PRINTED = {
    "print.timestamp": "CreateTime:%T",
    "print.partition": "Partition:%p",
    "print.offset": "Offset:%o",
    "print.headers": "%h",
    "print.key": "%k",
    "print.value": "%s",
}
"""In the order in which Kafka prints them."""


def _format(properties: dict[str, str]) -> str:
    unknown = set(properties) - {*_PRINTED, "key.separator", "line.separator"}
    if unknown:
        raise UsageError(f"--property {sorted(unknown)[0]} is not supported. Supported: {', '.join(_PRINTED)}")
    wanted = {"print.value": "true", **properties}
    parts = [text for name, text in _PRINTED.items() if _truth(wanted.get(name, "false"))]
    return properties.get("key.separator", "\\t").join(parts) + properties.get("line.separator", "\\n")


def _truth(value: str) -> bool:
    return value.strip().lower() == "true"


def get_offsets(name: str, words: Sequence[str]) -> int:
    from millstream.raw_client import TopicPartition

    parser = Options(name)
    parser.connection()
    parser.values("--topic", "--time")
    options = parser.parsed(words)
    special = {"latest": -1, "earliest": -2, "max-timestamp": -3}
    text = options.time or "latest"
    if text not in special and not re.fullmatch(r"-?\d+", text):
        raise UsageError(f"--time {text}: give milliseconds, latest, earliest or max-timestamp")
    pattern = topics_of(options)
    with open_cluster(options) as cluster:
        places = [
            TopicPartition(topic, row.index)
            for topic, info in sorted(cluster.topics().items())
            if pattern is None or pattern.fullmatch(topic)
            for row in info.partitions
        ]
        if not places:
            return failed(name, "Could not match any topic-partitions with the specified filters")
        found = cluster.offsets(dict.fromkeys(places, special.get(text) or int(text)), read_committed=False)
        for at in places:
            print(f"{at.topic}:{at.partition}:{found[at].offset if found[at].offset >= 0 else ''}")
    return exit_codes.OK
