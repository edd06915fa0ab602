"""Options of the commands that serve HTTP, or have it served beside them."""

from typing import Annotated

import typer

from millstream.cli.http_front import AUTH_VARIABLE, DEFAULT_HTTP

Http = Annotated[
    str | None,
    typer.Option(
        "--http", metavar="HOST:PORT", help=f"Where HTTP is served; port 0 picks a free port. [default: {DEFAULT_HTTP}]"
    ),
]
NoHttp = Annotated[bool, typer.Option("--no-http", help="Serve no HTTP.")]
AuthFile = Annotated[
    str | None,
    typer.Option(
        "--auth-file",
        metavar="FILE",
        help=f"Who may use HTTP: lines 'basic NAME:PASSWORD' or 'bearer TOKEN'; or in ${AUTH_VARIABLE}.",
    ),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Let everybody use HTTP, also at an address that others can reach.")
]
TlsCert = Annotated[
    str | None, typer.Option("--tls-cert", metavar="FILE", help="Serve HTTPS: the certificate chain, PEM.")
]
TlsKey = Annotated[str | None, typer.Option("--tls-key", metavar="FILE", help="Its private key, PEM.")]
