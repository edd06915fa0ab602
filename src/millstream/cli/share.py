"""`millstream share`: share groups (KIP-932), the queues on a log."""

from typing import TYPE_CHECKING

from millstream.cli.groups.commands import Kind, make_app

if TYPE_CHECKING:
    from millstream.cli.group_admin import Groups
    from millstream.client import Client


def _open(client: "Client") -> "Groups":
    # The schemas of the wire are read only when somebody asks for share groups.
    from millstream.cli.share_admin import ShareGroups

    return ShareGroups(client)


app = make_app(Kind("share", "share group", _open, "start", begins_with_offsets=False))
