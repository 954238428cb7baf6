"""What RULER's own generators and metrics make: digests of rows, and of the lines of a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

COMMIT = "c3f5e3b"
"""Of github.com/NVIDIA/RULER (Apache-2.0), run with tokens = ceil(characters / 4) and wonderwords 3.0.1."""

ROWS: Mapping[tuple[str, int, int], list[str]] = {
    ("niah_single_1", 1024, 5): ["9063ea7407f8161a", "e8ebc9ff0bbeb730"],
    ("niah_multikey_2", 1024, 5): ["b01a3688f8ea4e97", "ec87dbc3387e5f77"],
    ("niah_multikey_3", 1024, 5): ["15f5de886b6ffe60", "2f5a64339a2ca224"],
    ("vt", 1024, 5): ["fb31a78e36ac3a4b", "3c8786c59d544dc9"],
    ("cwe", 1024, 5): ["f41de596619239b6", "595335aefd7222a7"],
    ("fwe", 1024, 5): ["51f922e0d88e5b9a", "cd5b3d65c38c3715"],
    ("niah_single_1", 8192, 5): ["93743c27c659a5ab", "511df87225d15405", "8672f568b65945c8"],
    ("niah_multikey_2", 8192, 5): ["bde38b8b80eeac9c", "b7c5a2dbd14452e0", "af49a96e12090161"],
    ("niah_multikey_3", 8192, 5): ["93380e8bdc730169", "65e8f01100b5f822", "2049be3c77d5e90a"],
    ("vt", 8192, 5): ["8b320d2987b5f673", "77c92cde2a98d356", "a70eb96d6847114f"],
    ("cwe", 8192, 5): ["41801e7cfc7a1672", "ee2fcf48e82d1c09", "f12141ffb0bf6eca"],
    ("fwe", 8192, 5): ["c812394423183622", "a94df82b15a92561", "7766a1ef072ce9ed"],
}
"""By task, length and seed: the first 16 hex digits of the SHA-256 of each line that a generator has written."""


def digest(row: Mapping[str, Any]) -> str:
    """Of a row as a line of its file, without the line's end."""
    return hashlib.sha256(json.dumps(row).encode()).hexdigest()[:16]
