"""User and password from a line of Java's login configuration, as `sasl.jaas.config` has it."""

import re

from millstream.raw_client.errors import SetupError

_LINE = re.compile(
    r"\s*(?P<module>[\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(?P<options>.*?);?\s*\Z", re.S
)
_OPTION = re.compile(r"""([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""")
_EXAMPLE = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="…" password="…";'


def credentials_of(line: str) -> tuple[str, str]:
    """User and password; the module must be one of those that have them. The line itself is secret: never repeated."""
    found = _LINE.match(line)
    if found is None:
        raise SetupError(f"sasl.jaas.config is not a login configuration: write {_EXAMPLE}")
    module = found["module"].rsplit(".", 1)[-1]
    if module not in ("PlainLoginModule", "ScramLoginModule"):
        raise SetupError(f"sasl.jaas.config: {module} does not work here; PlainLoginModule and ScramLoginModule do")
    options = {
        name: re.sub(r"\\(.)", r"\1", double or single) or bare
        for name, double, single, bare in _OPTION.findall(found["options"])
    }
    missing = [name for name in ("username", "password") if name not in options]
    if missing:
        raise SetupError(f"sasl.jaas.config has no {' and no '.join(missing)}: write {_EXAMPLE}")
    return options["username"], options["password"]
