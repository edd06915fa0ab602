"""Whether two JSON Schemas say the same in the same words, references followed."""

from typing import Any

from millstream.registry.formats.json_documents import UNDECIDABLE, JsonDocuments
from millstream.registry.formats.json_drafts import Said
from millstream.registry.formats.json_limits import same_json

_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas"})
_SCHEMAS = frozenset(
    {
        "additionalProperties", "items", "contains", "propertyNames", "not", "if", "then", "else",
        "unevaluatedProperties", "unevaluatedItems",
    }
)  # fmt: skip


class Sameness:
    def __init__(self, one: JsonDocuments, two: JsonDocuments) -> None:
        self._one = one
        self._two = two
        self._known: dict[tuple[int, int], bool] = {}
        self._assumed: list[tuple[int, int]] = []
        self._kept: list[Any] = []

    def same(self, one: Any, two: Any) -> bool:
        """Schemas that refer to themselves are the same until they differ."""
        one, two = self._one.followed(one), self._two.followed(two)
        if isinstance(one, bool) or isinstance(two, bool):
            return one is two
        if one.keys() != two.keys() or UNDECIDABLE in one:
            return False
        place = (id(one), id(two))
        if place not in self._known:
            begin = len(self._assumed)
            self._known[place] = True
            self._assumed.append(place)
            self._kept += [one, two]
            if not self._same_rules(one, two):
                for each in self._assumed[begin:]:  # what was found to be the same if these two are
                    del self._known[each]
                del self._assumed[begin:]
                self._known[place] = False
        return self._known[place]

    def _same_rules(self, one: Said, two: Said) -> bool:
        return all(self._same_value(name, value, two[name]) for name, value in one.items())

    def _same_value(self, name: str, one: Any, two: Any) -> bool:
        if name in _SCHEMAS:
            return self.same(one, two)
        if name in _LISTS:
            return len(one) == len(two) and all(self.same(*pair) for pair in zip(one, two, strict=True))
        if name in _MAPS:
            return one.keys() == two.keys() and all(self.same(value, two[key]) for key, value in one.items())
        return same_json(one, two)
