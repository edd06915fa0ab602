"""Hints for misspelt names: the closest known name, as "did you mean 'x'?"."""

from collections.abc import Iterable
from difflib import get_close_matches

_MAX_LENGTH = 200
"""Longer names are cut: the comparison takes quadratic time."""


def close_match(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known name that is most similar to `name`, without regard to case; None if none is similar enough.

    `cutoff` is the least similarity, from 0 to 1.
    """
    by_lower: dict[str, str] = {}
    for each in known:
        by_lower.setdefault(each.lower(), each)
    found = get_close_matches(name[:_MAX_LENGTH].lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[found[0]] if found else None


def did_you_mean(
    name: str, known: Iterable[str], *, otherwise: str = "", cutoff: float = 0.6, quoted: bool = True
) -> str:
    """The hint with the closest known name, or `otherwise` if no name is similar enough."""
    found = close_match(name, known, cutoff=cutoff)
    if found is None:
        return otherwise
    return f"did you mean {found!r}?" if quoted else f"did you mean {found}?"
