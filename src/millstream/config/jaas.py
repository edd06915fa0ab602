"""The text of `sasl.jaas.config`: one login module with its options, as Java's JAAS writes it.

`CLASS required name="value" … ;`. The parser is strict, because a typing error here may lock all clients out. Its
errors never show values: most of them are passwords.
"""

from collections.abc import Mapping
from dataclasses import field

from millstream.common.lazy_dataclass import dataclass
from millstream.config.setting import ConfigError

_FLAGS = ("required", "requisite", "sufficient", "optional")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_USER = "user_"
_EXAMPLE = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="NAME" password="PASSWORD" '
    'user_NAME="PASSWORD";'
)


@dataclass(frozen=True, slots=True)
class LoginModule:
    """A login module: its class, and its options by name."""

    class_name: str
    options: Mapping[str, str] = field(repr=False)

    @property
    def users(self) -> dict[str, str]:
        """The passwords of the users in options `user_NAME="password"`, by name."""
        return {name.removeprefix(_USER): value for name, value in self.options.items() if name.startswith(_USER)}


def parse_jaas(text: str, *, name: str) -> LoginModule:
    """The login module of a setting; raises ConfigError, which names the setting and never a value."""
    reader = _Reader(text, name)
    class_name = reader.word("the class of a login module")
    flag = reader.word("a control flag")
    if flag.lower() not in _FLAGS:
        raise reader.error(f"the second word must be a control flag ({', '.join(_FLAGS)})")
    options: dict[str, str] = {}
    while not reader.take(";"):
        key = reader.word("an option or a semicolon at the end")
        if not reader.take("="):
            raise reader.error(f'option {key} has no value; write {key}="…"')
        if key in options:
            raise reader.error(f"option {key} is written twice")
        options[key] = reader.value(key)
    reader.end()
    return LoginModule(class_name, options)


class _Reader:
    def __init__(self, text: str, name: str) -> None:
        self._text = text
        self._name = name
        self._at = 0

    def error(self, problem: str) -> ConfigError:
        return ConfigError(f"{self._name} cannot be read: {problem}. An example: {_EXAMPLE}", name=self._name)

    def _skip(self) -> None:
        text = self._text
        while self._at < len(text):
            if text[self._at].isspace():
                self._at += 1
            elif text.startswith("//", self._at):
                end = text.find("\n", self._at)
                self._at = len(text) if end < 0 else end
            elif text.startswith("/*", self._at):
                end = text.find("*/", self._at)
                if end < 0:
                    raise self.error("a comment has no end")
                self._at = end + 2
            else:
                return

    def take(self, sign: str) -> bool:
        self._skip()
        if self._text.startswith(sign, self._at):
            self._at += 1
            return True
        return False

    def word(self, expected: str) -> str:
        self._skip()
        start = self._at
        if start < len(self._text) and self._text[start] in "\"'":
            return self._quoted(expected)
        while self._at < len(self._text) and not self._text[self._at].isspace() and self._text[self._at] not in "=;\"'":
            self._at += 1
        if self._at == start:
            what = "the text ends" if start == len(self._text) else f"unexpected {self._text[start]!r}"
            raise self.error(f"{what}, expected {expected}")
        return self._text[start : self._at]

    def value(self, key: str) -> str:
        return self.word(f"the value of option {key}")

    def _quoted(self, expected: str) -> str:
        quote = self._text[self._at]
        self._at += 1
        result: list[str] = []
        while self._at < len(self._text):
            sign = self._text[self._at]
            self._at += 1
            if sign == quote:
                return "".join(result)
            if sign == "\n":
                break
            if sign == "\\" and self._at < len(self._text):
                escaped = self._text[self._at]
                self._at += 1
                sign = _ESCAPES.get(escaped, escaped)
            result.append(sign)
        raise self.error(f"a quoted text has no end ({expected})")

    def end(self) -> None:
        self._skip()
        if self._at < len(self._text):
            raise self.error("there is text after the semicolon; only one login module is possible")
