"""Which stored schemas are the same as one that is sent, though their texts differ.

Other registries write canonical texts of their own. A schema that came from one of them keeps its id: it is found by
what it says, not by its letters. Parsing every stored schema would take long, so only those are parsed that have the
same words.
"""

import re
from collections.abc import Iterable
from functools import lru_cache

from millstream.registry.errors import RegistryError
from millstream.registry.formats.schema import ParsedSchema
from millstream.registry.parsing import SchemaParser
from millstream.registry.records import Content
from millstream.registry.subjects import Subject

_WORD = re.compile(r"\w+")
_NUMBERED = re.compile(r"(\w+)\s*=\s*(-?\d+)")


@lru_cache(maxsize=20_000)
def _words(type_: str, text: str) -> int:
    """The same for texts that differ in layout alone: of Protobuf the numbered names, of the others all words."""
    if type_ == "PROTOBUF":
        return hash(tuple(sorted(_NUMBERED.findall(text))))
    return hash(frozenset(_WORD.findall(text)))


class Equivalence:
    """One schema that is sent, and the question whether others are the same."""

    def __init__(self, parser: SchemaParser, subject: Subject, parsed: ParsedSchema, content: Content, normalize: bool):
        self._parser = parser
        self._subject = subject
        self._parsed = parsed
        self._content = content
        self._normalize = normalize

    def first(self, contents: Iterable[tuple[int, Content]]) -> int | None:
        """The first of these ids whose content is the same."""
        return next((schema_id for schema_id, content in contents if self.holds(content)), None)

    def holds(self, stored: Content) -> bool:
        mine = self._content
        if stored == mine:
            return True
        if stored._replace(text="") != mine._replace(text=""):
            return False
        # The author's words, not those of the normal form, which may have left some out.
        texts = {mine.text, self._parsed.canonical}
        if _words(stored.type, stored.text) not in {_words(mine.type, text) for text in texts}:
            return False
        try:
            other = self._parser.parse(self._subject, stored.type, stored.text, stored.references)
        except RegistryError:
            return False
        if self._normalize:
            return other.normalized() == self._parsed.normalized()
        return other.canonical == self._parsed.canonical
