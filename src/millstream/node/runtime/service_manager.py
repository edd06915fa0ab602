"""Messages to the service manager that started this process, as systemd's `Type=notify` wants them (sd_notify(3)).

The event loop sends the pings of the watchdog, so they stop when the loop hangs, and systemd ends the process and
starts it again. The variables are removed from the environment: child processes must not speak for this one.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import MutableMapping

_log = logging.getLogger("millstream.service")
_PINGS_PER_PERIOD = 3
"""Two pings may be late before the watchdog acts."""


class ServiceManager:
    """The service manager. Without one, messages go nowhere."""

    def __init__(self, address: str | None = None, watchdog_s: float | None = None) -> None:
        self._address = address
        self.watchdog_s = watchdog_s
        """The process is ended if no ping arrives for this time; None without a watchdog."""
        self._warned = False

    @classmethod
    def of(cls, environment: MutableMapping[str, str]) -> "ServiceManager":
        """The service manager that these variables name; they are removed."""
        address = environment.pop("NOTIFY_SOCKET", None)
        period = environment.pop("WATCHDOG_USEC", "")
        watched = environment.pop("WATCHDOG_PID", str(os.getpid()))
        if not address or address[0] not in "/@":
            if address:
                _log.warning("service_manager_ignored NOTIFY_SOCKET=%s reason=no path and no abstract name", address)
            return cls()
        is_watched = period.isdigit() and int(period) > 0 and watched == str(os.getpid())
        return cls(address, int(period) / 1_000_000 if is_watched else None)

    @property
    def is_there(self) -> bool:
        return self._address is not None

    @property
    def ping_interval_s(self) -> float | None:
        return None if self.watchdog_s is None else self.watchdog_s / _PINGS_PER_PERIOD

    def ready(self, status: str) -> None:
        self._send("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        self._send("STOPPING=1", "STATUS=stopping: leadership moves to other brokers")

    def status(self, text: str) -> None:
        self._send(f"STATUS={text}")

    def ping(self) -> None:
        self._send("WATCHDOG=1")

    def ping_from(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sends pings for as long as the loop runs."""
        interval_s = self.ping_interval_s
        if interval_s is not None:
            self.ping()
            loop.call_later(interval_s, self.ping_from, loop)

    def _send(self, *lines: str) -> None:
        if self._address is None:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        message = "\n".join(line.replace("\n", " ") for line in lines).encode()
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto(message, address)
        except OSError as error:
            if not self._warned:
                self._warned = True
                _log.warning("service_manager_unreachable address=%s error=%s", self._address, error)


class ChildPings:
    """Whether child processes ping: each of them has this process as its service manager."""

    def __init__(self, watchdog_s: float) -> None:
        self._watchdog_s = watchdog_s
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.bind("")  # the kernel chooses an abstract name
        self._socket.setblocking(False)
        self._seen_s: float | None = None

    def environment(self) -> dict[str, str]:
        """The variables for the child."""
        name = self._socket.getsockname()
        return {"NOTIFY_SOCKET": f"@{name[1:].decode()}", "WATCHDOG_USEC": str(int(self._watchdog_s * 1_000_000))}

    def begin(self) -> None:
        """From now on the child must ping: it is ready."""
        self._seen_s = time.monotonic()

    def forget(self) -> None:
        """The child has ended, and is started again: it must not ping before it is ready."""
        self._seen_s = None

    def are_late(self) -> bool:
        """Reads what has arrived. Whether the last ping is older than the watchdog allows."""
        try:
            while self._socket.recv(4096):
                if self._seen_s is not None:
                    self._seen_s = time.monotonic()
        except BlockingIOError:
            pass
        return self._seen_s is not None and time.monotonic() - self._seen_s > self._watchdog_s
