"""Real disks that fail when a test says so: a small library that the node's process is started with (LD_PRELOAD)."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

_SOURCE = Path(__file__).with_suffix(".c")
WRITE, TORN, SYNC, READ, SLOW = "write", "torn", "sync", "read", "slow"


def can_be_built() -> bool:
    return shutil.which("gcc") is not None


class FailingDisks:
    """`directory` is where the library is built."""

    def __init__(self, directory: Path) -> None:
        self._library = directory.resolve() / "failing_disk.so"
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-O1", "-o", str(self._library), str(_SOURCE), "-ldl"],
            check=True,
            capture_output=True,
        )

    def environment(self, *data_dirs: Path) -> Mapping[str, str]:
        """What a process needs in its environment, so that these directories can fail."""
        return {"LD_PRELOAD": str(self._library), "FAILING_DISKS": ":".join(str(path.resolve()) for path in data_dirs)}

    def fail(self, data_dir: Path, *how: str) -> None:
        """From now on operations on the files in there fail; `how` says which."""
        control = _control(data_dir)
        fresh = control.with_suffix(".fresh")
        fresh.write_text(" ".join(how))
        fresh.rename(control)

    def heal(self, data_dir: Path) -> None:
        _control(data_dir).unlink(missing_ok=True)


def _control(data_dir: Path) -> Path:
    resolved = data_dir.resolve()
    return resolved.with_name(f"{resolved.name}.failing")
