"""Subjects and their contexts: `:.team:orders-value` is the subject `orders-value` in the context `.team`.

Each context has ids of its own. A subject without a context is in the default one, whose name is a dot.
"""

from typing import NamedTuple

from millstream.registry.errors import invalid_subject

DEFAULT_CONTEXT = "."
EVERY_CONTEXT = ":*:"
GLOBAL = "__GLOBAL"
"""What Confluent's tools call the level above all contexts when a subject is asked for."""


class Subject(NamedTuple):
    context: str
    name: str

    def __str__(self) -> str:
        return self.name if self.context == DEFAULT_CONTEXT else f":{self.context}:{self.name}"

    @property
    def whole_context(self) -> "Subject":
        """The subject without a name, under which a context keeps its config and mode."""
        return Subject(self.context, "")


def parse_subject(text: str, *, may_be_context: bool = False) -> Subject:
    """What stands in a request or a record; `:.:name` is `name`."""
    subject = split_context(text)
    has_controls = any(ord(character) < 32 or ord(character) == 127 for character in text)
    if has_controls or subject.name in (GLOBAL, "__EMPTY") or not (subject.name or may_be_context):
        raise invalid_subject(text)
    return subject


def split_context(text: str) -> Subject:
    """The context before the second colon, if the text begins with one."""
    if text.startswith(":"):
        context, colon, name = text[1:].partition(":")
        if colon and context.startswith("."):
            return Subject(context, name)
    return Subject(DEFAULT_CONTEXT, text)
