"""`sasl.kerberos.principal.to.local.rules`: from a Kerberos principal to the name of a user.

`DEFAULT` takes the first part of principals of the default realm. `RULE:[n:text](pattern)s/from/to/g/L` applies to
principals of n parts: `$1`, `$2` and the realm `$0` are put into the text, which the pattern must match as a whole;
`s/from/to/` then replaces, and `L` or `U` changes the case. The first rule that applies decides; without one the login
fails. The rules are Kafka's; patterns are matched by RE2 (docs/adr/0009), so look-ahead and back-references are
refused.
"""

import re
from collections.abc import Iterable

import re2

from millstream.common.lazy_dataclass import dataclass

_PRINCIPAL = re.compile(r"([^/@]*)(?:/([^/@]*))?@([^/@]*)")
_RULE = re.compile(r"(DEFAULT)|RULE:\[(\d*):([^\]]*)\](?:\(([^)]*)\))?(?:s/([^/]*)/([^/]*)/(g)?)?/?([LU])?")
_PARAMETER = re.compile(r"\$(\d*)")
_REFERENCE = re.compile(r"\\(.)|\$(\d)")
_CASES = {"L": str.lower, "U": str.upper}


class KerberosNameError(ValueError):
    """Rules that are not valid, or a principal to which no rule applies."""


@dataclass(frozen=True, slots=True)
class KerberosPrincipal:
    """`service/host@REALM` or `user@REALM`."""

    service: str
    host: str | None
    realm: str

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.service,) if self.host is None else (self.service, self.host)


def parse_kerberos_principal(text: str) -> KerberosPrincipal:
    found = _PRINCIPAL.fullmatch(text)
    if found is None or not found[1] or not found[3]:
        raise KerberosNameError(f"{text!r} is not a Kerberos principal: NAME@REALM or SERVICE/HOST@REALM")
    return KerberosPrincipal(found[1], found[2], found[3])


@dataclass(frozen=True, slots=True)
class _Rule:
    parts: int = 0
    """0 for DEFAULT."""
    text: str = ""
    pattern: "re2._Regexp[str] | None" = None
    replaced: "re2._Regexp[str] | None" = None
    replacement: str = ""
    repeats: bool = False
    case: str = ""

    def apply(self, principal: KerberosPrincipal, default_realm: str) -> str | None:
        if not self.parts:
            return principal.service if principal.realm == default_realm else None
        if len(principal.parts) != self.parts:
            return None
        values = (principal.realm, *principal.parts)
        base = _PARAMETER.sub(lambda found: values[int(found[1])], self.text)
        if self.pattern is not None and self.pattern.fullmatch(base) is None:
            return None
        if self.replaced is not None:
            base = self._replace(base, self.replaced)
        if "/" in base or "@" in base:
            raise KerberosNameError(f"a rule makes {base!r} of the principal: a user has no / and no @")
        return _CASES[self.case](base) if self.case else base

    def _replace(self, base: str, replaced: "re2._Regexp[str]") -> str:
        """As Java's `Matcher.replaceAll` and `replaceFirst`."""
        result, position = [], 0
        for match in replaced.finditer(base):
            groups = [match.group(0), *match.groups()]
            result += [base[position : match.start()], _expanded(self.replacement, groups)]
            position = match.end()
            if not self.repeats:
                break
        return "".join((*result, base[position:]))


def _expanded(replacement: str, groups: list[str | None]) -> str:
    def expand(found: re.Match[str]) -> str:
        if found[1] is not None:
            return found[1]
        number = int(found[2])
        return (groups[number] or "") if number < len(groups) else found[0]

    return _REFERENCE.sub(expand, replacement)


class KerberosNames:
    def __init__(self, rules: Iterable[str], default_realm: str) -> None:
        """Raises KerberosNameError with the rule that is not valid."""
        self._rules = [_rule(text.strip()) for text in rules]
        self._default_realm = default_realm

    def user(self, principal: str) -> str:
        """The name of the user; KerberosNameError if no rule applies."""
        parsed = parse_kerberos_principal(principal)
        for rule in self._rules:
            result = rule.apply(parsed, self._default_realm)
            if result:
                return result
        raise KerberosNameError(f"no rule of sasl.kerberos.principal.to.local.rules applies to {principal!r}")


def _rule(text: str) -> _Rule:
    found = _RULE.fullmatch(text)
    if found is None:
        raise KerberosNameError(
            f"{text!r} is not a rule; write DEFAULT or RULE:[n:text](pattern)s/from/to/, with g to replace all and L "
            "or U at the end for lower or upper case"
        )
    if found[1]:
        return _Rule()
    parts = int(found[2] or 0)
    if parts not in (1, 2):
        raise KerberosNameError(f"{text!r}: a principal has 1 or 2 parts")
    for number in _PARAMETER.findall(found[3]):
        if not number or int(number) > parts:
            raise KerberosNameError(f"{text!r}: ${number} is not a part of the principal; use $0 to ${parts}")
    return _Rule(
        parts,
        found[3],
        None if found[4] is None else _pattern(found[4]),
        None if found[5] is None else _pattern(found[5]),
        found[6] or "",
        found[7] is not None,
        found[8] or "",
    )


def _pattern(text: str) -> "re2._Regexp[str]":
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(text, options=options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        shown = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise KerberosNameError(f"the pattern {text!r} is not valid: {shown}") from None
