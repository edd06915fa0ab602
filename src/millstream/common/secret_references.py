"""References to secrets in values of settings: `${file:/path:key}`, `${env:NAME}`, `${dir:/path:name}`.

They are Kafka's configuration providers, always on, under their usual names:

| reference | value |
|---|---|
| `${file:/path:key}` | the property `key` of a `.properties` file (FileConfigProvider) |
| `${file:/path}` | the whole file without the line break at its end; Millstream only |
| `${env:NAME}` | an environment variable (EnvVarConfigProvider) |
| `${dir:/path:name}` | the whole file `name` in a directory (DirectoryConfigProvider), also as `${directory:…}` |

Other names can be declared as in Kafka: `config.providers=vault` with `config.providers.vault.class`.
Text in `${…}` with any other name stays as it is. Messages have the reference, never the value.
"""

import os
import re
from collections.abc import Callable, Mapping

from millstream.common.properties import PropertiesError, parse_properties

_REFERENCE = re.compile(r"\$\{([^}:]+):(?:([^}:]*):)?([^}]*)\}")
_KINDS = {"FileConfigProvider": "file", "EnvVarConfigProvider": "env", "DirectoryConfigProvider": "dir"}
_USUAL = {"file": "file", "env": "env", "dir": "dir", "directory": "dir"}
_LARGEST_BYTES = 1 << 20

ReadFile = Callable[[str], bytes]


class SecretError(ValueError):
    """A reference that cannot be resolved. The message names the reference and the next step."""


def has_reference(text: str) -> bool:
    return "${" in text


def resolve_all(
    values: Mapping[str, str], environment: Mapping[str, str] | None = None, read: ReadFile | None = None
) -> dict[str, str]:
    """The values with all references replaced. SecretError names the setting."""
    if not any(map(has_reference, values.values())):
        return dict(values)
    providers = _providers(values)
    resolved = {}
    for name, value in values.items():
        try:
            resolved[name] = _resolve(value, providers, environment, read)
        except SecretError as error:
            raise SecretError(f"{name}: {error}") from None
    return resolved


def _providers(values: Mapping[str, str]) -> dict[str, str]:
    """The kind of each provider by its name: the usual ones, and those of `config.providers`."""
    providers = dict(_USUAL)
    for name in filter(None, (part.strip() for part in values.get("config.providers", "").split(","))):
        setting = f"config.providers.{name}.class"
        class_name = values.get(setting, "").strip()
        kind = _KINDS.get(class_name.rsplit(".", 1)[-1])
        if kind is None:
            shown = f"{setting}={class_name}" if class_name else f"{setting} is missing"
            raise SecretError(f"config.providers: {shown}: supported are {', '.join(_KINDS)}")
        providers[name] = kind
    return providers


def _resolve(
    text: str, providers: Mapping[str, str], environment: Mapping[str, str] | None, read: ReadFile | None
) -> str:
    def replaced(found: re.Match[str]) -> str:
        kind = providers.get(found[1].strip())
        if kind is None:
            return found[0]
        return _value(found[0], kind, found[2] or "", found[3], environment, read or _read)

    return _REFERENCE.sub(replaced, text)


def _value(
    reference: str, kind: str, path: str, key: str, environment: Mapping[str, str] | None, read: ReadFile
) -> str:
    if kind == "env":
        found = (os.environ if environment is None else environment).get(key)
        if path or not key:
            raise SecretError(f"{reference}: write ${{env:NAME}}")
        if found is None:
            raise SecretError(f"{reference}: the environment variable {key} is not set: export it before the start")
        return found
    if kind == "dir":
        if not path or not key or "/" in key or key in (".", ".."):
            raise SecretError(f"{reference}: write ${{dir:/path:file name}}")
        return _text(reference, os.path.join(path, key), read).rstrip("\r\n")
    if not path:
        return _text(reference, key, read).rstrip("\r\n")
    try:
        properties = {item.name: item.value for item in parse_properties(_text(reference, path, read), path)}
    except PropertiesError as error:
        raise SecretError(f"{reference}: {error}") from None
    if key not in properties:
        raise SecretError(f"{reference}: {path} has no property {key}: add a line {key}=…")
    return properties[key]


def _text(reference: str, path: str, read: ReadFile) -> str:
    if not path:
        raise SecretError(f"{reference}: write ${{file:/path:key}}, or ${{file:/path}} for a whole file")
    try:
        return read(path).decode()
    except OSError as error:
        raise SecretError(f"{reference}: {path} cannot be read: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise SecretError(f"{reference}: {path} is not text") from None


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        content = file.read(_LARGEST_BYTES + 1)
    if len(content) > _LARGEST_BYTES:
        raise OSError(0, f"it is larger than {_LARGEST_BYTES} bytes")
    return content
