"""Uploads that were not completed: of a directory, and how a copy is cut into parts."""

import asyncio
from pathlib import Path

import pytest

from millstream.node.runtime.object_store import UNLIMITED, open_store
from millstream.node.runtime.s3_uploads import in_parts, open_uploads
from millstream.node.storage.object_store import StoreRates
from millstream.node.tier.sweeping import Sweeper


@pytest.mark.parametrize("sizes", [[], [3], [4], [1, 1, 1, 1, 1], [10, 0, 3], [4, 4, 1]])
def test_parts_have_one_size(sizes: list[int]) -> None:
    blocks = [bytes([number]) * size for number, size in enumerate(sizes)]
    parts = list(in_parts(blocks, 4))
    assert b"".join(parts) == b"".join(blocks)
    assert all(len(part) == 4 for part in parts[:-1]) and all(1 <= len(part) <= 4 for part in parts)


def test_only_s3_has_a_list_of_uploads() -> None:
    assert open_uploads("s3://bucket/prefix") is not None
    assert open_uploads("gs://bucket/prefix") is None


def test_a_directory_is_swept_of_files_that_were_not_completed(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = open_store(
            f"file://{tmp_path}", asyncio.get_running_loop(), StoreRates(lambda: UNLIMITED, lambda: UNLIMITED)
        )
        sweeper = Sweeper(store, "c")
        other = tmp_path / "other" / "x.segment#1"
        left = tmp_path / "c" / "t" / "0" / "left.segment#1"
        for path in (other, left):
            path.parent.mkdir(parents=True)
            path.write_bytes(b"half")
        began_ms = int(left.stat().st_mtime * 1000)
        assert await sweeper.abandoned(began_ms - 1) == []
        (found,) = await sweeper.abandoned(began_ms)
        assert found.name == "c/t/0/left.segment"
        assert [each.name for each in await store.list("c")] == [], "it is no object"
        # A copy with the same name begins again.
        await store.create(found.name, lambda: iter([bytes(store.whole_bytes), b"tail"]), store.whole_bytes + 4, found)
        assert [(each.name, each.size) for each in await store.list("c")] == [(found.name, store.whole_bytes + 4)]
        assert await sweeper.abandoned(1 << 62) == []
        left.write_bytes(b"half")
        await store.abort(await sweeper.abandoned(1 << 62))
        assert not left.exists() and other.exists()
        store.close()

    asyncio.run(scenario())
