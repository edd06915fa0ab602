"""Where things are kept that can be made again: a directory of the user's, and files that are never half there."""

import os
import tempfile
from pathlib import Path


def cache_directory() -> Path:
    """`$MILLSTREAM_CACHE`, else `millstream` in `$XDG_CACHE_HOME` or `~/.cache`, else in the temporary directory."""
    given = os.environ.get("MILLSTREAM_CACHE")
    base = Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "millstream"
    try:
        base.mkdir(parents=True, exist_ok=True)
    except OSError:
        if given:
            raise
        # Containers often run without a home; a directory of this user in /tmp serves as well.
        base = Path(tempfile.gettempdir()) / f"millstream-cache-{os.getuid()}"
        base.mkdir(mode=0o700, exist_ok=True)
    return base


def write_atomically(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """The file has this content or what it had before, whoever else writes it at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
