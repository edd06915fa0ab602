"""No pacing of connections within one machine.

Some algorithms of congestion control (BBR) hold bytes back and send them by timers, to keep the queues of a network
short. Between two processes of one machine there is no such queue, and the timers cost more CPU than the bytes. Other
connections keep what the administrator has chosen.
"""

import socket

_PACING = b"bbr"
"""Also the beginning of its later versions."""
_UNPACED = b"reno"
"""In every kernel, and allowed to every process."""
_NAME_BYTES = 16


def leave_pacing_out_within_machine(sock: socket.socket) -> None:
    """For a connected TCP socket."""
    if not hasattr(socket, "TCP_CONGESTION"):
        return
    try:
        if sock.getsockname()[0] == sock.getpeername()[0] and _paces(sock):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _UNPACED)
    except OSError:
        pass  # closed already, or a sandbox refuses the option: the connection works without it


def _paces(sock: socket.socket) -> bool:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _NAME_BYTES).startswith(_PACING)
