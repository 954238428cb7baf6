"""Removes files with which a diff could influence its own grading from a checkout, and lists them."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tomllib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path, PurePosixPath

from koderz.systems.workspaces import git
from koderz.systems.workspaces.inside.names import climbs
from koderz.systems.workspaces.scripts import Script

_SETTINGS = {"pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml"}
_SHARED_SETTINGS = {"tox.ini": "pytest", "setup.cfg": "tool:pytest", "pyproject.toml": "pytest"}
SETTINGS = ("conftest.py", *sorted(_SETTINGS), *_SHARED_SETTINGS)
_OF_PYTEST = {
    "pytest",
    "_pytest",
    "pluggy",
    "iniconfig",
    "packaging",
    "pygments",
    "py",
    "exceptiongroup",
    "tomli",
}
_OF_SITE = {"site", "sitecustomize", "usercustomize"}
_CODE = (".py", ".so", ".pyc", ".pyd")
_INSTALLED = (".pth", ".dist-info", ".egg-info", ".egg-link")


GUARDS = ("settings", "compiled", "shadows", "links")
"""What is put aside, by name: settings of pytest, compiled code, modules that shadow others, links that leave."""


def guard(
    checkout: Path,
    baseline: Path,
    scripts: Iterable[Script] = (),
    *,
    lifted: Collection[str] = (),
    seen: str = "",
) -> list[str]:
    """Restores conftest.py and pytest's settings, and removes what shadows pytest or a standard module.

    Both folders are checkouts, the first with the diff applied. `seen` is where the checkout is seen: new links that
    leave it go, too. `lifted` are the `GUARDS` that don't apply. Returns what was put aside, as `path: why`.
    """
    found: list[str] = []
    if "settings" not in lifted:
        found += _settings(checkout, baseline)
    if "compiled" not in lifted:
        found += _compiled(checkout, baseline)
    if "shadows" not in lifted:
        for folder in sorted(_searched(scripts)):
            found += _shadows(checkout, baseline, folder)
    if seen and "links" not in lifted:
        found += _links(checkout, baseline, PurePosixPath(seen))
    return found


def _settings(checkout: Path, baseline: Path) -> Iterator[str]:
    for path, here in _below(checkout):
        if _is_settings(path) and not _same(path, baseline / here):
            git.restore(checkout, here.as_posix(), baseline)
            yield f"{here}: settings of pytest"
    for path, here in _below(baseline):
        if _is_settings(path) and path.is_file() and not (checkout / here).exists():
            git.restore(checkout, here.as_posix(), baseline)
            yield f"{here}: settings of pytest, removed"


def _compiled(checkout: Path, baseline: Path) -> Iterator[str]:
    for path, here in _below(checkout):
        if (path.name == "__pycache__" or path.suffix in (".pyc", ".pyo")) and not (
            baseline / here
        ).exists():
            _remove(path)
            yield f"{here}: compiled code"


def _links(checkout: Path, baseline: Path, seen: PurePosixPath) -> Iterator[str]:
    """Removes new symbolic links that lead out of the checkout, which is seen at `seen`."""
    for path in sorted(checkout.rglob("*")):
        if not path.is_symlink():
            continue
        here = path.relative_to(checkout)
        before, target = baseline / here, path.readlink()
        if before.is_symlink() and before.readlink() == target:
            continue
        reached = os.path.normpath(os.path.join(seen, here.parent, target))  # noqa: PTH118
        if not PurePosixPath(reached).is_relative_to(seen) or climbs(str(target)):
            if ".git" in here.parts:  # which nothing is restored into
                path.unlink()
            else:
                git.restore(checkout, here.as_posix(), baseline)
            yield f"{here}: a link that leaves {seen}"


def _below(tree: Path) -> Iterator[tuple[Path, Path]]:
    """Entries of a checkout outside of repositories, with their paths. Entries removed meanwhile are left out."""
    for path in sorted(tree.rglob("*")):
        here = path.relative_to(tree)
        if ".git" not in here.parts and (path.exists() or path.is_symlink()):
            yield path, here


def _is_settings(path: Path) -> bool:
    return path.name in SETTINGS


def _same(path: Path, before: Path) -> bool:
    """Whether a file says the same to pytest as it did."""
    if path.is_symlink() or before.is_symlink() or not path.is_file():
        return False
    if not before.is_file():
        return path.name in _SHARED_SETTINGS and _section(path) is None
    if path.read_bytes() == before.read_bytes():
        return True
    return path.name in _SHARED_SETTINGS and _section(path) == _section(before) != "unreadable"


def _section(path: Path) -> object:
    """The pytest section of a file that is shared with other tools, or None if it has none.

    Of an ini file that is its text from each line on that may begin pytest's section, as parsers of such files differ.
    """
    name = _SHARED_SETTINGS[path.name]
    try:
        text = path.read_text("utf-8")
        if path.suffix == ".toml":
            return tomllib.loads(text).get("tool", {}).get(name)
    except (OSError, ValueError, AttributeError):
        return "unreadable"
    parts = re.split(r"^(?=\[)", "\n".join(text.splitlines()), flags=re.MULTILINE)
    return [part.strip() for part in parts if re.match(rf"\[\W*{name}", part)] or None


def _searched(scripts: Iterable[Script]) -> set[PurePosixPath]:
    """The folders of a checkout that modules may be imported from."""
    found = {PurePosixPath(), PurePosixPath("src"), PurePosixPath("lib")}
    for script in scripts:
        found |= {*PurePosixPath(script.path).parents}
    return found


def _shadows(checkout: Path, baseline: Path, folder: PurePosixPath) -> Iterator[str]:
    place = checkout / folder
    if place.is_symlink() or not place.is_dir():
        return
    for path in sorted(place.iterdir()):
        name = path.name.partition(".")[0]
        why = _reason(path, name)
        if (
            why
            and not _names(baseline / folder, name) & {path.name, name, f"{name}.py"}
            and path.name != "__init__.py"
        ):
            _remove(path)
            yield f"{(folder / path.name)}: {why}"


def _reason(path: Path, name: str) -> str:
    if path.name.endswith(_INSTALLED):
        return "would be taken for an installed package"
    if not (path.is_symlink() or _is_package(path) or path.suffix in _CODE):
        return ""
    if name in _OF_PYTEST:
        return "shadows pytest"
    if name in _OF_SITE:
        return "customises the interpreter"
    return "shadows the standard library" if name in sys.stdlib_module_names else ""


def _is_package(path: Path) -> bool:
    """Whether a folder would be imported in place of an installed module: without __init__ that one goes first."""
    return path.is_dir() and any(
        each.name.partition(".")[0] == "__init__" for each in path.iterdir()
    )


def _names(folder: Path, name: str) -> set[str]:
    return (
        {path.name for path in folder.iterdir() if path.name.partition(".")[0] == name}
        if folder.is_dir()
        else set()
    )


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
