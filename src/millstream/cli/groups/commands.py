"""`millstream group` and `millstream share`: the same six commands, for consumer groups and for share groups."""

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli import exit_codes
from millstream.cli.groups.view import (
    group_document,
    lag_document,
    lags_of,
    show_group,
    show_lags,
    show_members,
    show_moves,
)
from millstream.cli.options import (
    COMPLETION_TIMEOUT_SECONDS,
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_SECONDS,
    Bootstrap,
    ClientSettings,
    Json,
    Timeout,
    open_cluster,
    parsed_duration,
    parsed_time,
)
from millstream.cli.terminal import CommandFailedError, complain, note, print_json, print_table, progress
from millstream.common.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from millstream.admin.groups import Group, GroupAdmin
    from millstream.admin.offsets import ResetTarget
    from millstream.raw_client import Cluster, TopicPartition


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of groups: the word of the command, the noun in texts, and the heading of the offset column."""

    command: str
    noun: str
    offset_column: str
    share: bool


def make_app(kind: Kind) -> typer.Typer:
    """The commands for one kind of groups."""

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        """Group ids for the shell. Empty on any error: completion must not print one."""
        try:
            bootstrap = context.params.get("bootstrap") or DEFAULT_BOOTSTRAP
            with open_cluster(bootstrap, COMPLETION_TIMEOUT_SECONDS, None) as cluster:
                found = _admin(cluster).groups(share=kind.share)
                return [row.name for row in found if row.name.startswith(incomplete)]
        except Exception:
            return []

    GroupArguments = Annotated[  # noqa: N806  # a type
        list[str],
        typer.Argument(metavar="GROUP...", help="Group ids.", autocompletion=complete, show_default=False),
    ]
    app = typer.Typer(
        help=f"List, describe and delete {kind.noun}s; show members and lag; reset offsets.",
        no_args_is_help=True,
    )

    def examples(text: str, *lines: str) -> str:
        shown = "\n".join(f"  millstream {kind.command} {line}" for line in lines)
        return f"{text}\n\n\b\nExample{'s' if len(lines) > 1 else ''}:\n{shown}\n"

    @app.command("list", help=examples(f"List {kind.noun}s.", "list", "list --state Empty --json"))
    def list_groups(
        state: Annotated[
            str | None, typer.Option("--state", metavar="STATE", help="Only groups in this state: Stable, Empty, …")
        ] = None,
        bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
        json: Json = False,
        timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
        settings: ClientSettings = None,
    ) -> None:
        with open_cluster(bootstrap, timeout, settings) as cluster:
            listed = _admin(cluster).groups(share=kind.share)
        found = [row for row in listed if state is None or row.state.lower() == state.lower()]
        if json:
            print_json([{"group": row.name, "type": row.type, "state": row.state} for row in found])
        elif found:
            print_table(("group", "type", "state"), [(row.name, row.type, row.state) for row in found])
        else:
            note(f"no {kind.noun}s")

    @app.command(
        help=examples(
            f"Show state, members and lag of {kind.noun}s.", "describe billing", "describe billing audit --json"
        )
    )
    def describe(
        groups: GroupArguments,
        bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
        json: Json = False,
        timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
        settings: ClientSettings = None,
    ) -> None:
        documents = []
        with open_cluster(bootstrap, timeout, settings) as cluster:
            admin = _admin(cluster)
            for name in groups:
                group = _existing(admin, name, kind)
                lags = lags_of(admin, group)
                if json:
                    documents.append({**group_document(group), **lag_document(name, lags)})
                else:
                    show_group(group)
                    show_members(group)
                    show_lags(lags, kind.offset_column)
        if json:
            print_json(documents)

    @app.command(
        help=examples("Show members and their assigned partitions.", "members billing", "members billing --json")
    )
    def members(
        groups: GroupArguments,
        bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
        json: Json = False,
        timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
        settings: ClientSettings = None,
    ) -> None:
        with open_cluster(bootstrap, timeout, settings) as cluster:
            admin = _admin(cluster)
            found = [_existing(admin, name, kind) for name in groups]
        if json:
            print_json([group_document(group) for group in found])
            return
        for group in found:
            if len(found) > 1:
                show_group(group)
            show_members(group)

    @app.command(
        help=examples(
            "Show offset, end and lag of each partition.",
            "lag billing",
            "lag billing audit --json",
            "lag billing --json > offsets.json   # input for reset-offsets --from-file",
        )
    )
    def lag(
        groups: Annotated[
            list[str] | None,
            typer.Argument(metavar="[GROUP]...", help="Group ids. [default: all]", autocompletion=complete),
        ] = None,
        bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
        json: Json = False,
        timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
        settings: ClientSettings = None,
    ) -> None:
        documents = []
        with open_cluster(bootstrap, timeout, settings) as cluster, progress(wanted=not groups) as display:
            admin = _admin(cluster)
            names = groups or [row.name for row in admin.groups(share=kind.share)]
            task = display.add_task("groups", total=len(names), info="") if display is not None else None
            for name in names:
                group = admin.find(name, share=kind.share)
                if group is None:
                    if groups:
                        raise _no_such_group(name, kind)
                    continue  # deleted since it was listed
                lags = lags_of(admin, group)
                if json:
                    documents.append(lag_document(name, lags))
                else:
                    if len(names) > 1:
                        show_group(group)
                    show_lags(lags, kind.offset_column)
                if display is not None and task is not None:
                    display.advance(task)
        if json:
            print_json(documents)

    @app.command(
        "reset-offsets",
        help=examples(
            "Reset the offsets of a group. Only shows the result without --execute. The group must have no members.",
            "reset-offsets billing --topic orders --to-earliest",
            "reset-offsets billing --topic orders:0,2 --to-offset 42 --execute",
            "reset-offsets billing --all-topics --to-time 2026-01-31T12:00 --execute",
            "reset-offsets billing --all-topics --by-duration 2h --execute",
            "reset-offsets billing --all-topics --shift-by -100",
            "reset-offsets billing --from-file offsets.csv --execute   # topic,partition,offset",
        ),
    )
    def reset_offsets(
        group: Annotated[
            str,
            typer.Argument(metavar="GROUP", help="Group id.", autocompletion=complete, show_default=False),
        ],
        topic: Annotated[
            list[str] | None,
            typer.Option("--topic", "-t", metavar="TOPIC[:N,N]", help="Topic, or some of its partitions. Repeatable."),
        ] = None,
        all_topics: Annotated[
            bool, typer.Option("--all-topics", help="All partitions in which the group has an offset.")
        ] = False,
        to_earliest: Annotated[bool, typer.Option("--to-earliest", help="Target: first offset of the log.")] = False,
        to_latest: Annotated[bool, typer.Option("--to-latest", help="Target: end of the log.")] = False,
        to_offset: Annotated[int | None, typer.Option("--to-offset", metavar="N", help="Target: this offset.")] = None,
        to_time: Annotated[
            str | None, typer.Option("--to-time", metavar="ISO", help="Target: first record at or after this time.")
        ] = None,
        by_duration: Annotated[
            str | None,
            typer.Option(
                "--by-duration", metavar="AGE", help="Target: first record of the last 90s, 5m, 2h, 7d or PT1H."
            ),
        ] = None,
        shift_by: Annotated[
            int | None, typer.Option("--shift-by", metavar="N", help="Target: N records forward, or back if negative.")
        ] = None,
        from_file: Annotated[
            str | None, typer.Option("--from-file", metavar="FILE", help="Target: offsets of a CSV or JSON file.")
        ] = None,
        execute: Annotated[bool, typer.Option("--execute", help="Apply the reset.")] = False,
        bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
        json: Json = False,
        timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
        settings: ClientSettings = None,
    ) -> None:
        target = _target(to_earliest, to_latest, to_offset, to_time, by_duration, shift_by, from_file)
        if bool(topic) + all_topics + (from_file is not None) != 1:
            raise CommandFailedError("exactly one of --topic, --all-topics and --from-file is needed", exit_codes.USAGE)
        with open_cluster(bootstrap, timeout, settings) as cluster:
            admin = _admin(cluster)
            found = admin.find(group, share=kind.share)
            if found is None and kind.share:
                raise _no_such_group(group, kind)
            committed = list(admin.offsets(group, share=kind.share)) if all_topics and found is not None else []
            partitions = _partitions(cluster, topic or [], list(target.offsets), committed, all_topics)
            moves = admin.reset_offsets(group, target, partitions, share=kind.share, dry_run=not execute)
        show_moves(group, moves, executed=execute, json=json)
        if found is not None and found.is_active:
            complain(_active_text(found))

    @app.command(
        help=examples(
            f"Delete {kind.noun}s and their offsets. They must have no members. This cannot be undone.",
            "delete billing",
            "delete billing audit --if-exists",
        )
    )
    def delete(
        groups: GroupArguments,
        if_exists: Annotated[bool, typer.Option("--if-exists", help="Accept a group that does not exist.")] = False,
        bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
        json: Json = False,
        timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
        settings: ClientSettings = None,
    ) -> None:
        from millstream.admin.groups import check_not_active

        results = []
        with open_cluster(bootstrap, timeout, settings) as cluster:
            admin = _admin(cluster)
            for name in groups:
                found = admin.find(name, share=kind.share)
                if found is None and not if_exists:
                    raise _no_such_group(name, kind)
                if found is not None:
                    check_not_active(found)
                    admin.delete(name)
                results.append({"group": name, "deleted": found is not None})
                if not json:
                    print(f"deleted {name}" if found is not None else f"{name} does not exist")
        if json:
            print_json(results)

    return app


def _admin(cluster: "Cluster") -> "GroupAdmin":
    from millstream.admin.groups import GroupAdmin

    return GroupAdmin(cluster)


def _existing(admin: "GroupAdmin", name: str, kind: Kind) -> "Group":
    group = admin.find(name, share=kind.share)
    if group is None:
        raise _no_such_group(name, kind)
    return group


def _no_such_group(group: str, kind: Kind) -> CommandFailedError:
    return CommandFailedError(
        f"group {group!r} does not exist: `millstream {kind.command} list` lists the existing groups",
        exit_codes.NOT_FOUND,
    )


def _active_text(group: "Group") -> str:
    from millstream.admin.errors import GroupNotEmptyError
    from millstream.admin.groups import check_not_active

    try:
        check_not_active(group)
    except GroupNotEmptyError as error:
        return str(error)
    return ""


def _partitions(
    cluster: "Cluster",
    topics: list[str],
    of_file: "list[TopicPartition]",
    committed: "list[TopicPartition]",
    all_topics: bool,
) -> "list[TopicPartition]":
    """The partitions that a reset is for; they must exist."""
    from millstream.admin.offsets import parse_partitions, partitions_of

    if all_topics and not committed:
        raise CommandFailedError("the group has no offsets yet: name the topics with --topic", exit_codes.NOT_FOUND)
    found = [each for text in topics for each in parse_partitions(cluster, text)]
    chosen = [*of_file, *committed]
    for topic in dict.fromkeys(each.topic for each in chosen):
        found += partitions_of(cluster, topic, [each.partition for each in chosen if each.topic == topic])
    return list(dict.fromkeys(found))


def _target(
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_time: str | None,
    by_duration: str | None,
    shift_by: int | None,
    from_file: str | None,
) -> "ResetTarget":
    """Exactly one option must be given."""
    from millstream.admin.offsets import ResetTarget, read_offsets

    given = {
        "--to-earliest": to_earliest,
        "--to-latest": to_latest,
        "--to-offset": to_offset is not None,
        "--to-time": to_time is not None,
        "--by-duration": by_duration is not None,
        "--shift-by": shift_by is not None,
        "--from-file": from_file is not None,
    }
    if sum(given.values()) != 1:
        raise CommandFailedError(f"exactly one of {', '.join(given)} is needed", exit_codes.USAGE)
    if to_offset is not None:
        return ResetTarget.to_offset(to_offset)
    if shift_by is not None:
        return ResetTarget.shift_by(shift_by)
    if to_time is not None:
        return ResetTarget.to_time(parsed_time("--to-time", to_time))
    if by_duration is not None:
        return ResetTarget.by_duration(timedelta(milliseconds=parsed_duration("--by-duration", by_duration)))
    if from_file is not None:
        return ResetTarget.to_offsets(read_offsets(from_file))
    return ResetTarget.earliest() if to_earliest else ResetTarget.latest()


group_app = make_app(Kind("group", "consumer group", "committed", share=False))
share_app = make_app(Kind("share", "share group", "start", share=True))
