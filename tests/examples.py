"""How many examples hypothesis tries in a test that sets their number itself."""

import os

_QUICK = os.environ.get("MILLSTREAM_EXAMPLES") == "quick"


def examples(number: int) -> int:
    """All of them in `make test-all`; a quarter, and at least 10, in `make test` and `make unit`."""
    return max(number // 4, 10) if _QUICK else number


def stride() -> int:
    """The distance between the places of a sequence that are tried: 1 in `make test-all`, 4 elsewhere."""
    return 4 if _QUICK else 1
