"""`millstream group`: consumer groups, of the classic protocol and of KIP-848."""

from typing import TYPE_CHECKING

from millstream.cli.group_admin import ConsumerGroups
from millstream.cli.groups.commands import Kind, make_app

if TYPE_CHECKING:
    from millstream.cli.group_admin import Groups
    from millstream.client import Client


def _open(client: "Client") -> "Groups":
    return ConsumerGroups(client)


app = make_app(Kind("group", "consumer group", _open, "committed"))
