"""Files of results folders are opened without following a link, also where it comes after the check."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from koderz_tracker.files import open_own


@pytest.mark.parametrize("link", ["run/blobs/text", "run/blobs", "run"])
def test_open_own_follows_no_link(tmp_path: Path, link: str) -> None:
    """Neither the file's own nor that of a folder on the way, up to the folder that is trusted."""
    (tmp_path / "elsewhere" / "blobs").mkdir(parents=True)
    (tmp_path / "elsewhere" / "blobs" / "text").write_text("secret")
    place = tmp_path / link
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(tmp_path / "elsewhere" / link.partition("/")[2])

    with pytest.raises(OSError, match=rf"{place.name} is a link, and koderz follows none") as refused:
        open_own(tmp_path / "run" / "blobs" / "text", 3)
    assert refused.value.errno == errno.ELOOP


def test_open_own_trusts_the_folders_above(tmp_path: Path) -> None:
    (tmp_path / "disk" / "run").mkdir(parents=True)
    (tmp_path / "disk" / "run" / "text").write_text("mine")
    (tmp_path / "results").symlink_to("disk")

    with open_own(tmp_path / "results" / "run" / "text", 2) as file:
        assert file.read() == b"mine"


def test_open_own_refuses_what_is_no_file_and_waits_for_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is no regular file"):
        open_own(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is no regular file"):
        open_own("/dev/zero")
    with pytest.raises(FileNotFoundError):
        open_own(tmp_path / "gone", 2)
