"""What a candidate may read, and nothing else: the kernel's Landlock (https://docs.kernel.org/userspace-api/landlock.html).

The same system call numbers and bits on every architecture.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable

from koderz.sandbox.linux import kernel

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION = 1
_PATH_BENEATH = 1

_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_FILE_RIGHTS = (0, 13, 14, 15, 15, 16)  # how many kinds of access to files each version can refuse
_TCP_BIND_AND_CONNECT = 0b11  # from version 4
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11  # from version 6


def version() -> int:
    """What the running kernel offers. OSError where it offers nothing."""
    return kernel.syscall(_CREATE_RULESET, None, 0, _ASK_VERSION)


def restrict(readable: Iterable[str]) -> int:
    """Leaves this process, and all it will start, the reading of `readable`. Returns the version in use."""
    offered = version()
    kernel.forgo_privileges()
    ruleset = _ruleset(offered)
    try:
        for path in readable:
            _allow_reading(ruleset, path)
        kernel.syscall(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    return offered


def _ruleset(offered: int) -> int:
    files = (1 << _FILE_RIGHTS[min(offered, len(_FILE_RIGHTS) - 1)]) - 1
    words = [files]
    if offered >= 4:
        words.append(_TCP_BIND_AND_CONNECT)
    if offered >= 6:
        words.append(_ABSTRACT_SOCKETS_AND_SIGNALS)
    attributes = struct.pack(f"={len(words)}Q", *words)
    return kernel.syscall(_CREATE_RULESET, kernel.pointer_to(attributes), len(attributes), 0)


def _allow_reading(ruleset: int, path: str) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # what isn't there, or isn't ours to read, needs no permission
        return
    try:
        directory = stat.S_ISDIR(os.fstat(opened).st_mode)
        rights = _READ_FILE | _READ_DIR if directory else _READ_FILE
        rule = struct.pack("=Qi", rights, opened)
        kernel.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, kernel.pointer_to(rule), 0)
    finally:
        os.close(opened)
