"""`millstream quota`: list, set and remove quotas of users, client ids and addresses."""

from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli import exit_codes
from millstream.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_SECONDS,
    Bootstrap,
    ClientSettings,
    Json,
    Timeout,
    assignments,
    open_cluster,
)
from millstream.cli.terminal import CommandFailedError, note, print_json, print_table

if TYPE_CHECKING:
    from millstream.admin.quotas import Entity, QuotaAdmin

app = typer.Typer(
    help="Limit what users, client ids and addresses may use; list and remove such quotas.", no_args_is_help=True
)

_KEYS = "producer_byte_rate, consumer_byte_rate, request_percentage, controller_mutation_rate, connection_creation_rate"

User = Annotated[
    str | None, typer.Option("--user", metavar="NAME", help="User, or '<default>' for users without a quota.")
]
ClientId = Annotated[
    str | None,
    typer.Option("--client-id", metavar="ID", help="Client id, or '<default>'. May be combined with --user."),
]
Ip = Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", help="Address of clients, or '<default>'.")]


@app.command("list")
def list_quotas(
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """List quotas, all of them or those of a user, client id or address.

    The most specific quota of a client applies: user and client id, then the
    user, then the client id; for each, a name before the default.

    \b
    Examples:
      millstream quota list
      millstream quota list --user alice --json
    """
    from millstream.admin.quotas import UNITS

    found = _admin(bootstrap, timeout, settings).quotas(_entity(user, client_id, ip))
    if json:
        print_json([{"entity": dict(row.entity), "quotas": dict(row.values)} for row in found])
    elif not found:
        note("no quotas: every client may use what it wants")
    else:
        print_table(
            ("entity", "quota", "value", "unit"),
            [(str(row), key, f"{value:g}" if value < 1e6 else f"{value:.0f}", UNITS.get(key, "")) for row in found
             for key, value in sorted(row.values.items())],
        )  # fmt: skip


@app.command("set")
def set_quota(
    quotas: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=VALUE...",
            help=f"Keys: {_KEYS}. Byte rates may have a unit: 10MB.",
            show_default=False,
        ),
    ],
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check the quotas.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Set quotas of a user, a client id, both, or an address. They apply at once, on each broker.

    A client above its quota is not refused: its responses have a throttle
    time, and the broker does not read its connection for that time.

    \b
    Examples:
      millstream quota set producer_byte_rate=10MB consumer_byte_rate=20MB --user alice
      millstream quota set producer_byte_rate=1MB --user '<default>' --client-id '<default>'
      millstream quota set request_percentage=50 --client-id batch-job
      millstream quota set controller_mutation_rate=5 --user '<default>'
      millstream quota set connection_creation_rate=20 --ip '<default>'
    """
    from millstream.admin.quotas import read_value

    entity = _named(_entity(user, client_id, ip))
    changes = {key: read_value(key, text) for key, text in assignments(quotas, "quota").items()}
    _admin(bootstrap, timeout, settings).alter(entity, changes, validate_only=dry_run)
    note(f"{'would set' if dry_run else 'set'} {', '.join(f'{key}={value:g}' for key, value in changes.items())}")


@app.command("remove")
def remove_quota(
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY...]", help="Quotas to remove. Without keys: all of the entity."),
    ] = None,
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Remove quotas of a user, a client id, both, or an address.

    \b
    Examples:
      millstream quota remove producer_byte_rate --user alice
      millstream quota remove --user alice --client-id app
    """
    entity = _named(_entity(user, client_id, ip))
    removed = _admin(bootstrap, timeout, settings).remove(entity, keys or ())
    note(f"removed {', '.join(removed)}")


def _admin(bootstrap: str, timeout: float, settings: list[str] | None) -> "QuotaAdmin":
    from millstream.admin.quotas import QuotaAdmin

    return QuotaAdmin(open_cluster(bootstrap, timeout, settings))


def _entity(user: str | None, client_id: str | None, ip: str | None) -> "Entity":
    from millstream.admin.quotas import make_entity

    if ip is not None and (user is not None or client_id is not None):
        raise CommandFailedError("--ip cannot be combined with --user or --client-id", exit_codes.USAGE)
    return make_entity(user, client_id, ip)


def _named(entity: "Entity") -> "Entity":
    if not entity:
        raise CommandFailedError(
            "name the entity: --user NAME, --client-id ID, both, or --ip ADDRESS", exit_codes.USAGE
        )
    return entity
