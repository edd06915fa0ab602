"""From a client certificate to a principal: the name of its subject as text, then `ssl.principal.mapping.rules`.

The text is as Java writes it: `CN=alice,OU=Data,O=Example` (RFC 2253). Kafka's principals of TLS clients have this
form, so ACLs and mapping rules written for Kafka apply unchanged.

The rules are Kafka's; patterns are matched by RE2 (docs/adr/0009), so look-ahead and back-references in a pattern are
refused. A pattern must match the whole name. The first rule that matches decides; without one the client is refused.
"""

import re

import re2
from cryptography import x509

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


_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "2.5.4.9": "STREET",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
"""The attributes with a keyword in RFC 2253. Java writes all others as their number and the encoded value."""
_ESCAPED = frozenset(',=+<>#;"\\')
_LONG_FORM = 0x80


def distinguished_name(name: x509.Name) -> str:
    """The subject of a certificate, the most specific part first."""
    return ",".join("+".join(_attribute(attribute) for attribute in part) for part in reversed(list(name.rdns)))


def _attribute(attribute: x509.NameAttribute[str | bytes]) -> str:
    number = attribute.oid.dotted_string
    keyword = _KEYWORDS.get(number)
    value = attribute.value
    if keyword is None or not isinstance(value, str):
        return f"{keyword or number}=#{_encoded(attribute).hex()}"
    return f"{keyword}={_escaped(value)}"


def _escaped(value: str) -> str:
    begin = len(value) - len(value.lstrip(" \r"))
    end = len(value.rstrip(" \r"))
    parts = []
    for at, character in enumerate(value):
        if character == "\0":
            parts.append("\\00")
        elif character in _ESCAPED or not begin <= at < end:
            parts.append("\\" + character)
        else:
            parts.append(character)
    return "".join(parts)


def _encoded(attribute: x509.NameAttribute[str | bytes]) -> bytes:
    """The value in DER, with the type that it has in the certificate."""
    # A name is a sequence of sets of sequences of the attribute's number and its value.
    data = x509.Name([attribute]).public_bytes()
    for _ in range(3):
        data = data[slice(*_content(data))]
    return data[_content(data)[1] :]


def _content(data: bytes) -> tuple[int, int]:
    """Where the content of the first DER element begins and ends."""
    length, begin = data[1], 2
    if length >= _LONG_FORM:
        begin += length - _LONG_FORM
        length = int.from_bytes(data[2:begin], "big")
    return begin, begin + length
