"""The assignors a group can choose from, by the names that `group.consumer.assignors` and clients use."""

from collections.abc import Mapping

from millstream.node.groups.core.consumer.assignor import Assignor
from millstream.node.groups.core.consumer.range_assignor import assign_range
from millstream.node.groups.core.consumer.uniform_assignor import assign_uniform

ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
