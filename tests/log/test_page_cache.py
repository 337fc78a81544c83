"""What the kernel says of a file's pages decides whether a reply is sent from memory or read by a thread."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from clarion.world import RealDisk, page_cache
from clarion.world.disk import RealFile

PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def file(tmp_path: Path) -> RealFile:
    opened = RealDisk().open(str(tmp_path / "log"), create=True)
    assert isinstance(opened, RealFile)
    for page in range(64):  # one by one, else the kernel keeps and drops them together
        opened.write([os.urandom(PAGE)], page * PAGE)
    if not opened.is_cached(64 * PAGE, 0):
        pytest.skip("this kernel does not say what is in memory (cachestat, since Linux 6.5)")
    return opened


def evict(file: RealFile, pages: range) -> None:
    """A page that the kernel has not yet filed away (it does so in batches, for each core) stays at the first try."""
    file.sync()
    for _ in range(100):
        os.posix_fadvise(file.fileno(), pages.start * PAGE, len(pages) * PAGE, os.POSIX_FADV_DONTNEED)
        if not any(page_cache.has(file.fileno(), page * PAGE, PAGE) for page in pages):
            return
        time.sleep(0.01)
    pytest.skip("this file system keeps its pages (tmpfs)")


def test_what_was_just_written_is_in_memory_and_what_is_not_there_is_not(file: RealFile) -> None:
    assert file.is_cached(1, 0)
    assert file.is_cached(PAGE + 2, PAGE - 1)
    assert not file.is_cached(PAGE, 64 * PAGE)
    assert not file.is_cached(65 * PAGE, 0)


@pytest.mark.parametrize(("length", "position"), [(64, 0), (16, 47), (33, 15)])
def test_a_missing_page_at_the_beginning_or_in_the_middle_is_noticed(
    file: RealFile, length: int, position: int
) -> None:
    evict(file, range(16, 48))
    assert file.is_cached(16 * PAGE, 0)
    assert file.is_cached(16 * PAGE, 48 * PAGE)
    assert not file.is_cached(length * PAGE, position * PAGE)


@pytest.mark.parametrize(("length", "position"), [(17, 0), (1, 20)])
def test_a_missing_page_at_the_end_is_noticed_unless_the_look_itself_has_brought_it(
    file: RealFile, length: int, position: int
) -> None:
    """The last byte is looked at, whereupon the kernel begins to read its page: a quick disk has brought it by then."""
    evict(file, range(16, 48))
    if file.is_cached(length * PAGE, position * PAGE):
        assert page_cache.has(file.fileno(), position * PAGE, length * PAGE)
