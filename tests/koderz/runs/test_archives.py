"""Archives of strangers."""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from koderz.errors import KoderzError
from koderz.runs.archives import unpack

MB = 1 << 20


def tarred(path: Path, *members: tarfile.TarInfo, data: bytes = b"x") -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for member in members:
            member.size = len(data) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(data))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def zip_link(path: Path) -> Path:
    info = zipfile.ZipInfo("run/journal.jsonl")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(info, "/etc/passwd")
    return path


def zip_parent(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../evil", "x")
    return path


def zip_bomb(path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("run/journal.jsonl", bytes(3 * MB))
    return path


def broken(path: Path) -> Path:
    path.write_bytes(b"PK\x03\x04 and no more")
    return path


HOSTILE: dict[str, tuple[Callable[[Path], Path], str]] = {
    "absolute": (lambda path: tarred(path, member("/tmp/evil")), "outside"),
    "parent": (lambda path: tarred(path, member("run/../../evil")), "outside"),
    "symlink": (lambda path: tarred(path, member("run", tarfile.SYMTYPE, "/etc")), "link or a device"),
    "hardlink": (lambda path: tarred(path, member("run", tarfile.LNKTYPE, "/etc/passwd")), "link or a device"),
    "device": (lambda path: tarred(path, member("run", tarfile.CHRTYPE)), "link or a device"),
    "fifo": (lambda path: tarred(path, member("run", tarfile.FIFOTYPE)), "link or a device"),
    "twice": (lambda path: tarred(path, member("a"), member("a")), "can't be unpacked"),
    "bomb": (lambda path: tarred(path, member("a"), data=bytes(3 * MB)), "more than 1 MB"),
    "zip link": (zip_link, "link or a device"),
    "zip parent": (zip_parent, "outside"),
    "zip bomb": (zip_bomb, "more than 1 MB"),
    "broken": (broken, "can't be unpacked"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_archive_that_could_do_harm_is_refused(tmp_path: Path, name: str) -> None:
    make, reason = HOSTILE[name]
    archive, target = make(tmp_path / "archive"), tmp_path / "folder" / "target"
    target.mkdir(parents=True)

    with pytest.raises(KoderzError, match=reason):
        unpack(archive, target, max_size=MB)

    assert not (tmp_path / "evil").exists()
    assert not (tmp_path / "folder" / "evil").exists()
    assert not any(path.is_symlink() for path in target.rglob("*"))
