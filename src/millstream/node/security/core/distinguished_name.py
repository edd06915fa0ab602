"""The subject of a certificate as text, as Java writes it: `CN=alice,OU=Data,O=Example` (RFC 2253).

Kafka's principals of TLS clients have this form, so ACLs and mapping rules written for Kafka apply unchanged.
"""

from cryptography import x509

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
    """The most specific part first."""
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
