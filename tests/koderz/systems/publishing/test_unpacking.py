"""Archives of strangers."""

from __future__ import annotations

import gzip
import io
import lzma
import random
import stat
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import KoderzError
from koderz.systems.publishing.share import unpack_run

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


def written(path: Path, data: bytes, kind: str = "gz") -> Path:
    path.write_bytes(gzip.compress(data, 1) if kind == "gz" else lzma.compress(data, preset=0))
    return path


def block(name: str, kind: bytes, size: int, **more: Any) -> bytes:
    info = member(name, kind)
    info.size, info.pax_headers = size, more
    return info.tobuf(tarfile.PAX_FORMAT if more else tarfile.USTAR_FORMAT)


def flipped(path: Path, kind: str) -> Path:
    """An archive with a byte changed in its middle."""
    data = bytearray(written(path, block("a", tarfile.REGTYPE, MB) + random.Random(1).randbytes(MB), kind).read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    return path


def large_header(path: Path, kind: bytes) -> Path:
    return written(path, block("large", kind, 64 * MB) + bytes(64 * MB) + block("a", tarfile.REGTYPE, 0) + bytes(1024))


def many_headers(path: Path) -> Path:
    """Headers for all members that follow, each with a name of its own."""
    told = b"".join(b"%d %s=%s\n" % (1000, b"%07d" % number, b"x" * 986) for number in range(2_048))
    parts = [told[at : at + 1_024_000] for at in range(0, len(told), 1_024_000)]
    members = [block("g", tarfile.XGLTYPE, len(part)) + part + block("a", tarfile.REGTYPE, 0) for part in parts]
    return written(path, b"".join(members) + bytes(1024))


def long_map(path: Path) -> Path:
    """A sparse file of the older form, whose map of holes goes on and on."""
    begin = bytearray(block("a", tarfile.GNUTYPE_SPARSE, 0))
    begin[482] = 1
    begin[148:156] = b"%06o\0 " % (sum(begin) - sum(begin[148:156]) + 8 * 32)
    more = b"00000000001\0" * 42 + b"\1" + bytes(7)
    return written(path, bytes(begin) + more * 100_000)


def odd_map(path: Path) -> Path:
    headers: Any = {"GNU.sparse.map": "a,b"}
    return written(path, block("a", tarfile.REGTYPE, 0, **headers) + bytes(1024))


def zip_odd_name(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("run/\xe9", "x")
    path.write_bytes(path.read_bytes().replace("\xe9".encode(), b"\xe9\xe9"))
    return path


def zip_directory(path: Path) -> Path:
    """A zip whose directory is said to be large, and is."""
    end = b"PK\5\6" + bytes(4) + b"\xff\xff" * 2 + (40 * MB).to_bytes(4, "little") + bytes(6)
    path.write_bytes(bytes(40 * MB) + end)
    return path


DAMAGED = "is damaged, or can't be read"
HOSTILE: dict[str, tuple[Callable[[Path], Path], str]] = {
    "absolute": (lambda path: tarred(path, member("/tmp/evil")), "outside"),
    "parent": (lambda path: tarred(path, member("run/../../evil")), "outside"),
    "symlink": (lambda path: tarred(path, member("run", tarfile.SYMTYPE, "/etc")), "link or a device"),
    "hardlink": (lambda path: tarred(path, member("run", tarfile.LNKTYPE, "/etc/passwd")), "link or a device"),
    "device": (lambda path: tarred(path, member("run", tarfile.CHRTYPE)), "link or a device"),
    "fifo": (lambda path: tarred(path, member("run", tarfile.FIFOTYPE)), "link or a device"),
    "twice": (lambda path: tarred(path, member("a"), member("a")), "is damaged, or can't be read"),
    "bomb": (lambda path: tarred(path, member("a"), data=bytes(3 * MB)), "more than 1 MB"),
    "zip link": (zip_link, "link or a device"),
    "zip parent": (zip_parent, "outside"),
    "zip bomb": (zip_bomb, "more than 1 MB"),
    "flipped gzip": (lambda path: flipped(path, "gz"), DAMAGED),
    "flipped xz": (lambda path: flipped(path, "xz"), DAMAGED),
    "large headers of one": (lambda path: large_header(path, tarfile.XHDTYPE), "headers of more than 1 MB"),
    "large headers of all": (lambda path: large_header(path, tarfile.XGLTYPE), "headers of more than 1 MB"),
    "large name": (lambda path: large_header(path, tarfile.GNUTYPE_LONGNAME), "headers of more than 1 MB"),
    "many headers": (many_headers, "too many headers"),
    "long map of holes": (long_map, "headers of more than 1 MB"),
    "odd map of holes": (odd_map, DAMAGED),
    "odd name": (lambda path: written(path, block("a\udcff", tarfile.REGTYPE, 0) + bytes(1024)), "can't be printed"),
    "zip odd name": (zip_odd_name, DAMAGED),
    "zip directory": (zip_directory, "a directory of more than 16 MB"),
    "broken": (broken, "is damaged, or can't be read"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_archive_that_could_do_harm_is_refused(tmp_path: Path, name: str) -> None:
    make, reason = HOSTILE[name]
    archive, target = make(tmp_path / "archive"), tmp_path / "folder" / "target"
    target.mkdir(parents=True)

    tracemalloc.start()
    try:
        with pytest.raises(KoderzError, match=reason) as refused:
            unpack_run(archive, target, max_size=MB)
        assert tracemalloc.get_traced_memory()[1] < 48 * MB
    finally:
        tracemalloc.stop()

    assert "\n" not in str(refused.value)

    assert not (tmp_path / "evil").exists()
    assert not (tmp_path / "folder" / "evil").exists()
    assert not any(path.is_symlink() for path in target.rglob("*"))
