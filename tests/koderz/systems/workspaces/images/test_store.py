"""Images found by their names, in archives, layouts and root folders."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import pytest

from koderz.errors import KoderzError
from koderz.systems.workspaces.images import ImageStore
from koderz.systems.workspaces.images.archives import parse_reference
from tests.koderz.systems.workspaces.images.made import File, config_of, docker_save, folder, laid_out, layer, oci_files

SMALL = layer(folder("bin"), folder("app"), File("app/greeting", b"hello\n"), File("bin/tool", b"#!", mode=0o755))
DIGEST = "sha256:" + "a" * 64


@pytest.fixture
def images(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    return tmp_path / "images"


def store_of(images: Path) -> ImageStore:
    return ImageStore(images, images.parent / "cache")


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("ubuntu", "docker.io/library/ubuntu:latest"),
        ("ubuntu:24.04", "docker.io/library/ubuntu:24.04"),
        ("alexgshaw/task:20250101", "docker.io/alexgshaw/task:20250101"),
        ("docker.io/ubuntu", "docker.io/library/ubuntu:latest"),
        ("index.docker.io/a/b", "docker.io/a/b:latest"),
        ("ghcr.io/a/b/c:x", "ghcr.io/a/b/c:x"),
        ("localhost/a", "localhost/a:latest"),
        ("localhost:5000/a:1", "localhost:5000/a:1"),
        (f"ubuntu@{DIGEST}", f"docker.io/library/ubuntu@{DIGEST}"),
        (f"ubuntu:1@{DIGEST}", f"docker.io/library/ubuntu:1@{DIGEST}"),
        (DIGEST, f"@{DIGEST}"),
    ],
)
def test_reference_is_resolved_as_docker_does(name: str, whole: str) -> None:
    assert str(parse_reference(name)) == whole


@pytest.mark.parametrize(
    "name", ["", "UPPER", "a b", "-x", "a/../b", "a:", "a@sha256:12", "/a", "a//b", "--privileged"]
)
def test_reference_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(KoderzError, match="is no name of an image"):
        parse_reference(name)


@pytest.mark.parametrize("file", ["a.tar", "a.tar.gz", "a.tgz"])
def test_store_finds_an_archive_of_docker_save(images: Path, file: str) -> None:
    config = config_of([SMALL], WorkingDir="/app", Env=["A=b=c", "PATH=/bin", "odd"], User="worker")
    docker_save(images / file, ["me/it:1", "other:2"], [SMALL], config)
    store = store_of(images)

    found = store.find("me/it:1")

    assert store.names() == ["docker.io/library/other:2", "docker.io/me/it:1"]
    assert found
    assert (found.name, found.workdir, found.user) == ("docker.io/me/it:1", "/app", "worker")
    assert dict(found.environment) == {"A": "b=c", "PATH": "/bin"}
    assert store.find(found.digest)
    assert store.find(f"anything@{found.digest}")
    assert store.find("me/it") is None
    unpacked = store.unpacked("other:2")
    assert (unpacked.root / "app/greeting").read_text() == "hello\n"
    assert (unpacked.root / "bin/tool").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("zipped", [False, True])
def test_store_finds_an_oci_layout(images: Path, *, is_packed: bool, zipped: bool) -> None:
    files = oci_files("me/it:1", [SMALL], zipped=zipped)
    if is_packed:
        (images / "it.tar").write_bytes(layer(*(File(name, data) for name, data in files.items())))
    else:
        laid_out(images / "it", files)
    assert (store_of(images).unpacked("me/it:1").root / "app/greeting").read_text() == "hello\n"


def test_store_may_be_a_layout_itself(images: Path) -> None:
    laid_out(images, oci_files("me/it:1", [SMALL]))
    assert store_of(images).find("me/it:1")


def test_layout_with_a_bare_tag_is_named_by_its_folder(images: Path) -> None:
    laid_out(images / "ubuntu", oci_files("24.04", [SMALL]))
    assert store_of(images).find("ubuntu:24.04")


@pytest.mark.skipif(not shutil.which("zstd"), reason="the program zstd is missing")
def test_layers_may_be_compressed_by_zstd(images: Path) -> None:
    packed = subprocess.run(["zstd", "-c"], input=SMALL, capture_output=True, check=True).stdout
    files = oci_files("me/it:1", [packed], config_of([SMALL]), zipped=False)
    laid_out(images / "it", files)
    assert (store_of(images).unpacked("me/it:1").root / "app/greeting").is_file()


def test_index_gives_the_image_of_this_machine(images: Path) -> None:
    files = oci_files("me/it:1", [SMALL])
    index = json.loads(files["index.json"])
    own = index["manifests"][0]
    foreign = {"digest": DIGEST, "platform": {"architecture": "s390x", "os": "linux"}}
    inner = json.dumps({"manifests": [foreign, own]}).encode()
    digest = hashlib.sha256(inner).hexdigest()
    outer = {"manifests": [{"digest": f"sha256:{digest}", "annotations": own["annotations"]}]}
    files |= {f"blobs/sha256/{digest}": inner, "index.json": json.dumps(outer).encode()}
    laid_out(images / "it", files)
    store = store_of(images)
    assert store.find("me/it:1")
    assert store.find(f"me/it@sha256:{digest}")
    assert store.find(f"me/it@{own['digest']}")


def test_image_for_another_machine_is_refused_by_name(images: Path) -> None:
    config = json.loads(config_of([SMALL])) | {"architecture": "s390x"}
    docker_save(images / "it.tar", ["it"], [SMALL], json.dumps(config).encode())
    with pytest.raises(
        KoderzError, match=r"it\.tar: docker\.io/library/it:latest is made for linux/s390x; this machine"
    ):
        store_of(images).find("it")


def test_store_names_what_is_missing_and_how_to_get_it(images: Path) -> None:
    with pytest.raises(KoderzError, match=r"there is no image a/b:1 in .*images; .* docker save a/b:1 -o .*b-1\.tar"):
        store_of(images).unpacked("a/b:1")
    with pytest.raises(KoderzError, match="name a folder that holds it with --images"):
        ImageStore().unpacked("a")
    with pytest.raises(KoderzError, match="there is no folder"):
        ImageStore(images / "none").find("a")


def test_two_images_of_one_name_are_refused(images: Path) -> None:
    other = layer(folder("bin"))
    docker_save(images / "a.tar", ["it"], [SMALL])
    docker_save(images / "b.tar", ["it"], [other])
    docker_save(images / "c.tar", ["fine"], [SMALL])
    docker_save(images / "d.tar", ["fine"], [SMALL])
    store = store_of(images)
    assert store.find("fine")
    with pytest.raises(KoderzError, match=r"two different images, in .*a\.tar and in .*b\.tar"):
        store.find("it")


def test_changed_archive_is_read_anew(images: Path) -> None:
    docker_save(images / "a.tar", ["it:1"], [SMALL])
    assert store_of(images).names() == store_of(images).names() == ["docker.io/library/it:1"]
    docker_save(images / "a.tar", ["it:2"], [SMALL, SMALL])
    assert store_of(images).names() == ["docker.io/library/it:2"]


def test_image_is_unpacked_once(images: Path) -> None:
    docker_save(images / "a.tar", ["it"], [SMALL])
    root = store_of(images).unpacked("it").root
    before = (root / "app/greeting").stat().st_ino
    (images / "b.tar.gz").write_bytes(gzip.compress((images / "a.tar").read_bytes()))
    assert (store_of(images).unpacked("it").root / "app/greeting").stat().st_ino == before


def _unpacked(images: Path) -> Path:
    return store_of(images).unpacked("it").root


@pytest.mark.slow
def test_processes_may_unpack_at_once(images: Path) -> None:
    docker_save(images / "a.tar.gz", ["it"], [layer(*(File(f"app/{n}", b"x" * 1000) for n in range(500)))])
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        roots = {*pool.map(_unpacked, [images] * 4)}
    (root,) = roots
    assert len([*(root / "app").iterdir()]) == 500


def test_unpacking_that_was_cut_short_is_made_anew(images: Path) -> None:
    docker_save(images / "a.tar", ["it"], [SMALL])
    store = store_of(images)
    found = store.find("it")
    assert found
    left = images.parent / "cache/1" / f"{found.digest[7:]}.part/root/app"
    left.mkdir(parents=True)
    (left / "half").write_text("")
    assert [path.name for path in (store.unpacked("it").root / "app").iterdir()] == ["greeting"]


def damaged(images: Path) -> str:
    with pytest.raises(KoderzError) as raised:
        store_of(images).unpacked("it")
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.slow
def test_damage_is_told_in_a_line_that_names_the_file(images: Path) -> None:
    path = docker_save(images / "a.tar", ["it"], [SMALL])
    whole = path.read_bytes()
    for cut in (0, 100, 512, 5000, len(whole) // 2):
        path.write_bytes(whole[:cut])
        assert "a.tar" in damaged(images)
    for place in range(0, len(whole), 97):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        with suppress(KoderzError):  # some bytes don't matter; nothing else is ever raised
            store_of(images).unpacked("it")


@pytest.mark.parametrize("name", ["manifest.json", "config", "layer"])
def test_missing_part_of_an_archive_is_named(images: Path, name: str) -> None:
    path = docker_save(images / "a.tar", ["it"], [SMALL])
    with tarfile.open(path) as archive:
        parts = {each.name: archive.extractfile(each).read() for each in archive.getmembers()}  # type: ignore[union-attr]
    lost = next(
        each for each in parts if each == name or (name == "config" and "/" not in each) or each.endswith(f"{name}.tar")
    )
    del parts[lost]
    path.write_bytes(layer(*(File(each, data) for each, data in parts.items())))
    assert lost in damaged(images) or "manifest.json" in damaged(images)


@pytest.mark.parametrize(
    "text", [b"[", b"{}", b"[1]", b'[{"Config": "x"}]', b'[{"Config": 3, "Layers": []}]', b"[" * 100_000, b"\xff"]
)
def test_damaged_manifest_is_one_line(images: Path, text: bytes) -> None:
    (images / "a.tar").write_bytes(layer(File("manifest.json", text)))
    assert "a.tar" in damaged(images)


def test_layer_that_isnt_what_its_digest_says_is_refused(images: Path) -> None:
    docker_save(images / "a.tar", ["it"], [SMALL], config_of([layer(folder("etc"))]))
    assert "isn't what sha256:" in damaged(images)


def test_damaged_file_doesnt_hide_the_images_of_others(images: Path) -> None:
    docker_save(images / "b.tar", ["it"], [SMALL])
    (images / "a.tar").write_bytes(b"no archive")
    (images / "README.md").write_text("no archive either")
    store = store_of(images)
    assert store.find("it")
    with pytest.raises(KoderzError, match=r"a\.tar"):
        store.find("other")


def root_folder(path: Path) -> Path:
    (path / "bin").mkdir(parents=True)
    (path / "app").mkdir()
    return path


def test_store_names_root_folders(images: Path) -> None:
    root_folder(images / "tree")
    (images / "images.json").write_text('{"it:3": {"path": "tree", "workdir": "/app", "env": {"A": "b"}}}')
    found = store_of(images).unpacked("it:3")
    assert (found.root, found.workdir, found.environment["A"]) == (images / "tree", "/app", "b")
    assert found.digest == store_of(images).unpacked("it:3").digest
    (images / "tree/app/new").write_text("")
    assert found.digest != store_of(images).unpacked("it:3").digest


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("[]", "Expected `object`"),
        ('{"it": {}}', "path"),
        ('{"it": {"path": "tree", "workdri": "/"}}', "workdri"),
        ('{"it": {"path": "none"}}', "there is no folder"),
        ('{"it": {"path": "images.json"}}', "no root folder"),
        ('{"it": {"path": "empty"}}', "no root folder"),
        ('{"it": {"path": "/"}}', "this machine's own files"),
        ('{"it": {"path": "loop"}}', "there is no folder"),
        ('{"it": {"path": "host"}}', "this machine's own files"),
        ('{"it": {"path": "/proc/self/root"}}', "this machine's own files"),
        ('{"it": {"path": "tree\\u0000"}}', "there is no folder"),
        ('{"it": {"path": "tree", "workdir": "app"}}', "workdir has to begin with /"),
        ('{"it": {"path": "tree", "env": {"A=B": "c"}}}', "env has the name"),
        ('{"it": {"path": "tree", "env": {"A": "b\\u0000"}}}', "null character"),
        ('{"It": {"path": "tree"}}', "no name of an image"),
        ("[" * 100_000, "images.json"),
    ],
)
def test_hostile_list_of_folders_is_refused_in_a_line(images: Path, entry: str, why: str) -> None:
    root_folder(images / "tree")
    (images / "empty").mkdir()
    (images / "loop").symlink_to("loop")
    (images / "host").symlink_to("/")
    (images / "images.json").write_text(entry)
    said = damaged(images)
    assert "images.json" in said
    assert why in said


def tool(name: str) -> str:
    """A program of Debian's that makes images."""
    found = shutil.which(name)
    if found is None and not os.environ.get("CI"):
        pytest.skip(f"{name} isn't installed")
    assert found, f"{name} isn't installed"
    return found


@pytest.mark.parametrize("kind", ["oci", "oci-archive", "docker-archive"])
def test_store_reads_what_skopeo_writes(images: Path, tmp_path: Path, kind: str) -> None:
    skopeo = tool("skopeo")
    source = docker_save(tmp_path / "source.tar", ["me/it:1"], [SMALL], config_of([SMALL], WorkingDir="/app"))
    target = images / ("it" if kind == "oci" else "it.tar")
    words = [skopeo, "--insecure-policy", "copy", f"docker-archive:{source}:me/it:1", f"{kind}:{target}:me/it:1"]
    subprocess.run(words, check=True, capture_output=True)
    found = store_of(images).unpacked("me/it:1")
    assert (found.workdir, (found.root / "app/greeting").read_text()) == ("/app", "hello\n")


def test_store_reads_what_umoci_writes(images: Path, tmp_path: Path) -> None:
    umoci, layout = tool("umoci"), images / "it"
    (tmp_path / "app").mkdir()
    (tmp_path / "app/greeting").write_text("hello\n")
    for words in (
        ["init", "--layout", str(layout)],
        ["new", "--image", f"{layout}:1"],
        ["insert", "--rootless", "--image", f"{layout}:1", str(tmp_path / "app"), "/app"],
        ["config", "--image", f"{layout}:1", "--config.workingdir", "/app", "--config.env", "A=b"],
    ):
        subprocess.run([umoci, *words], check=True, capture_output=True)
    found = store_of(images).unpacked("it:1")
    assert (found.workdir, found.environment["A"]) == ("/app", "b")
    assert (found.root / "app/greeting").read_text() == "hello\n"


def test_layer_without_padding_is_read(images: Path) -> None:
    whole = layer(folder("bin"), File("bin/x", b"12"))
    docker_save(images / "a.tar", ["it"], [whole[: 3 * 512 + 2]])
    assert (store_of(images).unpacked("it").root / "bin/x").read_text() == "12"
