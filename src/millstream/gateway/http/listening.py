"""Where the gateway listens, and which clients that lets in.

Needs none of the gateway's packages: `millstream serve` opens the socket itself, and hands it to the gateway's process.
"""

import ipaddress
import socket

_BACKLOG = 256


class GatewayError(Exception):
    """The gateway cannot start as it is asked to; the text says what to do."""


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_address(text: str) -> tuple[str, int]:
    """`HOST:PORT`; a lone port means loopback, an IPv6 address stands in brackets."""
    host, colon, port = text.rpartition(":")
    if not colon:
        host, port = "", text
    bracketed = host.startswith("[") and host.endswith("]")
    if not (port.isascii() and port.isdecimal()) or int(port) > 65_535 or (":" in host and not bracketed):
        raise GatewayError(f"--http {text}: write HOST:PORT, such as 127.0.0.1:8081; port 0 picks a free one")
    return host.strip("[]") or "127.0.0.1", int(port)


def check_exposure(host: str, *, demands_credentials: bool, insecure: bool) -> None:
    """GatewayError if strangers would be let in without anybody having said so."""
    if not is_loopback(host) and not demands_credentials and not insecure:
        raise GatewayError(
            f"{host} can be reached from other machines: name who may ask with --auth-file FILE, "
            "or say --insecure to let everybody in"
        )


def check_certificate(certificate: str | None, key: str | None) -> None:
    """GatewayError unless both are there and belong together, or neither is given."""
    if certificate is None and key is None:
        return
    if certificate is None or key is None:
        raise GatewayError("--tls-cert and --tls-key go together: give both")
    import ssl

    for option, file in (("--tls-cert", certificate), ("--tls-key", key)):
        try:
            open(file, "rb").close()
        except OSError as error:
            raise GatewayError(f"{option} {file}: {error.strerror}: name a file in PEM format") from error
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise GatewayError(
            f"--tls-cert {certificate} and --tls-key {key} cannot be used together ({reason}): "
            "give a certificate chain and its own private key, both in PEM format and without a password"
        ) from error


def _no_password() -> str:
    raise ValueError("the key has a password")


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen(host: str, port: int) -> socket.socket:
    """Whoever connects from now on waits until somebody accepts. Port 0 picks a free one."""
    try:
        ((family, kind, _, _, address), *_) = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        listener = socket.socket(family, kind)
    except OSError as error:
        raise GatewayError(f"{host}: {error.strerror}: name an address of this machine") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise GatewayError(
            f"cannot listen on {host}:{port}: {error.strerror}: choose another address with --http HOST:PORT"
        ) from error
    return listener
