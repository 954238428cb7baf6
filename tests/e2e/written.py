"""What a command has written into a folder, also where it is compressed or lies in a database."""

from __future__ import annotations

import base64
import gzip
import json
import re
import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq


def written(folder: Path) -> Iterator[tuple[Path, str]]:
    """Every file but those of caches and installed packages, as text."""
    for path in folder.rglob("*"):
        if not path.is_file() or "site" in path.parts or "cache" in path.relative_to(folder).parts:
            continue
        yield path, path.read_bytes().decode("utf-8", "replace")
        if path.suffix == ".gz":
            yield path, gzip.decompress(path.read_bytes()).decode("utf-8", "replace")
        elif path.suffix == ".parquet":
            yield path, json.dumps(pq.read_table(path).to_pylist())
        elif path.suffix == ".html":
            for block in re.findall(r"[A-Za-z0-9+/]{100,}={0,2}", path.read_text()):
                if block.startswith("eN"):
                    yield path, zlib.decompress(base64.b64decode(block)).decode()
        elif path.suffix == ".db":
            with sqlite3.connect(path) as store:
                yield path, "\n".join(store.iterdump())
