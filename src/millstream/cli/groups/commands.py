"""The six commands on groups, written once: `millstream group` and `millstream share` differ only in whom they ask."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli import exit_codes
from millstream.cli.group_admin import Group, Groups, no_such_group, still_active
from millstream.cli.groups.view import (
    group_document,
    lag_document,
    lags_of,
    show_group,
    show_lags,
    show_members,
    show_moves,
)
from millstream.cli.offset_reset import plan, target_of
from millstream.cli.options import (
    COMPLETION_TIMEOUT_S,
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    ClientSettings,
    Json,
    Timeout,
    open_client,
)
from millstream.cli.terminal import CommandFailedError, complain, note, print_json, print_table, progress

if TYPE_CHECKING:
    from millstream.client import Client


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of groups: the command's name, what a person calls them, and how to reach them."""

    command: str
    noun: str
    open: "Callable[[Client], Groups]"
    offset_column: str
    begins_with_offsets: bool = True
    """Whether setting offsets makes a group that is not there."""


def make_app(kind: Kind) -> typer.Typer:
    """The command tree for one kind of groups."""

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        """Group ids for the shell; nothing if there is no broker, since completion must never complain."""
        try:
            bootstrap = context.params.get("bootstrap") or DEFAULT_BOOTSTRAP
            with open_client(bootstrap, COMPLETION_TIMEOUT_S, None) as client:
                return [row.group for row in kind.open(client).list() if row.group.startswith(incomplete)]
        except Exception:
            return []

    GroupArguments = Annotated[  # noqa: N806  # a type
        list[str],
        typer.Argument(metavar="GROUP...", help="Group ids.", autocompletion=complete, show_default=False),
    ]
    app = typer.Typer(
        help=f"List, describe and delete {kind.noun}s; see their members and lag; move their offsets.",
        no_args_is_help=True,
    )

    def examples(text: str, *lines: str) -> str:
        shown = "\n".join(f"  millstream {kind.command} {line}" for line in lines)
        return f"{text}\n\n\b\nExample{'s' if len(lines) > 1 else ''}:\n{shown}\n"

    @app.command("list", help=examples(f"List {kind.noun}s.", "list", "list --state Empty --json"))
    def list_groups(
        state: Annotated[
            str | None, typer.Option("--state", metavar="STATE", help="Only those in this state: Stable, Empty, …")
        ] = None,
        bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
        json: Json = False,
        timeout: Timeout = DEFAULT_TIMEOUT_S,
        settings: ClientSettings = None,
    ) -> None:
        with open_client(bootstrap, timeout, settings) as client:
            found = [row for row in kind.open(client).list() if state is None or row.state.lower() == state.lower()]
        if json:
            print_json([{"group": row.group, "type": row.type, "state": row.state} for row in found])
        elif found:
            print_table(("group", "type", "state"), [(row.group, row.type, row.state) for row in found])
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
        timeout: Timeout = DEFAULT_TIMEOUT_S,
        settings: ClientSettings = None,
    ) -> None:
        documents = []
        with open_client(bootstrap, timeout, settings) as client:
            admin = kind.open(client)
            for name in groups:
                group = _existing(admin, name, kind)
                lags = lags_of(client, group, admin.offsets(name))
                if json:
                    documents.append({**group_document(group), **lag_document(name, lags)})
                else:
                    show_group(group)
                    show_members(group)
                    show_lags(lags, kind.offset_column)
        if json:
            print_json(documents)

    @app.command(
        help=examples("Show members and the partitions each has.", "members billing", "members billing --json")
    )
    def members(
        groups: GroupArguments,
        bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
        json: Json = False,
        timeout: Timeout = DEFAULT_TIMEOUT_S,
        settings: ClientSettings = None,
    ) -> None:
        with open_client(bootstrap, timeout, settings) as client:
            admin = kind.open(client)
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
            "Show how far groups are behind, partition by partition.",
            "lag billing",
            "lag billing audit --json",
            "lag billing --json > offsets.json   # reset-offsets --from-file takes it back",
        )
    )
    def lag(
        groups: Annotated[
            list[str] | None,
            typer.Argument(metavar="[GROUP]...", help="Group ids. [default: all]", autocompletion=complete),
        ] = None,
        bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
        json: Json = False,
        timeout: Timeout = DEFAULT_TIMEOUT_S,
        settings: ClientSettings = None,
    ) -> None:
        documents = []
        with open_client(bootstrap, timeout, settings) as client, progress(wanted=not groups) as display:
            admin = kind.open(client)
            names = groups or [row.group for row in admin.list()]
            task = display.add_task("groups", total=len(names), info="") if display is not None else None
            for name in names:
                group = admin.describe(name)
                if group is None:
                    if groups:
                        raise no_such_group(name, kind.command)
                    continue  # it went since it was listed
                lags = lags_of(client, group, admin.offsets(name))
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
            "Move a group's offsets. Shows what it would do; --execute does it. The group must have no members.",
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
            typer.Argument(metavar="GROUP", help="The group's id.", autocompletion=complete, show_default=False),
        ],
        topic: Annotated[
            list[str] | None,
            typer.Option("--topic", "-t", metavar="TOPIC[:N,N]", help="A topic, or some partitions. Repeatable."),
        ] = None,
        all_topics: Annotated[
            bool, typer.Option("--all-topics", help="All partitions for which the group has offsets.")
        ] = False,
        to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the beginning.")] = False,
        to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end.")] = False,
        to_offset: Annotated[int | None, typer.Option("--to-offset", metavar="N", help="To this offset.")] = None,
        to_time: Annotated[
            str | None, typer.Option("--to-time", metavar="ISO", help="To the first record at or after this time.")
        ] = None,
        by_duration: Annotated[
            str | None, typer.Option("--by-duration", metavar="AGE", help="To that long ago: 90s, 5m, 2h, 7d, PT1H.")
        ] = None,
        shift_by: Annotated[
            int | None, typer.Option("--shift-by", metavar="N", help="Forward by N, or back if negative.")
        ] = None,
        from_file: Annotated[
            str | None, typer.Option("--from-file", metavar="FILE", help="To what a CSV or JSON file says.")
        ] = None,
        execute: Annotated[bool, typer.Option("--execute", help="Do it; without this nothing is changed.")] = False,
        bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
        json: Json = False,
        timeout: Timeout = DEFAULT_TIMEOUT_S,
        settings: ClientSettings = None,
    ) -> None:
        target = target_of(
            to_earliest=to_earliest,
            to_latest=to_latest,
            to_offset=to_offset,
            to_time=to_time,
            by_duration=by_duration,
            shift_by=shift_by,
            from_file=from_file,
        )
        if bool(topic) + all_topics + (from_file is not None) != 1:
            raise CommandFailedError("say for what: --topic, --all-topics or --from-file", exit_codes.USAGE)
        with open_client(bootstrap, timeout, settings) as client:
            admin = kind.open(client)
            found = admin.describe(group)
            if found is None and not kind.begins_with_offsets:
                raise no_such_group(group, kind.command)
            active = found is not None and found.is_active
            if found is not None and active and execute:
                raise still_active(group, found.state, len(found.members))
            positions = admin.offsets(group) if found is not None else {}
            committed = {place: position.offset for place, position in positions.items()}
            moves = plan(client, committed, topic or [], all_topics, target)
            if execute and moves:
                admin.set_offsets(group, {(move.topic, move.partition): move.new for move in moves})
        show_moves(group, moves, executed=execute, json=json)
        if found is not None and active:
            complain(str(still_active(group, found.state, len(found.members))))

    @app.command(
        help=examples(
            f"Delete {kind.noun}s with all their offsets. They must have no members. There is no way back.",
            "delete billing",
            "delete billing audit --if-exists",
        )
    )
    def delete(
        groups: GroupArguments,
        if_exists: Annotated[bool, typer.Option("--if-exists", help="A missing group is fine.")] = False,
        bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
        json: Json = False,
        timeout: Timeout = DEFAULT_TIMEOUT_S,
        settings: ClientSettings = None,
    ) -> None:
        outcome = []
        with open_client(bootstrap, timeout, settings) as client:
            admin = kind.open(client)
            for name in groups:
                found = admin.describe(name)
                if found is None and not if_exists:
                    raise no_such_group(name, kind.command)
                if found is not None and found.is_active:
                    raise still_active(name, found.state, len(found.members))
                if found is not None:
                    admin.delete(name)
                outcome.append({"group": name, "deleted": found is not None})
                if not json:
                    print(f"deleted {name}" if found is not None else f"{name} does not exist")
        if json:
            print_json(outcome)

    return app


def _existing(admin: Groups, name: str, kind: Kind) -> Group:
    group = admin.describe(name)
    if group is None:
        raise no_such_group(name, kind.command)
    return group
