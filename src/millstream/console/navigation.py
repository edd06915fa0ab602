"""The pages in the order they are shown, with the letter that follows `g`."""

from typing import NamedTuple

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
    Entry("/groups", "Groups", "group_work", "r"),
    Entry("/queues", "Queues", "inbox", "q"),
    Entry("/schemas", "Schemas", "schema", "s"),
    Entry("/pipelines", "Pipelines", "account_tree", "p"),
    Entry("/cluster", "Cluster", "hub", "c"),
)
