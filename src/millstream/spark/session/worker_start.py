"""The program that Spark starts as Python: it asks the worker server for a fork, and lives as long as that (ADR 72).

It is run by its path with `-I -S`, so that it starts in some 20 ms, and imports nothing of Millstream. It passes on its
arguments, environment, directory and standard streams. Without a server it becomes the ordinary Python.
"""

import marshal
import os
import socket
import sys

VARIABLE = "MILLSTREAM_SPARK_WORKERS"
"""The environment variable with the path of the server's socket."""
STARTED = b"\x01"
"""The first byte of the response: there is a fork. The second is its exit code."""


def main() -> int:
    environment = dict(os.environ)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(environment.get(VARIABLE, ""))
        request = marshal.dumps((sys.argv[1:], environment, os.getcwd()))
        streams = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
        connection.sendmsg([len(request).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
        connection.sendall(request)
        started = connection.recv(1) == STARTED
    except OSError:
        started = False
    if not started:
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])  # nosec B606
    # A signal that ends this process ends the fork too: the server sees that the connection is closed.
    try:
        code = connection.recv(1)
    except OSError:
        code = b""
    return code[0] if code else 1


if __name__ == "__main__":
    os._exit(main())
