"""Images by name: whether they are to be had, and how docker is let at those that aren't public."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from koderz.sandbox.workspace.folders import scratch

USER, PASSWORD = "DOCKER_USERNAME", "DOCKER_PASSWORD"

_HUB = "https://index.docker.io/v1/"
_STORES = ("credsStore", "credHelpers")  # which docker would ask before it looks at what is written here


@contextmanager
def configuration(environ: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """The words by which docker takes DOCKER_USERNAME and DOCKER_PASSWORD; none where they aren't both set.

    They are written to a folder that is gone afterwards; the user's own login stays as it is.
    """
    if not (environ.get(USER) and environ.get(PASSWORD)):
        yield ()
        return
    own = Path(environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    with scratch() as folder:
        for path in own.iterdir() if own.is_dir() else ():
            if path.name != "config.json":
                (folder / path.name).symlink_to(path.absolute())
        try:
            told = json.loads((own / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            told = {}
        known = {name: value for name, value in told.items() if name not in _STORES}
        secret = base64.b64encode(f"{environ[USER]}:{environ[PASSWORD]}".encode()).decode()
        written = folder / "config.json"
        written.touch(mode=0o600)
        written.write_text(json.dumps({**known, "auths": {**told.get("auths", {}), _HUB: {"auth": secret}}}))
        yield ("--config", str(folder))
