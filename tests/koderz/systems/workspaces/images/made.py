"""Images made by hand: root folders of this machine's programs, layers, archives of docker save, OCI layouts."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
PROGRAMS = ("sh", "cat", "ls", "mkdir", "rm", "touch", "chmod", "ln", "mv", "id", "env", "pwd", "true", "sleep", "stat")
PASSWD = "root:x:0:0:root:/root:/bin/sh\nworker:x:1000:1000::/home/worker:/bin/sh\n"


class File(NamedTuple):
    """A member of a layer."""

    path: str
    data: bytes = b""
    kind: bytes = tarfile.REGTYPE
    link: str = ""
    mode: int = 0o644
    uid: int = 0


def folder(path: str, mode: int = 0o755, uid: int = 0) -> File:
    return File(path, kind=tarfile.DIRTYPE, mode=mode, uid=uid)


def link(path: str, target: str) -> File:
    return File(path, kind=tarfile.SYMTYPE, link=target)


def hard_link(path: str, target: str) -> File:
    return File(path, kind=tarfile.LNKTYPE, link=target)


def layer(*files: File) -> bytes:
    """A layer's archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for file in files:
            member = tarfile.TarInfo(file.path)
            member.type, member.linkname, member.mode, member.uid = file.kind, file.link, file.mode, file.uid
            member.size, member.mtime = len(file.data), 1_700_000_000
            archive.addfile(member, io.BytesIO(file.data))
    return out.getvalue()


@cache
def base() -> bytes:
    """A layer with a shell and a few programs of this machine, with their libraries: linked as in a merged /usr."""
    programs = {name: shutil.which(name, path="/usr/bin:/bin") for name in PROGRAMS}
    found = {Path(path).name: Path(path).resolve() for path in programs.values() if path}
    libraries = {path for each in found.values() for path in _libraries(each)}
    loaders = {path for path in libraries if "ld-" in path.name or "ld64" in path.name}
    files = [folder(name) for name in ("etc", "usr", "usr/bin", "root", "home", "home/worker", "opt", "srv", "var")]
    files += [folder("tmp", 0o1777), link("bin", "usr/bin"), File("etc/passwd", PASSWD.encode())]
    files += [File("etc/group", b"root:x:0:\nworker:x:1000:\n")]
    files += [File(f"usr/bin/{name}", path.read_bytes(), mode=0o755) for name, path in found.items()]
    for path in sorted(libraries | loaders):
        for parent in reversed(path.parents[:-1]):
            files.append(folder(str(parent).lstrip("/")))
        files.append(File(str(path).lstrip("/"), path.read_bytes(), mode=0o755))
    return layer(*files)


def _libraries(program: Path) -> set[Path]:
    told = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return {Path(path) for path in re.findall(r"(/\S+) \(0x", told)}


def config_of(layers: Iterable[bytes], **run: Any) -> bytes:
    """The configuration of an image; `run`: its WorkingDir, Env and User."""
    ids = [_digest(each) for each in layers]
    about = {"architecture": MACHINE, "os": "linux", "config": run, "rootfs": {"type": "layers", "diff_ids": ids}}
    return json.dumps(about).encode()


def docker_save(path: Path, tags: Sequence[str], layers: Sequence[bytes], config: bytes | None = None) -> Path:
    """Writes an archive as `docker save` did; compressed where the path ends so."""
    config = config or config_of(layers)
    name = f"{hashlib.sha256(config).hexdigest()}.json"
    names = [f"{hashlib.sha256(each).hexdigest()}/layer.tar" for each in layers]
    manifest = [{"Config": name, "RepoTags": [*tags], "Layers": names}]
    files = {name: config, **dict(zip(names, layers, strict=True)), "manifest.json": json.dumps(manifest).encode()}
    whole = layer(*(File(each, data) for each, data in files.items()))
    path.write_bytes(gzip.compress(whole, 1) if path.suffix in (".gz", ".tgz") else whole)
    return path


def oci_files(
    tag: str, layers: Sequence[bytes], config: bytes | None = None, *, zipped: bool = True
) -> dict[str, bytes]:
    """The files of an OCI layout."""
    config = config or config_of(layers)
    stored = [gzip.compress(each, 1) if zipped else each for each in layers]
    blobs = {_digest(data): data for data in (config, *stored)}
    kind = "application/vnd.oci.image"
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "config": {"mediaType": f"{kind}.config.v1+json", "digest": _digest(config), "size": len(config)},
            "layers": [
                {"mediaType": f"{kind}.layer.v1.tar+gzip", "digest": _digest(data), "size": len(data)}
                for data in stored
            ],
        }
    ).encode()
    blobs[_digest(manifest)] = manifest
    about = {"mediaType": f"{kind}.manifest.v1+json", "digest": _digest(manifest), "size": len(manifest)}
    index = {"schemaVersion": 2, "manifests": [{**about, "annotations": {"org.opencontainers.image.ref.name": tag}}]}
    return {
        "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
        "index.json": json.dumps(index).encode(),
        **{f"blobs/sha256/{digest[7:]}": data for digest, data in blobs.items()},
    }


def laid_out(path: Path, files: Mapping[str, bytes]) -> Path:
    """Writes a layout into a folder."""
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
