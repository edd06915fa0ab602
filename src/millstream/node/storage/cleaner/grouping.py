"""Which segments are copied into one: neighbours that together are no larger than a segment may be.

Without this, each pass would leave as many segments as it found, and smaller ones each time.
"""

from collections.abc import Callable

from millstream.node.storage.cleaner.plan import Plan, Source
from millstream.node.storage.file_names import INDEX_SUFFIX, TIME_INDEX_SUFFIX
from millstream.node.storage.index.offset_index import MAX_RELATIVE_OFFSET


def group_sources(plan: Plan, end_offset: int) -> list[list[Source]]:
    """Groups of the sources that begin before `end_offset`, by the sizes they have now; reads sizes from the disk."""
    groups: list[list[Source]] = []
    used = (0, 0, 0)
    for source in plan.sources:
        if source.base_offset >= end_offset:
            break
        sizes = (source.size, _size(plan, source, INDEX_SUFFIX), _size(plan, source, TIME_INDEX_SUFFIX))
        together = (used[0] + sizes[0], used[1] + sizes[1], used[2] + sizes[2])
        limits = (plan.segment_bytes, plan.segment_index_bytes, plan.segment_index_bytes)
        fits = all(map(_not_above, together, limits))
        if groups and fits and source.end_offset - 1 - groups[-1][0].base_offset <= MAX_RELATIVE_OFFSET:
            groups[-1].append(source)
            used = together
        else:
            groups.append([source])
            used = sizes
    return groups


def _size(plan: Plan, source: Source, suffix: str) -> int:
    path = source.segment.path(suffix)
    return plan.disk.file_size(path) if plan.disk.exists(path) else 0


_not_above: Callable[[int, int], bool] = int.__le__
