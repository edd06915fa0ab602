"""`millstream kafka-script NAME …`: the scripts of Apache Kafka's `bin`, with their common options.

For compose files, health checks and `docker exec` lines that were written for the image apache/kafka: the image of
Millstream has `/opt/kafka/bin/kafka-topics.sh` and the others (`--install DIR` writes them), and each calls this
program. What scripts read is printed as Kafka prints it. An option that is not known here is an error that says so; a
script that is not provided names the command of `millstream` that does the same. Exit codes are Kafka's: 0 or 1.
"""

import argparse
import json
import os
import random
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from millstream.cli import exit_codes

if TYPE_CHECKING:
    from millstream.raw_client import Cluster

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
_TIMEOUT_S = 30.0
_CLIENT_ID = "millstream-kafka-script"


class _UsageError(Exception):
    """What is wrong with the options."""


class _Options(argparse.ArgumentParser):
    def __init__(self, name: str) -> None:
        super().__init__(prog=f"{name}.sh", allow_abbrev=False, add_help=False)

    def error(self, message: str) -> NoReturn:
        raise _UsageError(message)

    def parsed(self, words: Sequence[str]) -> argparse.Namespace:
        found, unknown = self.parse_known_args(list(words))
        if unknown:
            known = sorted(each for action in self._actions for each in action.option_strings)
            raise _UsageError(f"{unknown[0]} is not known here. Known: {' '.join(known)}")
        return found

    def flags(self, *names: str) -> None:
        for name in names:
            self.add_argument(name, action="store_true")

    def values(self, *names: str) -> None:
        for name in names:
            self.add_argument(name)

    def lists(self, *names: str) -> None:
        for name in names:
            self.add_argument(name, action="append", default=[])

    def connection(self) -> None:
        self.add_argument("--bootstrap-server", required=True)
        self.values("--command-config")


def run(arguments: Sequence[str]) -> int:
    if len(arguments) == 2 and arguments[0] == "--install":
        return install(arguments[1])
    name = arguments[0].removesuffix(".sh") if arguments else ""
    if name in _ELSEWHERE:
        return _failed(name, f"not provided by Millstream: use `{_ELSEWHERE[name]}`")
    script = _SCRIPTS.get(name)
    if script is None:
        return _failed("millstream kafka-script", f"give one of {', '.join(_SCRIPTS)}, or --install DIR")
    from millstream.admin.errors import AdminError
    from millstream.config.setting import ConfigError
    from millstream.raw_client.errors import WireError

    try:
        return script(name, arguments[1:])
    except _UsageError as error:
        return _failed(name, str(error))
    except ConfigError as error:
        return _failed(name, error.message)
    except (WireError, AdminError, OSError) as error:
        return _failed(name, f"Error while executing the command: {error}")
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED


def _failed(name: str, reason: str) -> int:
    print(f"{name}: {reason}", file=sys.stderr)
    return exit_codes.FAILED


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


def _cluster(options: argparse.Namespace) -> "Cluster":
    from millstream.raw_client import Cluster
    from millstream.raw_client.client_properties import read_client_properties

    settings = read_client_properties(options.command_config) if options.command_config else {}
    return Cluster(options.bootstrap_server, settings, client_id=_CLIENT_ID, timeout_s=_TIMEOUT_S)


def _one_of(options: argparse.Namespace, *names: str) -> str:
    """The action that was chosen; usage error unless it is exactly one."""
    chosen = [name for name in names if getattr(options, name)]
    if len(chosen) != 1:
        raise _UsageError(f"give exactly one of {', '.join('--' + name.replace('_', '-') for name in names)}")
    return chosen[0]


def _number(options: argparse.Namespace, name: str) -> int:
    text = getattr(options, name)
    if text is None:
        return -1
    if not re.fullmatch(r"\d{1,9}", text) or int(text) < 1:
        raise _UsageError(f"--{name.replace('_', '-')} {text}: give a number from 1 on")
    return int(text)


def _assigned(words: Sequence[str]) -> dict[str, str]:
    """`a=b` and Kafka's `a=b,c=[d,e]`."""
    found = {}
    for word in words:
        for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", word):
            name, equals, value = part.partition("=")
            if not equals or not name.strip():
                raise _UsageError(f"{part}: write NAME=VALUE")
            found[name.strip()] = value[1:-1] if value.startswith("[") and value.endswith("]") else value
    return found


# kafka-topics


def _topics(name: str, words: Sequence[str]) -> int:
    from millstream.admin.topics import ConfigResource, TopicAdmin
    from millstream.raw_client import ErrorCode, RefusedError

    parser = _Options(name)
    parser.connection()
    parser.flags("--list", "--create", "--describe", "--delete", "--alter", "--if-not-exists", "--if-exists")
    parser.flags("--exclude-internal", "--under-replicated-partitions", "--unavailable-partitions")
    parser.values("--topic", "--partitions", "--replication-factor")
    parser.lists("--config")
    options = parser.parsed(words)
    action = _one_of(options, "list", "create", "describe", "delete", "alter")
    if action != "list" and action != "describe" and not options.topic:
        raise _UsageError(f"--{action} needs --topic")
    with _cluster(options) as cluster:
        admin = TopicAdmin(cluster)
        if action == "create":
            try:
                admin.create(
                    options.topic,
                    _number(options, "partitions"),
                    _number(options, "replication_factor"),
                    _assigned(options.config),
                )
            except RefusedError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS or not options.if_not_exists:
                    raise
                return exit_codes.OK
            print(f"Created topic {options.topic}.")
            return exit_codes.OK
        pattern = re.compile(options.topic) if options.topic else None
        found = [
            each
            for each in admin.topics()
            if (pattern is None or pattern.fullmatch(each.name)) and not (options.exclude_internal and each.is_internal)
        ]
        if not found and pattern is not None and action != "list" and not options.if_exists:
            return _failed(name, f"Topic '{options.topic}' does not exist as expected")
        if action == "delete":
            for each in found:
                admin.delete(each.name)
        elif action == "alter":
            if options.partitions is None or options.config:
                raise _UsageError("--alter needs --partitions; settings are changed by kafka-configs.sh")
            for each in found:
                admin.add_partitions(each.name, _number(options, "partitions"))
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


# About the cluster


def _broker_api_versions(name: str, words: Sequence[str]) -> int:
    from importlib.resources import files

    from millstream.admin.errors import check
    from millstream.formats.protocol.schema import request_schema, split_entries
    from millstream.version import VERSION

    parser = _Options(name)
    parser.connection()
    options = parser.parsed(words)
    entries = split_entries(files("millstream.formats.protocol").joinpath("wire.schema").read_text())
    names = {request_schema(name).api_key: name for kind, name in entries if kind == "request"}
    with _cluster(options) as cluster:
        for broker in cluster.brokers():
            response = cluster.call(
                "api_versions",
                node=broker.node_id,
                client_software_name="millstream",
                client_software_version=VERSION,
            )
            check(f"broker {broker.node_id}", response)
            rack = broker.rack or "null"
            print(f"{broker.host}:{broker.port} (id: {broker.node_id} rack: {rack} isFenced: false) -> (")
            lines = []
            for row in sorted(response.api_keys, key=lambda each: each.api_key):
                title = "".join(part.capitalize() for part in names.get(row.api_key, "unknown").split("_"))
                lines.append(f"\t{title}({row.api_key}): {row.min_version} to {row.max_version}")
            print(",\n".join(lines))
            print(")")
    return exit_codes.OK


def _metadata_quorum(name: str, words: Sequence[str]) -> int:
    from millstream.admin.cluster import ClusterAdmin

    parser = _Options(name)
    parser.values("--bootstrap-server", "--bootstrap-controller", "--command-config")
    parser.add_argument("command")
    parser.flags("--status", "--replication")
    options = parser.parsed(words)
    if options.command != "describe":
        raise _UsageError(f"{options.command} is not provided: use `millstream cluster` to add and remove voters")
    action = _one_of(options, "status", "replication")
    options.bootstrap_server = options.bootstrap_server or options.bootstrap_controller
    if options.bootstrap_server is None:
        raise _UsageError("give --bootstrap-server or --bootstrap-controller")
    with _cluster(options) as cluster:
        admin = ClusterAdmin(cluster)
        quorum = admin.quorum()
        if action == "replication":
            print("NodeId\tDirectoryId\tLogEndOffset\tLag\tStatus")
            for node in quorum.nodes:
                status = "Leader" if node.is_leader else "Follower" if node.is_voter else "Observer"
                print(f"{node.id}\t{node.directory_id}\t{node.log_end_offset}\t{node.lag or 0}\t{status}")
            return exit_codes.OK
        followers = [node for node in quorum.voters if not node.is_leader]
        rows = {
            "ClusterId": admin.describe().cluster_id,
            "LeaderId": quorum.leader,
            "LeaderEpoch": quorum.epoch,
            "HighWatermark": quorum.high_watermark,
            "MaxFollowerLag": max((node.lag or 0 for node in followers), default=0),
            "MaxFollowerLagTimeMs": max((node.behind_ms or 0 for node in followers), default=0),
            "CurrentVoters": json.dumps([{"id": node.id} for node in quorum.voters]),
            "CurrentObservers": json.dumps([{"id": node.id} for node in quorum.observers]),
        }
        for title, value in rows.items():
            print(f"{title + ':':<24}{value}")
    return exit_codes.OK


def _cluster_script(name: str, words: Sequence[str]) -> int:
    parser = _Options(name)
    parser.add_argument("command")
    parser.add_argument("--bootstrap-server", required=True)
    parser.values("--config", "--command-config")
    options = parser.parsed(words)
    options.command_config = options.command_config or options.config
    if options.command != "cluster-id":
        raise _UsageError(f"{options.command} is not provided: use `millstream broker`")
    with _cluster(options) as cluster:
        print(f"Cluster ID: {cluster.call('describe_cluster').cluster_id}")
    return exit_codes.OK


# Records: by `millstream produce` and `millstream consume`


def _millstream(words: Sequence[str]) -> int:
    from millstream.cli.app import run_app

    return exit_codes.OK if run_app(list(words)) == exit_codes.OK else exit_codes.FAILED


def _truth(value: str) -> bool:
    return value.strip().lower() == "true"


def _console_producer(name: str, words: Sequence[str]) -> int:
    parser = _Options(name)
    parser.connection()
    parser.add_argument("--topic", required=True)
    parser.values("--producer.config", "--request-required-acks", "--timeout", "--batch-size", "--max-block-ms")
    parser.add_argument("--compression-codec", nargs="?", const="gzip")
    parser.flags("--sync")
    parser.lists("--property", "--reader-property", "--producer-property", "--command-property")
    options = parser.parsed(words)
    command = ["produce", options.topic, "--bootstrap", options.bootstrap_server]
    command += _config_of(options, "producer.config")
    properties = _assigned_whole([*options.property, *options.reader_property])
    unknown = set(properties) - {"parse.key", "key.separator", "null.marker", "ignore.error"}
    if unknown:
        raise _UsageError(f"--property {sorted(unknown)[0]} is not known here. Known: parse.key, key.separator")
    if _truth(properties.get("parse.key", "false")):
        command += ["--key-separator", properties.get("key.separator", "\t")]
    if options.compression_codec:
        command += ["--compression", options.compression_codec]
    for each in (*options.producer_property, *options.command_property):
        command += ["-X", each]
    if options.request_required_acks:
        command += ["--acks", options.request_required_acks.replace("-1", "all")]
    return _millstream(command)


def _config_of(options: argparse.Namespace, older: str = "command_config") -> list[str]:
    file = options.command_config or getattr(options, older)
    return ["--command-config", file] if file else []


def _assigned_whole(words: Sequence[str]) -> dict[str, str]:
    """`name=value`; a comma may be the value."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise _UsageError(f"{word}: write NAME=VALUE")
        found[name.strip()] = value
    return found


def _console_consumer(name: str, words: Sequence[str]) -> int:
    parser = _Options(name)
    parser.connection()
    parser.add_argument("--topic", required=True)
    parser.values("--group", "--partition", "--offset", "--max-messages", "--timeout-ms", "--consumer.config")
    parser.values("--isolation-level", "--formatter")
    parser.flags("--from-beginning", "--skip-message-on-error", "--enable-systest-events")
    parser.lists("--property", "--formatter-property", "--consumer-property", "--command-property")
    options = parser.parsed(words)
    if options.formatter:
        raise _UsageError("--formatter is a class of Java: use `millstream consume --format`")
    command = ["consume", options.topic, "--bootstrap", options.bootstrap_server, "--follow"]
    command += _config_of(options, "consumer.config")
    start = options.offset or ("earliest" if options.from_beginning else "latest")
    command += ["--from", start]
    if options.timeout_ms:
        command += ["--idle", str(int(options.timeout_ms) / 1000)]
    for option, value in (("--group", options.group), ("--count", options.max_messages)):
        command += [option, value] if value else []
    command += ["--partition", options.partition] if options.partition else []
    settings = [*options.consumer_property, *options.command_property]
    if options.isolation_level:
        settings.append(f"isolation.level={options.isolation_level}")
    for each in settings:
        command += ["-X", each]
    command += ["--format", _format(_assigned_whole([*options.property, *options.formatter_property]))]
    return _millstream(command)


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
        raise _UsageError(f"--property {sorted(unknown)[0]} is not known here. Known: {', '.join(_PRINTED)}")
    wanted = {"print.value": "true", **properties}
    parts = [text for name, text in _PRINTED.items() if _truth(wanted.get(name, "false"))]
    return properties.get("key.separator", "\\t").join(parts) + properties.get("line.separator", "\\n")


# kafka-consumer-groups

_GROUP_COLUMNS = (
    *("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"),
    *("CONSUMER-ID", "HOST", "CLIENT-ID"),
)


def _consumer_groups(name: str, words: Sequence[str]) -> int:
    from millstream.admin.groups import GroupAdmin

    parser = _Options(name)
    parser.connection()
    parser.flags("--list", "--describe", "--delete", "--reset-offsets", "--all-groups", "--members", "--state")
    parser.flags("--offsets", "--verbose", "--all-topics", "--execute", "--dry-run", "--to-earliest", "--to-latest")
    parser.values("--to-offset", "--to-datetime", "--by-duration", "--shift-by", "--timeout")
    parser.lists("--group", "--topic")
    options = parser.parsed(words)
    action = _one_of(options, "list", "describe", "delete", "reset_offsets")
    if action in ("delete", "reset_offsets"):
        return _millstream(_changed_group(options, action))
    with _cluster(options) as cluster:
        admin = GroupAdmin(cluster)
        names = [each.name for each in admin.groups()]
        if action == "list":
            print("\n".join(names))
            return exit_codes.OK
        if options.members or options.state:
            shown = "members" if options.members else "describe"
            wanted = names if options.all_groups else options.group
            connection = ["--bootstrap", options.bootstrap_server, *_config_of(options)]
            return max((_millstream(["group", shown, each, *connection]) for each in wanted), default=exit_codes.OK)
        if not options.group and not options.all_groups:
            raise _UsageError("--describe needs --group or --all-groups")
        for each in names if options.all_groups else options.group:
            group = admin.find(each)
            if group is None:
                return _failed(name, f"Error: Consumer group '{each}' does not exist.")
            if not group.members:
                print(f"\nConsumer group '{each}' has no active members.", file=sys.stderr)
            rows = [_GROUP_COLUMNS]
            for at, progress in sorted(admin.progress(each).items()):
                member = group.owner(at)
                owner = ("-", "-", "-") if member is None else (member.member_id, member.host, member.client_id)
                lag = "-" if progress.lag is None else str(progress.lag)
                rows.append((each, at.topic, str(at.partition), str(progress.offset), str(progress.end), lag, *owner))
            widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
            print()
            for row in rows:
                print(" ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return exit_codes.OK


def _changed_group(options: argparse.Namespace, action: str) -> list[str]:
    connection = ["--bootstrap", options.bootstrap_server, *_config_of(options)]
    if options.all_groups or not options.group:
        raise _UsageError("name the groups with --group")
    if action == "delete":
        return ["group", "delete", *options.group, *connection]
    if len(options.group) != 1:
        raise _UsageError("--reset-offsets: give one --group")
    command = ["group", "reset-offsets", *options.group, *connection]
    for each in options.topic:
        command += ["--topic", each]
    if not options.topic:
        command += ["--all-topics"]
    for flag in ("to_earliest", "to_latest", "execute"):
        command += [f"--{flag.replace('_', '-')}"] if getattr(options, flag) else []
    targets = {"to_offset": "to-offset", "to_datetime": "to-time", "by_duration": "by-duration", "shift_by": "shift-by"}
    for option, ours in targets.items():
        value = getattr(options, option)
        command += [f"--{ours}", value] if value is not None else []
    return command


def _get_offsets(name: str, words: Sequence[str]) -> int:
    from millstream.raw_client import TopicPartition

    parser = _Options(name)
    parser.connection()
    parser.values("--topic", "--time")
    options = parser.parsed(words)
    special = {"latest": -1, "earliest": -2, "max-timestamp": -3}
    text = options.time or "latest"
    if text not in special and not re.fullmatch(r"-?\d+", text):
        raise _UsageError(f"--time {text}: give milliseconds, latest, earliest or max-timestamp")
    pattern = re.compile(options.topic) if options.topic else None
    with _cluster(options) as cluster:
        places = [
            TopicPartition(topic, row.index)
            for topic, info in sorted(cluster.topics().items())
            if pattern is None or pattern.fullmatch(topic)
            for row in info.partitions
        ]
        if not places:
            return _failed(name, "Could not match any topic-partitions with the specified filters")
        found = cluster.offsets(dict.fromkeys(places, special.get(text) or int(text)), read_committed=False)
        for at in places:
            print(f"{at.topic}:{at.partition}:{found[at].offset if found[at].offset >= 0 else ''}")
    return exit_codes.OK


# kafka-configs


def _configs(name: str, words: Sequence[str]) -> int:
    from millstream.admin.topics import ConfigChange, ConfigOperation, ConfigResource, TopicAdmin

    parser = _Options(name)
    parser.connection()
    parser.flags("--alter", "--describe", "--all", "--entity-default", "--broker-defaults")
    parser.values("--entity-type", "--entity-name", "--topic", "--broker", "--user")
    parser.lists("--add-config", "--delete-config")
    options = parser.parsed(words)
    action = _one_of(options, "alter", "describe")
    kind, entity = _entity(options)
    if kind == "users":
        return _user_configs(options, action, entity)
    resource = ConfigResource.TOPIC if kind == "topics" else ConfigResource.BROKER
    with _cluster(options) as cluster:
        admin = TopicAdmin(cluster)
        title = f"{kind[:-1]} {entity}" if entity else f"default {kind} in the cluster"
        if action == "describe":
            names = [entity] if entity is not None else [each.name for each in admin.topics()]
            for each in names:
                shown = f"{kind[:-1]} {each}" if each else f"default {kind} in the cluster"
                print(f"{'All' if options.all else 'Dynamic'} configs for {shown} are:")
                for entry in admin.settings(resource, each):
                    if options.all or entry.is_own or (not each and entry.value is not None):
                        print(f"  {entry.name}={entry.value} sensitive={str(entry.is_sensitive).lower()}")
            return exit_codes.OK
        changes = [ConfigChange(key, value) for key, value in _assigned(options.add_config).items()]
        removed = [each.strip() for word in options.delete_config for each in word.split(",")]
        changes += [ConfigChange(key, None, ConfigOperation.DELETE) for key in removed]
        if not changes:
            raise _UsageError("--alter needs --add-config or --delete-config")
        admin.change(resource, entity or "", changes)
        print(f"Completed updating config for {title}.")
    return exit_codes.OK


def _entity(options: argparse.Namespace) -> tuple[str, str | None]:
    for kind in ("topic", "broker", "user"):
        if getattr(options, kind):
            return f"{kind}s", getattr(options, kind)
    if options.broker_defaults:
        return "brokers", ""
    if options.entity_type not in ("topics", "brokers", "users"):
        raise _UsageError(
            f"--entity-type {options.entity_type}: topics, brokers and users are known here. Quotas of clients: "
            "`millstream quota`"
        )
    if options.entity_name is None and not options.entity_default and options.entity_type != "topics":
        raise _UsageError("give --entity-name or --entity-default")
    if options.alter and options.entity_name is None and options.entity_type != "brokers":
        raise _UsageError("--alter needs --entity-name")
    return options.entity_type, "" if options.entity_default else options.entity_name


def _user_configs(options: argparse.Namespace, action: str, user: str | None) -> int:
    from millstream.admin.users import DEFAULT_ITERATIONS, MECHANISMS, UserAdmin

    if not user:
        raise _UsageError("give --entity-name: quotas of all users are set by `millstream quota`")
    with _cluster(options) as cluster:
        admin = UserAdmin(cluster)
        if action == "describe":
            for found in admin.users([user]):
                shown = ", ".join(f"{each}=iterations={count}" for each, count in found.iterations.items())
                print(f"SCRAM credential configs for user-principal '{user}' are {shown}")
            return exit_codes.OK
        wanted = _assigned(options.add_config)
        for mechanism, text in wanted.items():
            if mechanism not in MECHANISMS:
                raise _UsageError(f"--add-config {mechanism}: SCRAM is known here. Quotas: `millstream quota`")
            fields = _assigned_whole(text.split(",", 1) if text.startswith("iterations=") else [text])
            if not fields.get("password"):
                raise _UsageError(f"{mechanism}=[iterations=8192,password=…] has no password")
            count = fields.get("iterations", str(DEFAULT_ITERATIONS))
            if not count.isdigit():
                raise _UsageError(f"iterations={count}: give a number")
            admin.set_password(user, fields["password"], [mechanism], int(count))
        if options.delete_config:
            admin.remove(user)
        if not wanted and not options.delete_config:
            raise _UsageError("--alter needs --add-config or --delete-config")
        print(f"Completed updating config for user {user}.")
    return exit_codes.OK


# The process and its directories


def _storage(name: str, words: Sequence[str]) -> int:
    from millstream.config.loading import load_broker_config
    from millstream.config.table import node
    from millstream.node.runtime.disk import RealDisk
    from millstream.node.runtime.identity import Identity, random_uuid, read_identity, short_uuid, write_identity

    parser = _Options(name)
    parser.add_argument("command")
    for short, long in (("-t", "--cluster-id"), ("-c", "--config")):
        parser.add_argument(short, long)
    parser.add_argument("-g", "--ignore-formatted", action="store_true")
    parser.add_argument("-s", "--standalone", action="store_true")
    options = parser.parsed(words)
    if options.command == "random-uuid":
        print(short_uuid(random_uuid(random.SystemRandom())))
        return exit_codes.OK
    if options.command != "format":
        raise _UsageError(f"{options.command} is not provided. Known: format, random-uuid")
    if options.cluster_id is None or options.config is None:
        raise _UsageError("format needs --cluster-id and --config")
    if not re.fullmatch(r"[A-Za-z0-9_-]{22}", options.cluster_id):
        raise _UsageError(f"--cluster-id {options.cluster_id}: an id is 22 characters, as `random-uuid` prints")
    config = load_broker_config(file=options.config)
    disk = RealDisk()
    for directory in config.log_dirs:
        os.makedirs(directory, exist_ok=True)
        found = read_identity(disk, directory)
        if found is not None:
            if not options.ignore_formatted:
                return _failed(name, f"Log directory {directory} is already formatted. Use --ignore-formatted")
            if found.cluster_id not in (None, options.cluster_id):
                return _failed(name, f"{directory} belongs to cluster {found.cluster_id}")
            continue
        made = random_uuid(random.SystemRandom())
        write_identity(disk, directory, Identity(options.cluster_id, int(config[node.NODE_ID]), made))
        print(f"Formatting metadata directory {directory} with cluster id {options.cluster_id}.")
    return exit_codes.OK


def _server_start(name: str, words: Sequence[str]) -> int:
    from millstream.cli import serve

    parser = _Options(name)
    parser.add_argument("file")
    parser.lists("--override")
    options = parser.parsed(words)
    command = ["--config", options.file, "--no-http"]
    for each in options.override:
        command += ["--set", each]
    parsed = serve.parse(command)
    assert parsed is not None
    return serve.run(parsed)


_SCRIPTS: dict[str, Callable[[str, Sequence[str]], int]] = {
    "kafka-topics": _topics,
    "kafka-broker-api-versions": _broker_api_versions,
    "kafka-metadata-quorum": _metadata_quorum,
    "kafka-cluster": _cluster_script,
    "kafka-console-producer": _console_producer,
    "kafka-console-consumer": _console_consumer,
    "kafka-consumer-groups": _consumer_groups,
    "kafka-get-offsets": _get_offsets,
    "kafka-configs": _configs,
    "kafka-storage": _storage,
    "kafka-server-start": _server_start,
}
