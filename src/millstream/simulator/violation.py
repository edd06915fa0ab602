"""What an invariant raises."""


class Violation(Exception):
    """Something that must never be."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant
        self.what = what

    def __reduce__(self) -> tuple[type["Violation"], tuple[str, str]]:
        return Violation, (self.invariant, self.what)
