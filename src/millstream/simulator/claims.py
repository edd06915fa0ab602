"""Which clients have asked for a transactional id, and when: a producer may be fenced only if another one asked for it.

A request without a response may still be carried out later, so it counts until the end of the run.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Claim:
    """One InitProducerId request."""

    by: str
    answered_at: float | None = None


class Claims:
    def __init__(self) -> None:
        self._by_id: dict[str, list[Claim]] = {}

    def claim(self, transactional_id: str, by: str) -> Claim:
        """A client is about to ask for the id."""
        made = Claim(by)
        self._by_id.setdefault(transactional_id, []).append(made)
        return made

    def may_have_changed(self, transactional_id: str, by: str, since: float) -> bool:
        """Whether a request may have taken the id from the client that has had it since then."""
        return any(
            each.answered_at is None or (each.by != by and each.answered_at >= since)
            for each in self._by_id.get(transactional_id, ())
        )
