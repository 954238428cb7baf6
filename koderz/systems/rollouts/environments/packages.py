"""Packages of lines that are followed without a network: what is there does nothing, what isn't comes from --packages.

The folder has wheels, debs and archives of npm. Debs are unpacked, and none of their scripts are run; pip, uv and npm
find wheels and archives by their own variables.
"""

from __future__ import annotations

import io
import json
import os
import posixpath
import re
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from koderz.errors import KoderzError
from koderz.sandbox.archives import Member, damage, decompressed, forget
from koderz.sandbox.workspace import BRIDGE_URL, Ended, Mount
from koderz.systems.workspaces import userland
from koderz.systems.workspaces.images.tree import Layers, copy_file, mode_of, read_in_root, resolved
from koderz.systems.workspaces.proxy import variables

REAL_APT = "/opt/koderz/apt-get"  # the image's own, where lines reach the network
BUILD, WHEELS = "/opt/koderz/build", "/opt/koderz/packages"
"""Where lines see what stands in for programs, and the folder of --packages."""

_GUEST = Path(__file__).parents[1] / "guest" / "building"
_PROGRAMS = ("usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin")
_STATUS = "/var/lib/dpkg/status"
_LARGEST = 64 << 20  # bytes of that file
_VARIABLES = {
    "PIP_NO_INDEX": "1",
    "PIP_FIND_LINKS": WHEELS,
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
    "PIP_NO_CACHE_DIR": "1",
    "DEBIAN_FRONTEND": "noninteractive",
    "UV_NO_INDEX": "1",
    "UV_OFFLINE": "1",
    "UV_FIND_LINKS": WHEELS,
    "UV_PYTHON_DOWNLOADS": "never",
    "npm_config_offline": "true",
    "npm_config_audit": "false",
    "npm_config_fund": "false",
}
_OFFLINE = (
    "PIP_NO_INDEX",
    "UV_NO_INDEX",
    "UV_OFFLINE",
    "UV_PYTHON_DOWNLOADS",
    "npm_config_offline",
)
_OF_HOST = {"PIP_BREAK_SYSTEM_PACKAGES": "1", "UV_BREAK_SYSTEM_PACKAGES": "1"}
_HAVING = {  # a Debian package, and what is there where it is: any of these paths
    "apt-utils": ("",),
    "locales": ("usr/bin/locale",),
    "tzdata": ("usr/share/zoneinfo",),
    "build-essential": ("usr/bin/gcc",),
    "ca-certificates": ("etc/ssl/certs/ca-certificates.crt",),
    "coreutils": ("bin/ls", "usr/bin/ls"),
    "findutils": ("usr/bin/find",),
    "procps": ("bin/ps", "usr/bin/ps"),
    "gnupg": ("usr/bin/gpg",),
    "openssh-client": ("usr/bin/ssh",),
    "xz-utils": ("usr/bin/xz",),
    "golang-go": ("usr/bin/go",),
    "nodejs": ("usr/bin/node",),
    "python-is-python3": ("usr/bin/python",),
    "iproute2": ("usr/bin/ip", "bin/ip", "sbin/ip"),
    "net-tools": ("usr/sbin/ifconfig", "sbin/ifconfig"),
    "netcat-openbsd": ("usr/bin/nc", "bin/nc"),
    "openjdk-17-jdk": ("usr/lib/jvm/java-17-openjdk-amd64/bin/javac",),
}
_PIP_OF = (
    re.compile(r"No matching distribution found for ([^\s;]+)"),
    re.compile(r"requirement ([^\s;(]+) \(from"),
)
_UV_OF = re.compile(
    r"[Bb]ecause(?: there (?:are no|is no) versions? of)? ([\w.-]+)(?:\[[^\]]*\])? (?:was not found|and)"
)
_NO_NETWORK = re.compile(
    r"Could not resolve host|Temporary failure in name resolution|unable to resolve host|Name or service not known"
)
_REMEDY = "put it into the folder of --packages, or build with --allow-network build"


@dataclass(frozen=True, slots=True)
class Shown:
    """The variables and files that a line sees besides."""

    environment: Mapping[str, str]
    mounts: Sequence[Mount]


class Packages:
    """The packages in a folder, laid out for the lines of one environment below the folder `place`."""

    def __init__(self, folder: Path | None, place: Path) -> None:
        self.folder, self.place = folder, place
        self._is_laid = False
        if folder is not None and not folder.is_dir():
            raise KoderzError(f"--packages: there is no folder {folder}")

    def shown(self, layers: Layers, *, online: bool = False) -> Shown:
        """The variables and files for the next line, in a root with these layers; `online` if it has a proxy."""
        (self.place / "debs").mkdir(parents=True, exist_ok=True)
        if not self._is_laid:
            (self.place / "nothing").mkdir()
            for name in ("apt-get", "npm"):  # an installation need not keep that they can be run
                shutil.copyfile(_GUEST / name, self.place / name)
                (self.place / name).chmod(0o755)
            for deb in sorted(self.folder.glob("*.deb")) if self.folder else ():
                self._lay(deb, layers)
            self._lay_npm()
            self._is_laid = True
        (self.place / "present").write_text("\n".join(sorted(present(layers))))
        mounts = [
            Mount(self.place, BUILD),
            Mount((self.folder or self.place / "nothing").absolute(), WHEELS),
        ]
        mounts += [Mount(self.place / "apt-get", f"/usr/bin/{name}") for name in ("apt-get", "apt")]
        environment = {**_VARIABLES, **(_OF_HOST if layers.hosted else {})}
        if not online and any("npm" in layers.names(folder) for folder in _PROGRAMS):
            mounts.append(Mount(self.place / "npm", "/usr/local/sbin/npm"))
        apt = layers.find(resolved(layers, "/usr/bin/apt-get").lstrip("/"))
        if online:
            environment = {
                name: value for name, value in environment.items() if name not in _OFFLINE
            }
            environment |= variables(BRIDGE_URL)
            mounts += [Mount(apt, REAL_APT)] if apt else []
        return Shown(environment, mounts)

    def lay_uv(self, sources: Sequence[str], target: Path) -> None:
        """Lays uv's programs of its wheel, or of this machine, into a root. Raises KoderzError where there are none."""
        wheel = next(iter(sorted(self.folder.glob("uv-*.whl"))) if self.folder else iter(()), None)
        for source in sources:
            name, here = posixpath.basename(source), target / source.lstrip("/")
            here.parent.mkdir(parents=True, exist_ok=True)
            found = shutil.which(name)
            if wheel:
                with damage(wheel), zipfile.ZipFile(wheel) as archive:
                    inner = [
                        each
                        for each in archive.namelist()
                        if each.endswith(f".data/scripts/{name}")
                    ]
                    here.write_bytes(archive.read(inner[0]) if inner else b"")
            elif found:
                copy_file(os.path.realpath(found), here)
            else:
                raise KoderzError(
                    f"the program {name} isn't here; {_REMEDY.replace('it', 'the wheel of uv', 1)}"
                )
            here.chmod(0o755)

    def _lay_npm(self) -> None:
        """Notes for each package of npm its archive, and those of the packages that it needs."""
        own = self.place / "archives"
        own.mkdir()
        needs, archives = dict[str, list[str]](), dict[str, str]()
        for path in sorted(self.folder.glob("*.tgz")) if self.folder else ():
            with damage(path), tarfile.open(path, "r:gz", tarinfo=Member) as archive:
                about = _package_of(archive)
                needs[about["name"]] = [*about.get("dependencies", {})]
                archives[about["name"]] = f"{WHEELS}/{path.name}"
        for name in needs:
            wanted = [name]
            for each in wanted:
                wanted += [other for other in needs.get(each, ()) if other not in wanted]
            if all(each in archives for each in wanted):
                (own / name.replace("/", "+")).write_text(
                    " ".join(archives[each] for each in wanted)
                )

    def _lay(self, deb: Path, layers: Layers) -> None:
        """Unpacks a deb, and notes what it needs."""
        with damage(deb), deb.open("rb") as file:
            parts = dict(_members_of_ar(file))
            control = _control(file, parts)
            name = control.get("Package", "")
            if not re.fullmatch(r"[a-z0-9][a-z0-9+.-]+", name):
                raise ValueError("its control file has no name of a package")
            own = self.place / "debs" / name
            shutil.rmtree(own, ignore_errors=True)
            (own / "root").mkdir(parents=True)
            _extract(file, parts, own / "root", layers)
        needs = [*_needed(control.get("Pre-Depends", "")), *_needed(control.get("Depends", ""))]
        # Without dpkg's record nobody knows which libraries are there.
        here = present(layers) if layers.find(_STATUS.lstrip("/")) else set[str]()
        others = {file.name.partition("_")[0] for file in deb.parent.glob("*.deb")}
        wanted = []
        for choices in needs:
            if here & {*choices}:
                continue
            if chosen := next((each for each in choices if each in others), None):
                wanted.append(chosen)
            elif here:
                wanted.append(choices[0])
        (own / "needs").write_text("".join(f"{each}\n" for each in wanted))
        stanza = {**control, "Status": "install ok installed"}
        (own / "stanza").write_text(
            "".join(f"{key}: {value}\n" for key, value in stanza.items()) + "\n"
        )


def present(layers: Layers) -> set[str]:
    """The names of Debian packages that are in a root: by dpkg's record, or by programs and files."""
    found = set(userland_names(layers))
    for stanza in read_in_root(layers, _STATUS, _LARGEST).decode("utf-8", "replace").split("\n\n"):
        fields = dict(re.findall(r"^(Package|Status|Provides): (.*)$", stanza, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            found.add(fields.get("Package", ""))
            found |= {
                each.split()[0] for each in fields.get("Provides", "").split(",") if each.strip()
            }
    for name, paths in _HAVING.items():
        if any(not path or layers.find(resolved(layers, path).lstrip("/")) for path in paths):
            found.add(name)
    if found & {"pip", "pip3"}:
        found.add("python3-pip")
    for version in [name for name in found if re.fullmatch(r"python3(\.\d+)?", name)]:
        found |= {f"{version}-minimal"} | (
            {f"{version}-venv", f"{version}-distutils"} if _has_venv(layers) else set()
        )
    return found - {""}


def userland_names(layers: Layers) -> Iterator[str]:
    """The names of programs in a root, and of those beside this machine's python3 where that is seen there."""
    for folder in _PROGRAMS:
        yield from layers.names(resolved(layers, folder).lstrip("/"))
    for prefix in userland.python().prefixes if layers.hosted else ():
        yield from os.listdir(Path(prefix, "bin"))  # noqa: PTH208


def _has_venv(layers: Layers) -> bool:
    """Whether the wheel of pip is there, with which an interpreter fills new environments."""
    tops = ("usr/lib", "usr/local/lib")
    folders = [f"{top}/{name}/ensurepip/_bundled" for top in tops for name in layers.names(top)]
    names = [
        name for folder in (*folders, "usr/share/python-wheels") for name in layers.names(folder)
    ]
    for prefix in userland.python().prefixes if layers.hosted else ():
        names += [
            path.name for path in Path(prefix, "lib").glob("python3*/ensurepip/_bundled/*.whl")
        ]
    return any(name.startswith("pip-") for name in names)


def explained(ended: Ended) -> str:
    """Why a line failed: the packages that aren't here with what to do about it, else the last that it said."""
    lines = ended.output.strip().splitlines() or [f"exit code {ended.status}"]
    for line in reversed(lines):
        if lacking := re.match(r"koderz lacks Debian packages: (.*)", line):
            names = lacking[1].split()
            many = (
                f"s {', '.join(names)}, which aren't"
                if len(names) > 1
                else f" {names[0]}, which isn't"
            )
            them = "their .deb files" if len(names) > 1 else "its .deb file"
            return f"it needs the Debian package{many} here; {_REMEDY.replace('it', them, 1)}"
        if found := next(filter(None, (pattern.search(line) for pattern in _PIP_OF)), None):
            return f"it needs the Python package {found[1]}, which isn't here; {_REMEDY.replace('it', 'its wheel', 1)}"
        if found := _UV_OF.search(line):
            return f"it needs the Python package {found[1]}, which isn't here; {_REMEDY.replace('it', 'its wheel', 1)}"
        if lacking := re.match(r"koderz lacks npm packages: (.*)", line):
            return f"it needs {lacking[1]} of npm, which isn't here; {_REMEDY.replace('it', 'its .tgz', 1)}"
        if _NO_NETWORK.search(line):
            return f"it needs the network: {line.strip()[:160]}; build with --allow-network build"
    return lines[-1][:200]


def _members_of_ar(file: IO[bytes]) -> Iterator[tuple[str, tuple[int, int]]]:
    """The members of a deb, each with its place and size. ValueError where it is none."""
    if file.read(8) != b"!<arch>\n":
        raise ValueError("it is no Debian package")
    while len(header := file.read(60)) == 60:
        size = int(header[48:58])
        yield header[:16].decode("ascii").strip().rstrip("/"), (file.tell(), size)
        file.seek(size + size % 2, os.SEEK_CUR)


def _opened(file: IO[bytes], parts: Mapping[str, tuple[int, int]], name: str) -> IO[bytes]:
    """A part of a deb, uncompressed or not, as a file."""
    found = next(
        (place for member, place in parts.items() if member.startswith(f"{name}.tar")), None
    )
    if found is None:
        raise ValueError(f"it has no {name}.tar")
    file.seek(found[0])
    return io.BytesIO(file.read(found[1]))


def _package_of(archive: tarfile.TarFile) -> dict[str, Any]:
    """The package.json of an npm's archive. Raises ValueError if it has none, or one without a name."""
    found = next(
        (each for each in archive if each.name == "package/package.json" and each.isfile()), None
    )
    content = archive.extractfile(found) if found else None
    about = json.loads(content.read(1 << 20)) if content else None
    if (
        isinstance(about, dict)
        and isinstance(about.get("name"), str)
        and isinstance(about.get("dependencies", {}), dict)
    ):
        return about
    raise ValueError("it has no package/package.json of a package")


def _control(file: IO[bytes], parts: Mapping[str, tuple[int, int]]) -> dict[str, str]:
    with (
        _opened(file, parts, "control") as raw,
        decompressed(raw) as stream,
        tarfile.open(fileobj=stream, mode="r|", tarinfo=Member) as archive,
    ):
        for member in archive:
            if posixpath.basename(member.name) == "control" and (
                content := archive.extractfile(member)
            ):
                text = content.read(1 << 20).decode("utf-8", "replace")
                return dict(re.findall(r"^([\w-]+): (.*)$", text, re.MULTILINE))
    raise ValueError("it has no control file")


def _extract(
    file: IO[bytes], parts: Mapping[str, tuple[int, int]], root: Path, layers: Layers
) -> None:
    """Unpacks the files of a deb. Folders such as /lib are what they are links to in the root."""
    with (
        _opened(file, parts, "data") as raw,
        decompressed(raw) as stream,
        tarfile.open(fileobj=stream, mode="r|", tarinfo=Member) as archive,
    ):
        for member in archive:
            names = [name for name in member.name.split("/") if name not in ("", ".")]
            forget(archive)
            if not names or ".." in names:
                continue
            above = resolved(layers, names[0]).lstrip("/") if len(names) > 1 else ""
            folder = root / resolved(root, posixpath.join(above, *names[1:-1])).lstrip("/")
            folder.mkdir(parents=True, exist_ok=True)
            _extract_member(member, archive, folder / names[-1], root, layers)


def _extract_member(
    member: tarfile.TarInfo, archive: tarfile.TarFile, here: Path, root: Path, layers: Layers
) -> None:
    if member.isdir():
        if here.parent != root or not stat.S_ISLNK(mode_of(layers.find(here.name) or Path())):
            here.mkdir(exist_ok=True)
            here.chmod(member.mode & 0o1777 | stat.S_IRWXU)
        return
    here.unlink(missing_ok=True)
    if member.issym():
        here.symlink_to(member.linkname)
    elif member.islnk():
        names = [name for name in member.linkname.split("/") if name not in ("", ".", "..")]
        above = resolved(layers, names[0]).lstrip("/")
        os.link(
            root / resolved(root, posixpath.join(above, *names[1:])).lstrip("/"),
            here,
            follow_symlinks=False,
        )
    elif member.isreg() and (content := archive.extractfile(member)):
        with here.open("xb") as file:
            shutil.copyfileobj(content, file, 1 << 20)
        here.chmod(member.mode & 0o777 | stat.S_IRUSR)
        os.utime(here, (member.mtime, member.mtime))


def _needed(text: str) -> Iterator[list[str]]:
    """The packages that a deb needs: for each the names of which one will do."""
    for part in text.split(","):
        if names := [
            re.split(r"[\s(:\[]", each.strip())[0] for each in part.split("|") if each.strip()
        ]:
            yield names
