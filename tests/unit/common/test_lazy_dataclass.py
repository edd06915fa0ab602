"""A lazy dataclass does what one of the standard library does, before and after its methods were written."""

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from millstream.common import lazy_dataclass

_OPTIONS = [
    {"frozen": frozen, "slots": slots, "kw_only": kw_only, "eq": eq}
    for frozen in (False, True)
    for slots in (False, True)
    for kw_only in (False, True)
    for eq in (False, True)
]


def _pair(options: dict[str, bool]) -> tuple[Any, Any]:
    """The same class, lazy and of the standard library."""

    def make(decorator: Callable[..., Any]) -> Any:
        class Value:
            first: int
            second: str = "default"
            third: list[int] = dataclasses.field(default_factory=list, compare=False, repr=False)

            def doubled(self) -> int:
                return self.first * 2

        return decorator(**options)(Value)

    return make(lazy_dataclass.dataclass), make(dataclasses.dataclass)


@pytest.mark.parametrize(
    "options", _OPTIONS, ids=lambda each: "-".join(name for name, on in each.items() if on) or "none"
)
class TestSameAsTheStandardLibrary:
    def test_values_their_text_and_their_fields(self, options: dict[str, bool]) -> None:
        for cls in _pair(options):
            made = cls(first=1, third=[5])
            assert (made.first, made.second, made.third, made.doubled()) == (1, "default", [5], 2)
            assert repr(made).endswith("Value(first=1, second='default')")
            assert cls(first=1).third == [] and cls(first=1).third is not cls(first=1).third
            assert [each.name for each in dataclasses.fields(cls)] == ["first", "second", "third"]
            assert dataclasses.replace(made, second="other").second == "other"
            assert dataclasses.asdict(made) == {"first": 1, "second": "default", "third": [5]}
            assert hasattr(made, "__dict__") is not options["slots"]
            assert cls.__match_args__ == (() if options["kw_only"] else ("first", "second", "third"))

    def test_equality_and_hash_are_those_of_dataclasses(self, options: dict[str, bool]) -> None:
        lazy, standard = _pair(options)
        for cls in (lazy, standard):
            equal = cls(first=1, third=[1]) == cls(first=1, third=[2])
            assert equal is options["eq"]
            assert cls(first=1) != cls(first=2) and cls(first=1) != "1"
        assert lazy(first=1) != standard(first=1)
        for cls in (lazy, standard):
            if options["eq"] and not options["frozen"]:
                with pytest.raises(TypeError, match="unhashable"):
                    hash(cls(first=1))
            elif options["eq"]:
                assert hash(cls(first=1)) == hash(cls(first=1)) != hash(cls(first=2))
        if options["eq"] and options["frozen"]:
            assert hash(lazy(first=1)) == hash(standard(first=1))

    def test_assignments_are_those_of_dataclasses(self, options: dict[str, bool]) -> None:
        for cls in _pair(options):
            made = cls(first=1)
            if options["frozen"]:
                with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'first'"):
                    made.first = 2
                with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'first'"):
                    del made.first
            else:
                made.first = 2
                assert made.first == 2
            assert copy.copy(cls(first=3)).first == 3

    def test_wrong_arguments_raise_the_same_errors(self, options: dict[str, bool]) -> None:
        messages = []
        for cls in _pair(options):
            with pytest.raises(TypeError) as missing:
                cls()
            with pytest.raises(TypeError) as unknown:
                cls(first=1, fourth=2)
            messages.append((str(missing.value), str(unknown.value)))
        assert messages[0] == messages[1]


@lazy_dataclass.dataclass(frozen=True, slots=True)
class Stored:
    name: str
    number: int = 3


def test_a_frozen_object_is_pickled() -> None:
    assert pickle.loads(pickle.dumps(Stored("a", 4))) == Stored("a", 4)
    assert copy.deepcopy(Stored("a")) == Stored("a")


def test_a_method_is_written_on_its_first_call() -> None:
    @lazy_dataclass.dataclass(frozen=True)
    class Value:
        number: int

    stub = Value.__init__
    Value(1)
    written = Value.__init__
    assert written is not stub and written.__code__.co_varnames == ("self", "number")
    Value(2)
    assert Value.__init__ is written
    assert Value.__eq__.__code__.co_varnames[1:] != ("other",)  # not yet
    assert Value(1) == Value(1)
    assert Value.__eq__.__code__.co_varnames == ("self", "other")


def test_methods_of_the_class_are_not_replaced() -> None:
    @lazy_dataclass.dataclass(slots=True)
    class Value:
        number: int

        def __post_init__(self) -> None:
            self.number += 1

        def __repr__(self) -> str:
            return f"<{self.number}>"

    assert repr(Value(1)) == "<2>"


def test_subclasses_that_are_dataclasses_or_not() -> None:
    @lazy_dataclass.dataclass(frozen=True)
    class Base:
        number: int

    class Plain(Base):
        def __init__(self, number: int, more: str) -> None:
            super().__init__(number)
            object.__setattr__(self, "more", more)

    @lazy_dataclass.dataclass(frozen=True)
    class Longer(Base):
        name: str = "n"

    made = Plain(1, "m")
    assert made.number == 1
    made.extra = 5  # type: ignore[attr-defined]  # as in the standard library: it is no field
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.number = 2  # type: ignore[misc]
    assert Longer(1, "x") == Longer(1, "x") != Longer(1)
    with pytest.raises(TypeError, match="cannot inherit non-frozen dataclass from a frozen one"):

        @lazy_dataclass.dataclass
        class Thawed(Base):  # type: ignore[misc]
            pass


def test_an_ordered_dataclass_compares() -> None:
    @lazy_dataclass.dataclass(frozen=True, order=True)
    class Value:
        number: int

    assert Value(1) < Value(2)


def test_a_generic_dataclass_is_subscripted() -> None:
    from typing import Generic, TypeVar

    Item = TypeVar("Item")

    @lazy_dataclass.dataclass(frozen=True, slots=True)
    class Box(Generic[Item]):
        item: Item

    assert Box[int](1) == Box(1)
