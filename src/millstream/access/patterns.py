"""Name patterns in rules: a literal name, or one with `*` for any characters. Case-sensitive; linear time."""

from collections.abc import Iterable


def matches(pattern: str, name: str) -> bool:
    """Whether the whole name matches."""
    first, *rest = pattern.split("*")
    if not rest:
        return pattern == name
    if not name.startswith(first):
        return False
    at = len(first)
    *middle, last = rest
    for part in middle:
        found = name.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return len(name) - at >= len(last) and name.endswith(last)


def any_matches(patterns: Iterable[str], name: str) -> bool:
    return any(matches(pattern, name) for pattern in patterns)
