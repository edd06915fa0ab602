"""`millstream user`: SCRAM users and delegation tokens.

A password is never an argument, because every user of the machine can see arguments. It comes from the terminal, a
file, or stdin.
"""

import getpass
import os
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli import exit_codes
from millstream.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_SECONDS,
    Bootstrap,
    ClientSettings,
    Json,
    Timeout,
    open_cluster,
    parsed_duration,
)
from millstream.cli.terminal import CommandFailedError, note, print_json, print_table

if TYPE_CHECKING:
    from millstream.admin.users import Token, UserAdmin

PASSWORD_VARIABLE = "MILLSTREAM_USER_PASSWORD"
app = typer.Typer(no_args_is_help=True, help="Users that log in by SCRAM, and delegation tokens.")
token_app = typer.Typer(no_args_is_help=True, help="Delegation tokens: short-lived logins without a password.")
app.add_typer(token_app, name="token")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.", show_default=False)]
PasswordFile = Annotated[
    str | None,
    typer.Option("--password-file", metavar="FILE", help="File whose first line is the password; - is stdin."),
]
Mechanisms = Annotated[
    list[str] | None,
    typer.Option("--mechanism", metavar="NAME", help="SCRAM-SHA-256 or SCRAM-SHA-512. Repeatable. Default: both."),
]
Iterations = Annotated[int, typer.Option("--iterations", metavar="N", help="Iterations of the hash, 4096 to 16384.")]
Hmac = Annotated[str, typer.Argument(metavar="HMAC", help="HMAC of the token, as base64.", show_default=False)]


def read_password(user: str, file: str | None, *, confirm: bool) -> str:
    """The password from a file, the environment or the terminal."""
    if file == "-":
        text = sys.stdin.readline()
    elif file is not None:
        try:
            with open(file, encoding="utf-8") as opened:
                text = opened.readline()
        except OSError as error:
            raise CommandFailedError(f"{file}: {(error.strerror or str(error)).lower()}", exit_codes.USAGE) from None
    elif PASSWORD_VARIABLE in os.environ:
        text = os.environ[PASSWORD_VARIABLE]
    elif sys.stdin.isatty():
        text = getpass.getpass(f"Password of {user}: ")
        if confirm and getpass.getpass("Again: ") != text:
            raise CommandFailedError("the passwords differ", exit_codes.USAGE)
    else:
        raise CommandFailedError(
            f"no password: give --password-file FILE (- is stdin), or set {PASSWORD_VARIABLE}", exit_codes.USAGE
        )
    text = text.rstrip("\r\n")
    if not text:
        raise CommandFailedError("the password is empty", exit_codes.USAGE)
    return text


def _open(bootstrap: str, timeout: float, settings: list[str] | None) -> "UserAdmin":
    from millstream.admin.users import UserAdmin

    return UserAdmin(open_cluster(bootstrap, timeout, settings))


def _mechanisms(names: list[str] | None) -> list[str]:
    from millstream.admin.users import MECHANISMS

    wanted = [name.upper() for name in names or MECHANISMS]
    for name in wanted:
        if name not in MECHANISMS:
            raise CommandFailedError(f"--mechanism {name}: give {' or '.join(MECHANISMS)}", exit_codes.USAGE)
    return wanted


@app.command("list")
def list_users(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """List the users that log in by SCRAM, with their mechanisms.

    Users of PLAIN are in the settings of the nodes, and are not shown.

    \b
    Examples:
      millstream user list
      millstream user list --json
    """
    users = _open(bootstrap, timeout, settings).users()
    if json:
        print_json([{"name": user.name, "iterations": user.iterations} for user in users])
    elif not users:
        note("no users")
    else:
        rows = [(user.name, ", ".join(f"{name} ({n})" for name, n in user.iterations.items())) for user in users]
        print_table(("user", "mechanisms (iterations)"), rows)


@app.command()
def add(
    name: Name,
    password_file: PasswordFile = None,
    mechanism: Mechanisms = None,
    iterations: Iterations = 8192,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Add a user that logs in by SCRAM. Fails if the user exists.

    The password is read from the terminal, a file, or the variable
    MILLSTREAM_USER_PASSWORD. The cluster never gets it, only keys made of it.

    \b
    Examples:
      millstream user add alice
      millstream user add alice --password-file alice.txt --mechanism SCRAM-SHA-512
      pass show kafka/alice | millstream user add alice --password-file -
    """
    wanted = _mechanisms(mechanism)
    password = read_password(name, password_file, confirm=True)
    _open(bootstrap, timeout, settings).add(name, password, wanted, iterations)
    note(f"added user {name} ({', '.join(wanted)})")


@app.command()
def password(
    name: Name,
    password_file: PasswordFile = None,
    iterations: Iterations = 8192,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Change the password of a user, for all its mechanisms.

    Open connections are kept until they authenticate again
    (connections.max.reauth.ms).

    \b
    Examples:
      millstream user password alice
      millstream user password alice --password-file new.txt
    """
    new = read_password(name, password_file, confirm=True)
    changed = _open(bootstrap, timeout, settings).change_password(name, new, iterations)
    note(f"changed the password of {name} ({', '.join(changed)})")


@app.command()
def remove(
    name: Name,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Remove a user: it cannot log in any more. Open connections are kept.

    \b
    Examples:
      millstream user remove alice
    """
    removed = _open(bootstrap, timeout, settings).remove(name)
    note(f"removed user {name} ({', '.join(removed)})")


@app.command()
def first(
    name: Name,
    data_dir: Annotated[str, typer.Option("--data-dir", metavar="DIR", help="Data directory of a new node.")],
    password_file: PasswordFile = None,
    mechanism: Mechanisms = None,
    iterations: Iterations = 8192,
) -> None:
    """Add a user to a new cluster before its first start, without a connection.

    Run it on every controller with the same password. The user is in the first
    records of the metadata log, so it can log in at once: as the first
    administrator, or as the user of the nodes among each other.

    \b
    Examples:
      millstream user first admin --data-dir /var/lib/millstream
      millstream user first admin --data-dir data --password-file admin.txt
    """
    write_first_user(
        name, data_dir, read_password(name, password_file, confirm=True), _mechanisms(mechanism), iterations
    )
    note(f"user {name} is in {data_dir} for the first start of the cluster")


def write_first_user(name: str, data_dir: str, text: str, mechanisms: list[str], iterations: int = 8192) -> None:
    """Writes a user for the first start; fails if the directory has a metadata log."""
    from millstream.node.security.core.scram import MAX_ITERATIONS, MIN_ITERATIONS, SCRAM_MECHANISMS
    from millstream.node.security.first_users import make_credential, write_first_users

    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise CommandFailedError(f"--iterations must be {MIN_ITERATIONS} to {MAX_ITERATIONS}", exit_codes.USAGE)
    if is_in_use(data_dir):
        raise CommandFailedError(f"{data_dir} belongs to a cluster already: use `millstream user add {name}`")
    credentials = [make_credential(name, text, SCRAM_MECHANISMS[each], iterations) for each in mechanisms]
    write_first_users(data_dir, credentials)


def is_in_use(data_dir: str) -> bool:
    """Whether the directory has a metadata log."""
    return os.path.isdir(os.path.join(data_dir, "__cluster_metadata-0"))


# Tokens


def _when(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _document(token: "Token") -> dict[str, Any]:
    return {
        "token_id": token.token_id,
        "hmac": token.hmac,
        "owner": token.owner,
        "requester": token.requester,
        "renewers": list(token.renewers),
        "issued_ms": token.issued_ms,
        "expires_ms": token.expires_ms,
        "max_ms": token.max_ms,
    }


@token_app.command("create")
def create_token(
    owner: Annotated[
        str | None, typer.Option("--owner", metavar="PRINCIPAL", help="Owner, if it is not the caller: User:NAME.")
    ] = None,
    renewer: Annotated[
        list[str] | None,
        typer.Option("--renewer", metavar="PRINCIPAL", help="Who else may renew it: User:NAME. Repeatable."),
    ] = None,
    lifetime: Annotated[
        str | None, typer.Option("--max-lifetime", metavar="AGE", help="Longest lifetime, e.g. 12h or 7d.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Create a delegation token, and print it as JSON: it is a secret.

    A client logs in with it by SCRAM: the token id is the user, the HMAC the
    password, and the option tokenauth=true tells that it is a token.

    \b
    Examples:
      millstream user token create -X security.protocol=sasl_ssl ...
      millstream user token create --renewer User:scheduler --max-lifetime 12h
    """
    lifetime_ms = -1 if lifetime is None else parsed_duration("--max-lifetime", lifetime)
    print_json(_document(_open(bootstrap, timeout, settings).create_token(owner, renewer or [], lifetime_ms)))


@token_app.command("list")
def list_tokens(
    owner: Annotated[
        str | None, typer.Option("--owner", metavar="PRINCIPAL", help="Only tokens of this owner or renewer.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """List the delegation tokens that you may see. Only --json shows their HMACs.

    \b
    Examples:
      millstream user token list
      millstream user token list --owner User:alice --json
    """
    tokens = _open(bootstrap, timeout, settings).tokens(owner)
    if json:
        print_json([_document(token) for token in tokens])
    elif not tokens:
        note("no tokens")
    else:
        rows = [
            (token.token_id, token.owner, ", ".join(token.renewers), _when(token.expires_ms), _when(token.max_ms))
            for token in tokens
        ]
        print_table(("token", "owner", "renewers", "expires", "at the latest"), rows)


@token_app.command("renew")
def renew_token(
    hmac: Hmac,
    period: Annotated[
        str | None, typer.Option("--for", metavar="AGE", help="New time until it expires; default of the cluster.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Renew a delegation token, up to its longest lifetime.

    \b
    Examples:
      millstream user token renew HMAC
      millstream user token renew HMAC --for 12h
    """
    period_ms = -1 if period is None else parsed_duration("--for", period)
    print(f"the token expires {_when(_open(bootstrap, timeout, settings).renew_token(hmac, period_ms))}")


@token_app.command("expire")
def expire_token(
    hmac: Hmac,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Remove a delegation token: no client can log in with it any more.

    \b
    Examples:
      millstream user token expire HMAC
    """
    _open(bootstrap, timeout, settings).expire_token(hmac)
    note("the token is removed")
