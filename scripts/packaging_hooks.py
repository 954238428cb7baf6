"""Hooks of the build: names of packages in the wheel, and the metadata that are made from the project's address."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"""(?P<before>\]\(<?|^\[[^\]\n]+\]:\ +|\b(?:src|srcset|href)=")(?P<path>[^)>"\s]+)""", re.MULTILINE)
_CODE = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
_ABSOLUTE = re.compile(r"#|[a-z]+:")
_PICTURES = (".svg", ".png", ".gif", ".webp", ".jpg")


class PackageNames(BuildHookInterface[Any]):
    """Put `tracker` into the wheel as `koderz_tracker`, and `tracker` beside it as a second name of the same modules.

    In a checkout the link `koderz_tracker` does this, and an editable installation finds it there.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files of both names."""
        if version == "standard":
            second = {f"tracker/{name}": f"tracker/{name}" for name in ("__init__.py", "py.typed")}
            build_data["force_include"] |= {"tracker": "koderz_tracker"} | second


class Addresses(MetadataHookInterface):
    """Make the project's URLs, and README as an index shows it, from the address in pyproject.toml."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add `urls` and `readme`."""
        address, tag = self.config["address"], f"v{metadata['version']}"
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["urls"] = urls_of(address, tag)
        metadata["readme"] = {"content-type": "text/markdown", "text": with_absolute_links(text, address, tag)}


def urls_of(address: str, tag: str) -> dict[str, str]:
    """The URLs that the metadata name, by their labels."""
    return {
        "Documentation": f"{address}/blob/{tag}/docs/index.md",
        "Source": address,
        "Changelog": f"{address}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{address}/issues",
    }


def with_absolute_links(text: str, address: str, tag: str) -> str:
    """The text of README with links and pictures that lead to the project's address from anywhere."""

    def whole(found: re.Match[str]) -> str:
        path = found["path"]
        kind = "raw" if path.endswith(_PICTURES) else "blob"
        return found[0] if _ABSOLUTE.match(path) else f"{found['before']}{address}/{kind}/{tag}/{path}"

    pieces = _CODE.split(text)
    pieces[::2] = [_LINK.sub(whole, piece) for piece in pieces[::2]]  # the others are code
    return "".join(pieces)
