"""`millstream quota`: list, set and remove quotas of users, client ids and addresses."""

from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli import exit_codes
from millstream.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    ClientSettings,
    Json,
    Timeout,
    assignments,
    open_cluster,
)
from millstream.cli.terminal import CommandFailedError, note, print_json, print_table
from millstream.common.close_match import did_you_mean
from millstream.common.quantities import parse_size

if TYPE_CHECKING:
    from millstream.admin.quotas import Entity, QuotaAdmin

app = typer.Typer(
    help="Limit what users, client ids and addresses may use; list and remove such quotas.", no_args_is_help=True
)

DEFAULT_NAME = "<default>"
_UNITS = {
    "producer_byte_rate": "bytes/s written",
    "consumer_byte_rate": "bytes/s read",
    "request_percentage": "% of one core",
    "controller_mutation_rate": "partitions/s created or deleted",
    "connection_creation_rate": "connections/s",
}
_SIZES = ("producer_byte_rate", "consumer_byte_rate")

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
    timeout: Timeout = DEFAULT_TIMEOUT_S,
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
    found = _admin(bootstrap, timeout, settings).quotas(_entity(user, client_id, ip))
    if json:
        print_json([{"entity": dict(row.entity), "quotas": dict(row.values)} for row in found])
    elif not found:
        note("no quotas: every client may use what it wants")
    else:
        print_table(
            ("entity", "quota", "value", "unit"),
            [(str(row), key, f"{value:g}" if value < 1e6 else f"{value:.0f}", _UNITS.get(key, "")) for row in found
             for key, value in sorted(row.values.items())],
        )  # fmt: skip


@app.command("set")
def set_quota(
    quotas: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=VALUE...",
            help=f"Keys: {', '.join(_UNITS)}. Byte rates may have a unit: 10MB.",
            show_default=False,
        ),
    ],
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check the quotas.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
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
    entity = _named(_entity(user, client_id, ip))
    changes = {key: _value(key, text) for key, text in assignments(quotas, "quota").items()}
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
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    settings: ClientSettings = None,
) -> None:
    """Remove quotas of a user, a client id, both, or an address.

    \b
    Examples:
      millstream quota remove producer_byte_rate --user alice
      millstream quota remove --user alice --client-id app
    """
    entity = _named(_entity(user, client_id, ip))
    for key in keys or ():
        _check_key(key)
    admin = _admin(bootstrap, timeout, settings)
    present = [row.values for row in admin.quotas(entity) if dict(row.entity) == dict(entity)]
    if not present:
        raise CommandFailedError("this entity has no quotas: `millstream quota list` shows those that exist")
    missing = [key for key in keys or () if key not in present[0]]
    if missing:
        raise CommandFailedError(f"this entity has no quota {missing[0]}; it has {', '.join(present[0])}")
    removed = list(keys or present[0])
    admin.alter(entity, dict.fromkeys(removed))
    note(f"removed {', '.join(removed)}")


def _admin(bootstrap: str, timeout: float, settings: list[str] | None) -> "QuotaAdmin":
    from millstream.admin.quotas import QuotaAdmin

    return QuotaAdmin(open_cluster(bootstrap, timeout, settings))


def _entity(user: str | None, client_id: str | None, ip: str | None) -> "Entity":
    if ip is not None and (user is not None or client_id is not None):
        raise CommandFailedError("--ip cannot be combined with --user or --client-id", exit_codes.USAGE)
    given = {"user": user, "client-id": client_id, "ip": ip}
    return {kind: None if name == DEFAULT_NAME else name for kind, name in given.items() if name is not None}


def _named(entity: "Entity") -> "Entity":
    if not entity:
        raise CommandFailedError(
            "name the entity: --user NAME, --client-id ID, both, or --ip ADDRESS", exit_codes.USAGE
        )
    return entity


def _check_key(key: str) -> None:
    if key not in _UNITS:
        hint = did_you_mean(key, _UNITS, otherwise=f"there are {', '.join(_UNITS)}")
        raise CommandFailedError(f"{key} is not a quota; {hint}", exit_codes.USAGE)


def _value(key: str, text: str) -> float:
    _check_key(key)
    try:
        return float(parse_size(text)) if key in _SIZES else float(text)
    except ValueError:
        example = "10MB" if key in _SIZES else "10"
        raise CommandFailedError(
            f"{key}={text}: write a number, for example {key}={example}", exit_codes.USAGE
        ) from None
