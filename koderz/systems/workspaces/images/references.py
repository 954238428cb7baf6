"""Names of images, as docker resolves them."""

from __future__ import annotations

import re
from typing import NamedTuple

from koderz.errors import KoderzError

_HUB = "docker.io"
_PATH = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_DOMAIN = r"(?:[a-zA-Z0-9-]+(?:\.[a-zA-Z0-9-]+)*)(?::\d+)?"
_REFERENCE = re.compile(
    rf"(?:(?P<domain>{_DOMAIN})/)?(?P<path>{_PATH}(?:/{_PATH})*)(?::(?P<tag>\w[\w.-]{{0,127}}))?"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?",
    re.ASCII,
)
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class Reference(NamedTuple):
    """An image's whole name."""

    repository: str  # docker.io/library/ubuntu
    tag: str = ""  # empty where a digest stands alone
    digest: str = ""  # sha256:…

    def __str__(self) -> str:
        return (
            self.repository
            + (f":{self.tag}" if self.tag else "")
            + (f"@{self.digest}" if self.digest else "")
        )


def parse_reference(name: str) -> Reference:
    """The whole name: `ubuntu` is docker.io/library/ubuntu:latest. Raises KoderzError for what is none."""
    if DIGEST.fullmatch(name):
        return Reference("", digest=name)
    if not (found := _REFERENCE.fullmatch(name)):
        raise KoderzError(f"{name[:200]!r} is no name of an image, such as ubuntu:24.04")
    domain, path = found["domain"] or "", found["path"]
    if domain and not ("." in domain or ":" in domain or domain == "localhost"):
        domain, path = "", f"{domain}/{path}"
    if domain in ("", "index.docker.io"):
        domain = _HUB
    if domain == _HUB and "/" not in path:
        path = f"library/{path}"
    digest = found["digest"] or ""
    return Reference(f"{domain}/{path}", found["tag"] or ("" if digest else "latest"), digest)
