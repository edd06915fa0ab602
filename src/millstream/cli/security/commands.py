"""`millstream security`: make the files of a secured cluster, and find weak settings."""

from pathlib import Path
from typing import Annotated

import typer

from millstream.cli import exit_codes
from millstream.cli.options import Json
from millstream.cli.terminal import CommandFailedError, print_json

app = typer.Typer(help="Make the files of a secured cluster; find weak settings.", no_args_is_help=True)


@app.command()
def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="New directory for the files.", show_default=False)],
    nodes: Annotated[int, typer.Option("--nodes", metavar="N", min=1, max=99, help="Number of nodes.")] = 3,
    hosts: Annotated[
        str | None,
        typer.Option("--hosts", metavar="A,B,C", help="Host names of the nodes. [default: all on this machine]"),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", help="Port for clients; +1 and +2 are used too.")
    ] = 9092,
    user: Annotated[str, typer.Option("--user", metavar="NAME", help="Name of the first administrator.")] = "admin",
    days: Annotated[int, typer.Option("--days", metavar="N", min=1, help="Validity of the nodes' certificates.")] = 365,
    installed: Annotated[
        str | None,
        typer.Option(
            "--installed-at", metavar="PATH", help="Directory of a node's files on its machine. [default: here]"
        ),
    ] = None,
) -> None:
    """Make a certificate authority, certificates, a first administrator and the settings of a secured cluster.

    Clients authenticate with SCRAM-SHA-512 over TLS, nodes by certificates; ACLs and audit are on. The password of the
    administrator is random, and only in DIR/client/client.properties.

    \b
    Examples:
      millstream security init ./secured
      millstream security init ./secured --hosts one.example,two.example,three.example --installed-at /etc/millstream
    """
    from millstream.cli.security.cluster_files import MECHANISM, make_cluster, plan_nodes

    names = [name.strip() for name in hosts.split(",") if name.strip()] if hosts else ["localhost"] * nodes
    if not user.isascii() or not user.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise CommandFailedError(f"--user {user}: use letters, digits, '.', '_' and '-'", exit_codes.USAGE)
    plans = plan_nodes(names, port)
    properties = make_cluster(directory, plans, user, days, installed)
    copy = "" if all(name == "localhost" for name in names) else "  Copy each directory to its machine"
    place = f" as {installed}" if installed else ""
    print(f"Made {len(plans)} nodes, a certificate authority and the user {user} in {directory}.\n\nNext steps:")
    if copy:
        print(f"{copy}{place}: {', '.join(f'{plan.name} to {plan.host}' for plan in plans)}")
    for plan in plans:
        print(f"  millstream serve --no-http --config {installed or directory / plan.name}/server.properties")
    print(
        f"  millstream topic list --command-config {properties}\n"
        f"  millstream gateway --command-config {properties} --pass-through {MECHANISM}\n\n"
        f"The gateway serves the console at http://localhost:8081/console: sign in as {user} with the password in"
        f" {properties}.\n"
        f"Keep {directory / 'ca' / 'ca.key'} offline: it signs the certificates of further nodes."
        f" The certificates of nodes are valid for {days} days."
    )


@app.command()
def check(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Settings file of a node (server.properties).", show_default=False)
    ],
    json: Json = False,
) -> None:
    """List what is weak in the settings of a node. The exit code is 8 if there is something.

    \b
    Examples:
      millstream security check /etc/millstream/server.properties
    """
    from millstream.cli.security.weaknesses import weaknesses
    from millstream.config.loading import load_broker_config
    from millstream.config.setting import ConfigError

    try:
        found = weaknesses(str(file), load_broker_config(file=str(file)))
    except ConfigError as error:
        raise CommandFailedError(error.message, exit_codes.USAGE) from error
    if json:
        print_json({"file": str(file), "weak": found})
    else:
        print("\n".join(f"- {each}" for each in found) or f"{file}: nothing weak was found")
    if found:
        raise typer.Exit(exit_codes.UNWELL)
