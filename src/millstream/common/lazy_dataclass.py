"""`dataclass` as in the standard library, with its methods written on first use: a start of a node makes 230 of them.

The standard library writes the source of `__init__`, `__repr__`, `__eq__`, `__hash__` and more for each class, and
compiles it when the class is made. That was a third of the imports of a node, and most of these methods are never
called. Here a method is a stub until its first call. Then the standard library writes it, for a class with the same
fields, and it takes the place of the stub. From then on nothing is different.

Types are checked as for `dataclasses.dataclass`. Until an object was made, `inspect.signature` of the class is
`(*arguments, **named)`: public classes, which others inspect, use the standard library. So do compiled modules
(`compilation`), which know its decorator only. What is not covered here (a dataclass as base, `order`, InitVar) is
made by the standard library at once.
"""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, slots=False, kw_only=False, eq=True, order=False, repr=True, init=True):
        """A dataclass. The options are those of `dataclasses.dataclass`."""

        def make(cls):
            options = {"frozen": frozen, "slots": slots, "kw_only": kw_only, "eq": eq, "repr": repr, "init": init}
            if order or not init or not _is_plain(cls):
                return dataclasses.dataclass(cls, order=order, **options)
            return _Maker(cls, options).made

        return make if cls is None else make(cls)


def _is_plain(cls: type) -> bool:
    own = cls.__dict__
    return (
        not any(dataclasses.is_dataclass(base) for base in cls.__mro__[1:])
        and not any(name in own for name in ("__init__", "__setattr__", "__delattr__", "__hash__"))
        and not any(isinstance(each, dataclasses.InitVar) for each in own.get("__annotations__", {}).values())
    )


class _Maker:
    """Makes one class, and writes its methods when they are called."""

    def __init__(self, cls: type, options: dict[str, Any]) -> None:
        self._options = options
        if not cls.__doc__:
            cls.__doc__ = cls.__name__  # the standard library would put the signature here, which it must compute
        missing = [name for name in ("init", "repr", "eq") if options[name] and f"__{name}__" not in cls.__dict__]
        frozen, eq = options["frozen"], options["eq"]
        self.made: Any = dataclasses.dataclass(
            cls, init=False, repr=False, eq=False, slots=options["slots"], kw_only=options["kw_only"]
        )
        for name in missing:
            setattr(self.made, f"__{name}__", self._stub(f"__{name}__"))
        parameters = self.made.__dataclass_params__
        for name in ("init", "repr", "eq", "frozen"):
            setattr(parameters, name, options[name])
        if eq:
            hashing: Any = self._stub("__hash__") if frozen else None
            self.made.__hash__ = hashing
        if frozen:
            self._freeze()

    def _stub(self, name: str) -> Callable[..., Any]:
        def stub(self_: Any, /, *arguments: Any, **named: Any) -> Any:
            return self._written(name)(self_, *arguments, **named)

        stub.__name__ = name
        stub.__qualname__ = f"{self.made.__qualname__}.{name}"
        return stub

    def _written(self, name: str) -> Callable[..., Any]:
        """The method, from a class of the standard library with the same fields. It replaces the stub."""
        made = self.made
        namespace: dict[str, Any] = {"__doc__": made.__doc__}
        if hasattr(made, "__post_init__"):
            namespace["__post_init__"] = made.__post_init__
        twin = dataclasses.make_dataclass(
            made.__name__,
            [(each.name, each.type, _copy(each)) for each in dataclasses.fields(made)],
            namespace=namespace,
            init=name == "__init__",
            repr=name == "__repr__",
            eq=name in ("__eq__", "__hash__"),
            unsafe_hash=name == "__hash__",
            frozen=self._options["frozen"] and name == "__init__",
        )
        method: Callable[..., Any] = twin.__dict__[name]
        method.__qualname__ = f"{made.__qualname__}.{name}"
        method.__module__ = made.__module__
        setattr(made, name, method)
        return method

    def _freeze(self) -> None:
        made = self.made
        names = frozenset(made.__dataclass_fields__)

        def refuse_set(self_: Any, name: str, value: object) -> None:
            if type(self_) is made or name in names:
                raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
            super(made, self_).__setattr__(name, value)

        def refuse_delete(self_: Any, name: str) -> None:
            if type(self_) is made or name in names:
                raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
            super(made, self_).__delattr__(name)

        made.__setattr__ = refuse_set
        made.__delattr__ = refuse_delete
        if self._options["slots"]:  # without them, pickle and copy set attributes
            made.__getstate__ = _state
            made.__setstate__ = _set_state


def _copy(field: "dataclasses.Field[Any]") -> Any:
    """A field belongs to one class."""
    return dataclasses.field(
        default=field.default,
        default_factory=field.default_factory,
        init=field.init,
        repr=field.repr,
        hash=field.hash,
        compare=field.compare,
        kw_only=field.kw_only,
    )


def _state(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for each, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)
