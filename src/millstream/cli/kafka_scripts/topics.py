"""`kafka-topics`, printed as Kafka prints it."""

from collections.abc import Sequence

from millstream.cli import exit_codes
from millstream.cli.kafka_scripts.options import (
    Options,
    UsageError,
    assigned,
    failed,
    number_of,
    one_of,
    open_cluster,
    topics_of,
)


def topics(name: str, words: Sequence[str]) -> int:
    from millstream.admin.topics import ConfigResource, TopicAdmin
    from millstream.raw_client import ErrorCode, RefusedError

    parser = Options(name)
    parser.connection()
    parser.flags("--list", "--create", "--describe", "--delete", "--alter", "--if-not-exists", "--if-exists")
    parser.flags("--exclude-internal", "--under-replicated-partitions", "--unavailable-partitions")
    parser.values("--topic", "--partitions", "--replication-factor")
    parser.lists("--config")
    options = parser.parsed(words)
    action = one_of(options, "list", "create", "describe", "delete", "alter")
    if action != "list" and action != "describe" and not options.topic:
        raise UsageError(f"--{action} needs --topic")
    with open_cluster(options) as cluster:
        admin = TopicAdmin(cluster)
        if action == "create":
            try:
                admin.create(
                    options.topic,
                    number_of(options, "partitions"),
                    number_of(options, "replication_factor"),
                    assigned(options.config),
                )
            except RefusedError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS or not options.if_not_exists:
                    raise
                return exit_codes.OK
            print(f"Created topic {options.topic}.")
            return exit_codes.OK
        pattern = topics_of(options)
        found = [
            each
            for each in admin.topics()
            if (pattern is None or pattern.fullmatch(each.name)) and not (options.exclude_internal and each.is_internal)
        ]
        if not found and pattern is not None and action != "list" and not options.if_exists:
            return failed(name, f"Topic '{options.topic}' does not exist as expected")
        if action == "delete":
            for each in found:
                admin.delete(each.name)
        elif action == "alter":
            if options.partitions is None or options.config:
                raise UsageError("--alter needs --partitions; settings are changed by kafka-configs.sh")
            for each in found:
                admin.add_partitions(each.name, number_of(options, "partitions"))
        elif action == "list":
            for each in found:
                print(each.name)
        else:
            short = options.under_replicated_partitions or options.unavailable_partitions
            for each in found:
                rows = [
                    row
                    for row in each.partitions
                    if not short
                    or (options.under_replicated_partitions and len(row.isr) < len(row.replicas))
                    or (options.unavailable_partitions and row.leader < 0)
                ]
                if not short:
                    own = [
                        f"{entry.name}={entry.value}"
                        for entry in admin.settings(ConfigResource.TOPIC, each.name)
                        if entry.is_own
                    ]
                    from millstream.node.runtime.identity import short_uuid

                    print(
                        f"Topic: {each.name}\tTopicId: {short_uuid(each.topic_id)}\t"
                        f"PartitionCount: {len(each.partitions)}\t"
                        f"ReplicationFactor: {len(each.partitions[0].replicas)}\tConfigs: {','.join(own)}"
                    )
                for row in rows:
                    leader = "none" if row.leader < 0 else row.leader
                    print(
                        f"\tTopic: {each.name}\tPartition: {row.index}\tLeader: {leader}\t"
                        f"Replicas: {_joined(row.replicas)}\tIsr: {_joined(row.isr)}"
                    )
    return exit_codes.OK


def _joined(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))
