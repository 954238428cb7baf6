"""A build backend that needs no other package, so that everything can be installed without a network."""

from __future__ import annotations

import base64
import hashlib
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path.cwd()
_WHEEL = "Wheel-Version: 1.0\nGenerator: backend\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def build_wheel(folder: str, config_settings: Any = None, metadata_directory: Any = None) -> str:
    """Build the wheel."""
    return _koderz(folder, {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "koderz").rglob("*.py")})


def build_editable(folder: str, config_settings: Any = None, metadata_directory: Any = None) -> str:
    """Build a wheel that leads to this folder."""
    return _koderz(folder, {"koderz.pth": f"{ROOT}\n"})


def _koderz(folder: str, files: Mapping[str, str]) -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [f"Provides-Extra: {extra}" for extra in project["optional-dependencies"]]
    for extra, needed in project["optional-dependencies"].items():
        lines += [f'Requires-Dist: {each}; extra == "{extra}"' for each in needed]
    script = {f"koderz-{project['version']}.dist-info/entry_points.txt": "[console_scripts]\nkoderz = koderz:main\n"}
    return write_wheel(folder, "koderz", project["version"], {**files, **script}, lines)


def write_wheel(folder: str, name: str, version: str, files: Mapping[str, str], lines: list[str]) -> str:
    """Write a wheel of some files, with more lines of metadata; returns its name."""
    info = f"{name}-{version}.dist-info"
    metadata = "\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines, ""])
    files = {**files, f"{info}/METADATA": metadata, f"{info}/WHEEL": _WHEEL}
    record = [f"{path},sha256={_digest(text)},{len(text.encode())}\n" for path, text in files.items()]
    wheel = f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(Path(folder, wheel), "w") as archive:
        for path, text in {**files, f"{info}/RECORD": f"{''.join(record)}{info}/RECORD,,\n"}.items():
            archive.writestr(path, text)
    return wheel


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
