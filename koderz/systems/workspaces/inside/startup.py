"""Files that programs of a verifier obey as they start, and those that stand in for what they would load otherwise."""

from __future__ import annotations

import os
import sys

_MODULES = (".py", ".so", ".pyc")
_OF_SITE = {"sitecustomize", "usercustomize"}
_OF_PYTEST = {
    "pytest",
    "_pytest",
    "pluggy",
    "iniconfig",
    "packaging",
    "pygments",
    "py",
    "exceptiongroup",
    "conftest",
}
_SETTINGS = {"pytest.ini", ".pytest.ini", "pytest.toml", "tox.ini", "setup.cfg", "pyproject.toml"}
_PACKAGES = ("/site-packages/", "/dist-packages/")
_INSTALLED = (
    "/usr/lib/python3*/*-packages",
    "/usr/local/lib/python3*/*-packages",
    "/opt/koderz/*",
    "/opt/koderz/*/*",
)


def is_obeyed(path: str, home: str, folder: str) -> bool:
    """Whether a program obeys or loads a file unasked: `home` is its user's, `folder` the one that it works in."""
    if home and path.startswith(f"{home}/."):
        return True
    if any(part in path for part in _PACKAGES) and path.endswith((*_MODULES, ".pth", ".txt")):
        return True
    name, above = os.path.basename(path), os.path.dirname(path)
    if name in _SETTINGS:
        return above == folder
    if not name.endswith(_MODULES):
        return False
    stem = name.partition(".")[0]
    if os.path.basename(above) == "__pycache__":
        above = os.path.dirname(above)
    if stem == "__init__":
        above, stem = os.path.split(above)
    return stem in _OF_SITE or (
        above == folder and (stem in sys.stdlib_module_names or _is_installed(stem))
    )


def _is_installed(stem: str) -> bool:
    import glob  # rarely needed, and slow to load

    return stem in _OF_PYTEST or any(
        os.path.exists(f"{folder}/{stem}{end}")
        for place in _INSTALLED
        for folder in glob.glob(place)
        for end in ("", ".py")
    )
