"""All subjects and, through them, all metrics there are; docs/metrics.md has the same table."""

from millstream.node.metrics.exposition import Family, gauge
from millstream.node.metrics.of_cluster import CLUSTER
from millstream.node.metrics.of_compaction import COMPACTION
from millstream.node.metrics.of_connections import CONNECTIONS
from millstream.node.metrics.of_groups import GROUP_SUBJECT
from millstream.node.metrics.of_partitions import PARTITIONS
from millstream.node.metrics.of_process import PROCESS
from millstream.node.metrics.of_quorum import QUORUM
from millstream.node.metrics.of_replication import REPLICATION
from millstream.node.metrics.of_requests import REQUESTS
from millstream.node.metrics.of_topics import TOPICS
from millstream.node.metrics.subject import Subject

SUBJECTS: tuple[Subject, ...] = (
    PROCESS,
    REQUESTS,
    CONNECTIONS,
    TOPICS,
    PARTITIONS,
    REPLICATION,
    CLUSTER,
    QUORUM,
    GROUP_SUBJECT,
    COMPACTION,
)

SUCCESS = gauge(
    "millstream_scrape_success",
    "1 where a subject could be told of; 0 where not, and the node's log says why.",
    "subject",
)
"""On every page, for each subject of it."""


def families() -> list[Family]:
    return [SUCCESS, *(family for subject in SUBJECTS for family in subject.families)]


def markdown() -> str:
    """The table of docs/metrics.md."""
    lines = []
    for title, found in [("on every page", (SUCCESS,)), *((f"`{each.name}`", each.families) for each in SUBJECTS)]:
        lines += [f"### {title}", "", "| metric | type | labels | what it tells |", "|---|---|---|---|"]
        for family in found:
            labels = ", ".join(f"`{label}`" for label in family.labels)
            lines.append(f"| `{family.name}` | {family.kind} | {labels} | {family.help} |")
        lines.append("")
    return "\n".join(lines)
