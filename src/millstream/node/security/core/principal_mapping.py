"""`ssl.principal.mapping.rules`: from the name in a client certificate to the name of a principal.

The rules are Kafka's; patterns are matched by RE2 (docs/adr/0009), so look-ahead and back-references in a pattern are
refused. A pattern must match the whole name. The first rule that matches decides; without one the client is refused.
"""

import re

import re2

from millstream.common.lazy_dataclass import dataclass

_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|\n|$)")
_REFERENCE = re.compile(r"\\(.)|\$(\d)")


class MappingError(ValueError):
    """Rules that are not valid, or a name to which no rule applies."""


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: "re2._Regexp[str] | None"
    """None for DEFAULT."""
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        groups = [match.group(0), *match.groups()]

        def expand(found: re.Match[str]) -> str:
            if found[1] is not None:
                return found[1]
            number = int(found[2])
            return (groups[number] or "") if number < len(groups) else found[0]

        result = _REFERENCE.sub(expand, self.replacement)
        return {"L": result.lower(), "U": result.upper()}.get(self.case, result)


class PrincipalMapping:
    def __init__(self, rules: str) -> None:
        """Raises MappingError with the rule that is not valid."""
        self._rules: list[_Rule] = []
        position = 0
        text = rules.strip()
        while position < len(text):
            found = _RULE.match(text, position)
            if found is None:
                raise MappingError(
                    f"{text[position:]!r} is not a rule; write DEFAULT or RULE:pattern/replacement/, with L or U at "
                    "the end for lower or upper case"
                )
            position = found.end()
            self._rules.append(_rule(found))

    def name(self, distinguished_name: str) -> str:
        """The name of the principal; MappingError if no rule applies."""
        if not self._rules:
            return distinguished_name
        for rule in self._rules:
            result = rule.apply(distinguished_name)
            if result is not None:
                return result
        raise MappingError(f"no rule of ssl.principal.mapping.rules applies to {distinguished_name!r}")


def _rule(found: re.Match[str]) -> _Rule:
    if found[1]:
        return _Rule(None)
    options = re2.Options()
    options.log_errors = False
    try:
        pattern = re2.compile(found[2], options=options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        shown = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise MappingError(f"the pattern {found[2]!r} is not valid: {shown}") from None
    return _Rule(pattern, found[3], found[4])
