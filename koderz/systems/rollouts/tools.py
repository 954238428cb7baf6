"""Programs that stand in for those by which published verifiers install their test runner from the network.

uv's installer and `apt-get install` of what is there do nothing; `uvx … pytest` is koderz' pytest, with the plugins
that it wants from wheels or from the environment.
"""

from __future__ import annotations

import compileall
import re
import shlex
import shutil
import zipfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path, PurePosixPath

from koderz.errors import KoderzError
from koderz.sandbox.archives import damage
from koderz.sandbox.scratch import own_folder
from koderz.sandbox.workspace import Mount
from koderz.systems.rollouts.task import Rollout
from koderz.systems.workspaces import userland

TOOLS = "/opt/koderz/tools"

_GUEST = Path(__file__).with_name("guest")
_NAMES = ("uv", "uvx", "curl", "wget", "apt-get", "apt")
_RUNNERS = ("pytest", "py.test")
_COLOURS = "pygments"  # which is large, and not loaded where there is no terminal
_INSTALLS = re.compile(r"^(?!\s*#).*(?:\b(?:uvx?|apt-get|apt)\s+\S|astral\.sh/uv)", re.MULTILINE)
_ENV = f'export PATH="{TOOLS}:$PATH"\n'


def stands_in(task: Rollout) -> bool:
    """Whether a task's verifier installs what koderz' programs stand in for, as it has no network."""
    verifier = task.verifier
    if verifier is None or task.is_online:
        return False
    if verifier.installs or verifier.programs:
        return True
    text = verifier.script.read_text("utf-8", "replace") if verifier.script else ""
    return bool(_INSTALLS.search(text))


def command_with(task: Rollout, *argv: str) -> tuple[list[str], list[Mount]]:
    """The command of a verifier among the programs that stand in for others, and where these are seen."""
    verifier, lines = task.verifier, [f'PATH="{TOOLS}:$PATH"; export PATH']
    if verifier and (verifier.installs or verifier.programs):
        lines = [f'PATH="{TOOLS}:{TOOLS}/bin:$PATH"; export PATH']
        lines += [f"uv pip install {shlex.join(verifier.installs)} || exit 127"] if verifier.installs else []
        lines += [f"apt-get install {shlex.join(verifier.programs)} || exit 127"] if verifier.programs else []
    line = "\n".join([*lines, 'exec "$@"'])
    return ["sh", "-c", line, "sh", *argv], [Mount(_folder(task.wheels), TOOLS)]


@lru_cache(maxsize=8)
def _folder(wheels: str) -> Path:
    """A folder with the programs, koderz' pytest, and the packages of the wheels in a folder."""
    folder = own_folder() / f"tools-{abs(hash(wheels)):x}"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "bin").mkdir(parents=True)
    for path in (*(folder / name for name in _NAMES), *(folder / "bin" / name for name in _RUNNERS)):
        shutil.copyfile(_GUEST / "tool.sh", path)
        path.chmod(0o755)
    for name in ("main.py", "ctrf.py"):
        shutil.copyfile(_GUEST / name, folder / name)
    (folder / "env").write_text(_ENV)
    (folder / "pytest").mkdir()
    for source, name in userland.pytest_modules():
        target = folder / "pytest" / name
        unused = shutil.ignore_patterns("__pycache__" if name == _COLOURS else "")
        shutil.copytree(source, target, ignore=unused) if source.is_dir() else shutil.copy2(source, target)
    # A verifier may not write there, and each would compile pytest anew.
    compileall.compile_dir(folder / "pytest", rx=re.compile(rf"/{_COLOURS}/"), quiet=2)
    (folder / "site").mkdir()
    for wheel in _usable(Path(wheels)) if wheels else ():
        _unpack(wheel, folder / "site")
    return folder


def _usable(folder: Path) -> Iterator[Path]:
    """The wheels of a folder that this machine can use, older versions first."""
    if not folder.is_dir():
        raise KoderzError(f"--wheels {folder}: there is no such folder")
    from packaging.tags import Tag, sys_tags
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    known = {*sys_tags(), Tag("py3", "none", "any")}
    found = []
    for path in sorted(folder.glob("*.whl")):
        try:
            name, version, _, tags = parse_wheel_filename(path.name)
        except InvalidWheelFilename as error:
            raise KoderzError(f"--wheels: {path}: {error}") from None
        if tags & known:
            found.append((name, version, path))
    return (path for _, _, path in sorted(found))


def _unpack(wheel: Path, site: Path) -> None:
    """Unpacks the packages of a wheel. Raises KoderzError for a damaged one, or a path that leaves its folder."""
    with damage(wheel), zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            path = PurePosixPath(info.filename)
            if path.is_absolute() or ".." in path.parts or info.is_dir():
                if not info.is_dir():
                    raise KoderzError(f"--wheels: {wheel}: {info.filename} leaves its folder")
                continue
            target = site / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(info))
