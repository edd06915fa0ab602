"""`kafka-consumer-groups`: offsets are printed as Kafka prints them, changes are made by `millstream group`."""

import argparse
import sys
from collections.abc import Sequence

from millstream.cli import exit_codes
from millstream.cli.kafka_scripts.options import (
    Options,
    UsageError,
    config_of,
    failed,
    one_of,
    open_cluster,
    run_millstream,
)

_GROUP_COLUMNS = (
    *("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"),
    *("CONSUMER-ID", "HOST", "CLIENT-ID"),
)


def consumer_groups(name: str, words: Sequence[str]) -> int:
    from millstream.admin.groups import GroupAdmin

    parser = Options(name)
    parser.connection()
    parser.flags("--list", "--describe", "--delete", "--reset-offsets", "--all-groups", "--members", "--state")
    parser.flags("--offsets", "--verbose", "--all-topics", "--execute", "--dry-run", "--to-earliest", "--to-latest")
    parser.values("--to-offset", "--to-datetime", "--by-duration", "--shift-by", "--timeout")
    parser.lists("--group", "--topic")
    options = parser.parsed(words)
    action = one_of(options, "list", "describe", "delete", "reset_offsets")
    if action in ("delete", "reset_offsets"):
        return run_millstream(_changed_group(options, action))
    with open_cluster(options) as cluster:
        admin = GroupAdmin(cluster)
        names = [each.name for each in admin.groups()]
        if action == "list":
            print("\n".join(names))
            return exit_codes.OK
        if options.members or options.state:
            shown = "members" if options.members else "describe"
            wanted = names if options.all_groups else options.group
            connection = ["--bootstrap", options.bootstrap_server, *config_of(options)]
            return max((run_millstream(["group", shown, each, *connection]) for each in wanted), default=exit_codes.OK)
        if not options.group and not options.all_groups:
            raise UsageError("--describe needs --group or --all-groups")
        for each in names if options.all_groups else options.group:
            group = admin.find(each)
            if group is None:
                return failed(name, f"Error: Consumer group '{each}' does not exist.")
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
    connection = ["--bootstrap", options.bootstrap_server, *config_of(options)]
    if options.all_groups or not options.group:
        raise UsageError("name the groups with --group")
    if action == "delete":
        return ["group", "delete", *options.group, *connection]
    if len(options.group) != 1:
        raise UsageError("--reset-offsets: give one --group")
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
