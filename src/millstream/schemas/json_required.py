"""What JSON Schema says must be there: `required` properties, and values where null is not allowed.

A column of Arrow cannot say it: there, what is missing and what is null is the same. So rows that may lack something
are looked at once more, as parsed JSON.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

Check = Callable[[Any], str | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """Of one value. What is not named here is not checked."""

    required: Mapping[str, bool] = field(default_factory=dict)
    """Properties that must be there, and whether they may be null."""
    properties: Mapping[str, "Rule"] = field(default_factory=dict)
    items: "Rule | None" = None
    """Of the elements of an array, or of the values of a map."""
    items_nullable: bool = True

    @property
    def says_nothing(self) -> bool:
        return not self.required and not self.properties and self.items is None and self.items_nullable


NOTHING = Rule()


def either(one: Rule, two: Rule) -> Rule:
    """What two alternatives have in common."""
    return Rule(
        {name: one.required[name] or two.required[name] for name in one.required if name in two.required},
        _said(
            {
                name: either(one.properties[name], two.properties[name])
                for name in one.properties.keys() & two.properties
            }
        ),
        None if one.items is None or two.items is None else either(one.items, two.items),
        one.items_nullable or two.items_nullable,
    )


def both(one: Rule, two: Rule) -> Rule:
    """What two schemas say of the same value."""
    required = {**one.required, **two.required}
    names = one.properties.keys() | two.properties
    return Rule(
        {name: one.required.get(name, True) and two.required.get(name, True) for name in required},
        {name: both(one.properties.get(name, NOTHING), two.properties.get(name, NOTHING)) for name in sorted(names)},
        one.items if two.items is None else two.items if one.items is None else both(one.items, two.items),
        one.items_nullable and two.items_nullable,
    )


def of_object(required: Mapping[str, bool], properties: Mapping[str, Rule]) -> Rule:
    return Rule(dict(required), _said(properties))


def _said(rules: Mapping[str, Rule]) -> dict[str, Rule]:
    return {name: rule for name, rule in rules.items() if not rule.says_nothing}


def checker(rule: Rule, path: str = "") -> Check:
    """A function from parsed JSON to what is missing, or None. Values of other types are left to who converts them."""
    inner = [(name, checker(each, f"{path}.{name}")) for name, each in rule.properties.items()]
    element = None if rule.items is None else checker(rule.items, f"{path}[]")

    def check(value: Any) -> str | None:
        if isinstance(value, dict):
            for name, nullable in rule.required.items():
                if name not in value:
                    return f"{_shown(path, name)} is missing, and the schema requires it"
                if value[name] is None and not nullable:
                    return f"{_shown(path, name)} is null, which the schema does not allow"
            for name, each in inner:
                if name in value:
                    found = each(value[name])
                    if found is not None:
                        return found
            return check_items(value.values())
        return check_items(value) if isinstance(value, list) else None

    def check_items(values: Any) -> str | None:
        if element is None and rule.items_nullable:
            return None
        for each in values:
            if each is None and not rule.items_nullable:
                return f"{path.lstrip('.') or 'the record'} has a null in it, which the schema does not allow"
            found = None if element is None else element(each)
            if found is not None:
                return found
        return None

    return check


def _shown(path: str, name: str) -> str:
    return f"{path}.{name}".lstrip(".")


def is_certain(rows: pa.Array, rule: Rule) -> bool:
    """Whether the columns alone show that nothing is missing."""
    if pa.types.is_struct(rows.type):
        return _struct_is_certain(rows, rule)
    if pa.types.is_list(rows.type):
        values = rows.flatten()
        return (rule.items_nullable or not values.null_count) and (rule.items is None or is_certain(values, rule.items))
    return rule.says_nothing


def _struct_is_certain(rows: pa.StructArray, rule: Rule) -> bool:
    here = rows.is_valid()
    for name in rule.required:
        place = rows.type.get_field_index(name)
        if place < 0:
            return False
        column = rows.field(place)
        if column.null_count and pc.any(pc.and_(column.is_null(), here)).as_py():
            return False
    for name, inner in rule.properties.items():
        place = rows.type.get_field_index(name)
        if place < 0 or not is_certain(rows.field(place), inner):
            return False
    return rule.items is None and rule.items_nullable
