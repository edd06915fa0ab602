"""Reads a `server.properties` file and `--set` options into a BrokerConfig.

The file format is Java's `.properties`, as Kafka reads it: comments, escapes, continuation lines; the last of two
properties with the same name is used. Each error is one line with file and line number. Unknown names do not stop a
broker: they are collected for a warning.
"""

from collections.abc import Iterable, Iterator, Sequence

from millstream.common import properties
from millstream.common.properties import Property
from millstream.config.broker_config import BrokerConfig, ConfigSource, UnknownSetting, build_broker_config
from millstream.config.catalog import BROKER_SETTINGS, broker_setting, hint
from millstream.config.setting import ConfigError


def parse_properties(text: str, file_name: str) -> Iterator[Property]:
    """Every name and value of the text in order, including duplicates."""
    try:
        yield from properties.parse_properties(text, file_name)
    except properties.PropertiesError as error:
        raise ConfigError(str(error)) from None


def load_broker_config(
    *, file: str | None = None, overrides: Sequence[str] = (), listen: str | None = None, data_dir: str | None = None
) -> BrokerConfig:
    """The settings of `millstream serve`. `listen` and `data_dir` take precedence over `overrides` (`name=value`), and
    these over the file."""
    properties = list(parse_properties(_read(file), file)) if file is not None else []
    return broker_config_from([*properties, *_overrides(overrides)], listen=listen, data_dir=data_dir)


def broker_config_from(
    properties: Iterable[Property], *, listen: str | None = None, data_dir: str | None = None
) -> BrokerConfig:
    """The same from parsed properties. The last of two properties with the same name is used."""
    written: dict[str, Property] = {}
    warnings: list[str] = []
    for item in properties:
        earlier = written.pop(item.name, None)
        if earlier is not None and _file(earlier) == _file(item):
            warnings.append(f"{item.place}: {item.name} is set again; it replaces the value of {earlier.place}")
        written[item.name] = item
    if listen is not None:
        # The advertised listeners of the file belong to the listeners that are replaced here.
        written.pop("advertised.listeners", None)
        written["listeners"] = Property("listeners", f"PLAINTEXT://{listen}", "--listen")
        written.pop("inter.broker.listener.name", None)
    if data_dir is not None:
        for name in ("log.dir", "log.dirs", "metadata.log.dir"):
            written.pop(name, None)
        written["log.dir"] = Property("log.dir", data_dir, "--data-dir")
    unknown = tuple(
        UnknownSetting(item.name, item.place, hint(item.name, BROKER_SETTINGS))
        for item in written.values()
        if broker_setting(item.name) is None
    )
    known = {name: item for name, item in written.items() if broker_setting(name) is not None}
    _check_each(known)
    layer = {name: item.value for name, item in known.items()}
    try:
        return build_broker_config(
            {ConfigSource.STATIC_BROKER_CONFIG: layer}, unknown=unknown, warnings=tuple(warnings)
        )
    except ConfigError as error:
        place = known[error.name].place if error.name in known else None
        raise (error.at(place) if place else error) from None


def _check_each(written: dict[str, Property]) -> None:
    for item in written.values():
        setting = broker_setting(item.name)
        assert setting is not None
        try:
            setting.parse(item.value)
        except ConfigError as error:
            raise error.at(item.place) from None


def _file(item: Property) -> str:
    return item.place.rpartition(":")[0]


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content.decode("latin-1")  # Java's encoding of .properties files


def _overrides(words: Sequence[str]) -> list[Property]:
    properties = []
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--set {word}: write name=value")
        properties.append(Property(name.strip(), value.strip(), f"--set {name.strip()}"))
    return properties
