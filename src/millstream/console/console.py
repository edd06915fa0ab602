"""What all pages share: the cluster, the registry and the watcher; the list of pages; errors shown to users."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlencode

from millstream.console.live.watcher import Watcher
from millstream.raw_client import Cluster
from millstream.registry.registry import Registry

_WORKERS = 32


@dataclass(frozen=True, slots=True)
class Console:
    cluster: Cluster
    registry: Registry
    watcher: Watcher
    workers: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(_WORKERS, "console-work"))
    """Requests of users run here, so that a request to an unreachable cluster does not block other users."""

    def close(self) -> None:
        self.watcher.close()
        self.workers.shutdown(wait=False, cancel_futures=True)


_console: Console | None = None


def current_console() -> Console:
    assert _console is not None, "no page is served before there is a console"
    return _console


def set_console(console: Console | None) -> None:
    global _console
    _console = console


class UserError(Exception):
    """An error to show to the user: the reason and the next step."""


BASE = "/console"


class Entry(NamedTuple):
    path: str
    title: str
    icon: str
    key: str


ENTRIES = (
    Entry("/", "Overview", "monitor_heart", "o"),
    Entry("/topics", "Topics", "view_list", "t"),
    Entry("/messages", "Messages", "mail_outline", "m"),
    Entry("/sql", "SQL", "terminal", "x"),
    Entry("/groups", "Groups", "group_work", "r"),
    Entry("/queues", "Queues", "inbox", "q"),
    Entry("/schemas", "Schemas", "schema", "s"),
    Entry("/pipelines", "Pipelines", "account_tree", "p"),
    Entry("/quotas", "Quotas", "speed", "u"),
    Entry("/access", "Access", "lock_person", "a"),
    Entry("/clients", "Clients", "devices", "l"),
    Entry("/cluster", "Cluster", "hub", "c"),
    Entry("/mirrors", "Mirrors", "sync_alt", "i"),
    Entry("/connect", "Connect", "cable", "n"),
)


def href(path: str, **query: str) -> str:
    """The address of a page within the console of a cluster, for links in tables, which add the rest."""
    return path + (f"?{urlencode(query)}" if query else "")
