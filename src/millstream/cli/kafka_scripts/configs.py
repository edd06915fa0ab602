"""`kafka-configs`: settings of topics and brokers, and SCRAM users."""

import argparse
from collections.abc import Sequence

from millstream.cli import exit_codes
from millstream.cli.kafka_scripts.options import Options, UsageError, assigned, assigned_whole, one_of, open_cluster


def configs(name: str, words: Sequence[str]) -> int:
    from millstream.admin.topics import ConfigChange, ConfigOperation, ConfigResource, TopicAdmin

    parser = Options(name)
    parser.connection()
    parser.flags("--alter", "--describe", "--all", "--entity-default", "--broker-defaults")
    parser.values("--entity-type", "--entity-name", "--topic", "--broker", "--user")
    parser.lists("--add-config", "--delete-config")
    options = parser.parsed(words)
    action = one_of(options, "alter", "describe")
    kind, entity = _entity(options)
    if kind == "users":
        return _user_configs(options, action, entity)
    resource = ConfigResource.TOPIC if kind == "topics" else ConfigResource.BROKER
    with open_cluster(options) as cluster:
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
        changes = [ConfigChange(key, value) for key, value in assigned(options.add_config).items()]
        removed = [each.strip() for word in options.delete_config for each in word.split(",")]
        changes += [ConfigChange(key, None, ConfigOperation.DELETE) for key in removed]
        if not changes:
            raise UsageError("--alter needs --add-config or --delete-config")
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
        raise UsageError(
            f"--entity-type {options.entity_type}: only topics, brokers and users are supported. "
            "For quotas of clients: "
            "`millstream quota`"
        )
    if options.entity_name is None and not options.entity_default and options.entity_type != "topics":
        raise UsageError("give --entity-name or --entity-default")
    if options.alter and options.entity_name is None and options.entity_type != "brokers":
        raise UsageError("--alter needs --entity-name")
    return options.entity_type, "" if options.entity_default else options.entity_name


def _user_configs(options: argparse.Namespace, action: str, user: str | None) -> int:
    from millstream.admin.users import DEFAULT_ITERATIONS, MECHANISMS, UserAdmin

    if not user:
        raise UsageError("give --entity-name: quotas of all users are set by `millstream quota`")
    with open_cluster(options) as cluster:
        admin = UserAdmin(cluster)
        if action == "describe":
            for found in admin.users([user]):
                shown = ", ".join(f"{each}=iterations={count}" for each, count in found.iterations.items())
                print(f"SCRAM credential configs for user-principal '{user}' are {shown}")
            return exit_codes.OK
        wanted = assigned(options.add_config)
        for mechanism, text in wanted.items():
            if mechanism not in MECHANISMS:
                raise UsageError(f"--add-config {mechanism}: only SCRAM is supported. For quotas: `millstream quota`")
            fields = assigned_whole(text.split(",", 1) if text.startswith("iterations=") else [text])
            if not fields.get("password"):
                raise UsageError(f"{mechanism}=[iterations=8192,password=…] has no password")
            count = fields.get("iterations", str(DEFAULT_ITERATIONS))
            if not count.isdigit():
                raise UsageError(f"iterations={count}: give a number")
            admin.set_password(user, fields["password"], [mechanism], int(count))
        if options.delete_config:
            admin.remove(user)
        if not wanted and not options.delete_config:
            raise UsageError("--alter needs --add-config or --delete-config")
        print(f"Completed updating config for user {user}.")
    return exit_codes.OK
