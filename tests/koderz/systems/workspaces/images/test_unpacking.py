"""Layers applied to one folder, hostile ones among them."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
from pathlib import Path

import pytest

from koderz.errors import KoderzError
from koderz.systems.workspaces.images import ImageStore
from tests.koderz.systems.workspaces.images.made import File, config_of, docker_save, folder, hard_link, layer, link


def unpacked(tmp_path: Path, *layers: bytes, **run: object) -> Path:
    """The root folder of an image with these layers."""
    images = tmp_path / "images"
    images.mkdir(exist_ok=True)
    docker_save(images / "it.tar", ["it"], layers, config_of(layers, **run))
    return ImageStore(images, tmp_path / "cache").unpacked("it").root


def refused(tmp_path: Path, *layers: bytes) -> str:
    """Why an image with these layers isn't unpacked, after which nothing of it is left."""
    with pytest.raises(KoderzError) as raised:
        unpacked(tmp_path, *layers)
    left = [path.name for path in (tmp_path / "cache/1").iterdir()]
    assert all(name.endswith(".lock") for name in left)
    said = str(raised.value)
    assert said.startswith(f"{tmp_path}/images/it.tar")
    assert "\n" not in said
    return said


def names(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.name != "hosts")


def test_later_layers_replace_and_remove_what_earlier_ones_have(tmp_path: Path) -> None:
    root = unpacked(
        tmp_path,
        layer(folder("a"), File("a/old", b"1"), File("a/kept"), folder("b"), File("b/x"), folder("c"), File("c/x")),
        layer(File("a/old", b"2"), File("a/.wh.kept"), File(".wh.b"), folder("c"), File("c/.wh..wh..opq"), File("c/y")),
    )
    assert names(root) == ["a", "a/old", "c", "c/y", "etc"]
    assert (root / "a/old").read_text() == "2"


def test_opaque_folder_keeps_what_its_own_layer_adds(tmp_path: Path) -> None:
    root = unpacked(
        tmp_path,
        layer(folder("c"), folder("c/d"), File("c/d/low"), File("c/low")),
        layer(folder("c"), folder("c/d"), File("c/d/own"), File("c/own"), File("c/.wh..wh..opq"), File("c/.wh.own")),
    )
    assert names(root) == ["c", "c/d", "c/d/own", "c/own", "etc"]


def test_file_and_folder_take_each_others_place(tmp_path: Path) -> None:
    first = layer(folder("a"), File("a/x"), File("b"), link("c", "a"), File("d"))
    root = unpacked(tmp_path, first, layer(File("a"), folder("b"), File("b/y"), folder("c"), link("d", "b")))
    assert names(root) == ["a", "b", "b/y", "c", "d", "etc"]
    assert (root / "d").is_symlink()
    assert not (root / "c").is_symlink()


def test_member_that_comes_twice_is_the_last_one(tmp_path: Path) -> None:
    root = unpacked(tmp_path, layer(File("a", b"first"), File("a", b"second"), link("l", "a"), File("l", b"third")))
    assert (root / "a").read_text() == "second"
    assert (root / "l").read_text() == "third"


def test_files_go_through_links_of_lower_layers_within_the_image(tmp_path: Path) -> None:
    root = unpacked(
        tmp_path,
        layer(folder("usr"), folder("usr/bin"), link("bin", "usr/bin"), link("abs", "/usr/bin")),
        layer(File("bin/tool"), File("abs/other"), hard_link("abs/same", "bin/tool")),
    )
    assert names(root / "usr") == ["bin", "bin/other", "bin/same", "bin/tool"]
    assert (root / "usr/bin/same").stat().st_ino == (root / "usr/bin/tool").stat().st_ino


def test_absolute_links_and_names_stay_in_the_image(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    root = unpacked(
        tmp_path,
        layer(link("out", str(outside)), File("out/file", b"1"), File("/abs", b"2"), link("up", "/../../../..")),
        layer(File("up/file", b"3"), File("out/.wh.file"), File("up/x/../y".replace("/..", ""), b"4")),
    )
    assert not [*outside.iterdir()]
    assert (root / "abs").read_text() == "2"
    assert (root / "file").read_text() == "3"
    assert not (root / str(outside).lstrip("/") / "file").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "hostile",
    [
        (File("../out"),),
        (File("a/../../out"),),
        (File("a/.."),),
        (folder("a/../.."),),
        (File("/../out"),),
        (link("a", "../out"),),
        (folder("a"), link("a/b", "../../out")),
        (link("a", "b/../../../out"),),
        (hard_link("a", "../out"),),
        (hard_link("a", "b/../../../../etc/passwd"),),
        (hard_link("a", "/etc/shadow"),),
        (hard_link("a", "missing"),),
        (folder("d"), hard_link("a", "d")),
        (hard_link("a", "/"),),
        (link("l", "/etc"), hard_link("a", "l/shadow")),
        (File(".wh..."),),
        (File("a/.wh..."),),
        (File(".wh.."),),
        (File("a/.wh."),),
        (File("/".join(["d"] * 300)),),
        (File("x" * 300),),
        (link("a", "a"), File("a/b")),
        (link("a", "b"), link("b", "a"), folder("a/c")),
        (File("a/" + "/".join(["d"] * 1500)),),
    ],
)
def test_layer_that_leaves_the_image_is_refused_in_a_line(tmp_path: Path, hostile: tuple[File, ...]) -> None:
    (tmp_path / "out").write_text("mine")
    refused(tmp_path, layer(*hostile))
    assert (tmp_path / "out").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "images", "out"]


def test_white_out_of_a_link_removes_the_link_alone(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("")
    root = unpacked(
        tmp_path,
        layer(link("v", str(victim)), folder("a"), link("a/l", str(victim))),
        layer(File(".wh.v"), File("a/.wh.l"), folder("a"), File("a/.wh..wh..opq")),
    )
    assert names(root) == ["a", "etc"]
    assert (victim / "file").exists()


def test_opaque_mark_behind_a_link_clears_nothing_outside(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("")
    unpacked(tmp_path, layer(link("v", str(victim))), layer(File("v/.wh..wh..opq")))
    assert (victim / "file").exists()


def test_devices_pipes_and_bookkeeping_are_left_out(tmp_path: Path) -> None:
    special = [File(name, kind=kind) for name, kind in (("c", tarfile.CHRTYPE), ("b", tarfile.BLKTYPE))]
    root = unpacked(tmp_path, layer(*special, File("f", kind=tarfile.FIFOTYPE), File(".wh..wh.plnk"), File("kept")))
    assert names(root) == ["etc", "kept"]


def test_programs_gain_no_rights_and_folders_stay_the_owners(tmp_path: Path) -> None:
    files = layer(File("su", mode=0o6755), folder("shut", 0), File("shut/secret", mode=0), folder("tmp", 0o1777))
    root = unpacked(tmp_path, files)
    modes = {path: stat.S_IMODE((root / path).stat().st_mode) for path in names(root)}
    assert modes == {"su": 0o755, "shut": 0o700, "shut/secret": 0o400, "tmp": 0o1777, "etc": 0o755}


def test_times_are_those_of_the_layer(tmp_path: Path) -> None:
    root = unpacked(tmp_path, layer(folder("a"), File("a/b")))
    assert (root / "a/b").stat().st_mtime == (root / "a").stat().st_mtime == 1_700_000_000


def test_workdir_and_hosts_are_made(tmp_path: Path) -> None:
    root = unpacked(tmp_path, layer(folder("bin")), WorkingDir="/srv/../made/here")
    assert (root / "made/here").is_dir()
    assert "localhost" in (root / "etc/hosts").read_text()


def test_hosts_behind_a_link_are_written_in_the_image(tmp_path: Path) -> None:
    target = tmp_path / "mine"
    root = unpacked(tmp_path, layer(folder("etc"), link("etc/hosts", str(target))))
    assert not target.exists()
    assert (root / "etc/hosts").is_symlink()


def _sparse(size: int) -> bytes:
    """A layer with a file that says to have so many bytes, nearly all of them a hole."""
    told = "22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n28 GNU.sparse.name=the-hole\n"
    real = f"GNU.sparse.realsize={size}\n"
    told += f"{len(real) + 3} {real}"
    data = b"1\n0\n1\n".ljust(512, b"\0") + b"x"
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        head = tarfile.TarInfo("././@PaxHeader")
        head.type, head.size = tarfile.XHDTYPE, len(told)
        archive.addfile(head, io.BytesIO(told.encode()))
        member = tarfile.TarInfo("hole")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def test_file_with_a_hole_takes_no_room(tmp_path: Path) -> None:
    root = unpacked(tmp_path, _sparse(50_000_000))
    about = (root / "the-hole").stat()
    assert about.st_size == 50_000_000
    assert about.st_blocks * 512 < 5_000_000


def test_image_larger_than_the_disk_is_refused_before_it_is_written(tmp_path: Path) -> None:
    assert "No space left" in refused(tmp_path, _sparse(1 << 55))


def test_header_that_fills_the_memory_is_refused(tmp_path: Path) -> None:
    bomb = tarfile.TarInfo("././@LongLink")
    bomb.type, bomb.size = tarfile.GNUTYPE_LONGNAME, 1 << 30
    images = tmp_path / "images"
    images.mkdir()
    whole = bomb.tobuf() + bytes(1 << 20)
    docker_save(images / "it.tar", ["it"], [whole], config_of([whole]))
    with pytest.raises(KoderzError, match="headers of more than 1 MB"):
        ImageStore(images, tmp_path / "cache").unpacked("it")
    (images / "it.tar").write_bytes(gzip.compress(whole))
    with pytest.raises(KoderzError, match="headers of more than 1 MB"):
        ImageStore(images, tmp_path / "cache").unpacked("it")


@pytest.mark.parametrize("seed", range(8))
def test_noise_in_a_layer_is_one_line_at_worst(tmp_path: Path, seed: int) -> None:
    import random

    chance = random.Random(seed)
    good = bytearray(layer(folder("a"), File("a/x", b"1" * 2000), link("l", "a"), hard_link("h", "a/x"), File("z")))
    for _ in range(20):
        good[chance.randrange(len(good))] = chance.randrange(256)
    try:
        root = unpacked(tmp_path, bytes(good))
    except KoderzError as error:
        said = str(error)
    else:
        said = str(os.fspath(root))
    assert "\n" not in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "images"]


def test_layers_linked_to_each_other_in_an_archive_are_read(tmp_path: Path) -> None:
    small = layer(folder("bin"), File("bin/x", b"1"))
    images = tmp_path / "images"
    images.mkdir()
    path = docker_save(images / "it.tar", ["it"], [small, small])
    with tarfile.open(path) as archive:
        files = [File(each.name, archive.extractfile(each).read()) for each in archive.getmembers()]  # type: ignore[union-attr]
    (big,) = {file for file in files if file.path.endswith("layer.tar")}
    manifest = next(file for file in files if file.path == "manifest.json")
    told = manifest.data.replace(big.path.encode(), b"linked/layer.tar", 1)
    kept = [file for file in files if file not in (manifest, big)]
    path.write_bytes(layer(*kept, big, File("manifest.json", told), link("linked/layer.tar", f"../{big.path}")))
    assert (ImageStore(images, tmp_path / "cache").unpacked("it").root / "bin/x").read_text() == "1"
    path.write_bytes(layer(*kept, File("manifest.json", told), link("linked/layer.tar", "../../../etc/passwd")))
    with pytest.raises(KoderzError, match="is missing"):
        ImageStore(images, tmp_path / "other").unpacked("it")
