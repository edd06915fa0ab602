"""How many examples hypothesis tries in a test that sets their number itself."""

import os

_QUICK = os.environ.get("MILLSTREAM_EXAMPLES") == "quick"


def examples(number: int) -> int:
    """All of them in `make test`; a quarter, and at least 10, in `make unit`."""
    return max(number // 4, 10) if _QUICK else number
