"""Landlock: limits a candidate to files that it may read (https://docs.kernel.org/userspace-api/landlock.html).

The same system call numbers and bits on every architecture.
"""

from __future__ import annotations

import os
import stat
import struct

from koderz.sandbox.linux import kernel

TYPE_CHECKING = False  # which process 1 of a sandbox would wait for
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION = 1
_PATH_BENEATH = 1
_RULE = struct.Struct("=Qi")  # rights, descriptor

_EXECUTE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 2, 1 << 3
_OF_FILES = (
    _EXECUTE | 1 << 1 | _READ_FILE | 1 << 14 | 1 << 15
)  # what a rule for a file may give: also write, cut, ioctl
_FILE_RIGHTS = (0, 13, 14, 15, 15, 16)  # how many kinds of access to files each version can refuse
_TCP_BIND_AND_CONNECT = 0b11  # from version 4
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11  # from version 6


def restrict(
    readable: Iterable[str],
    *,
    executable: Iterable[str] = (),
    writable: Iterable[str] | None = None,
) -> None:
    """Allows this process and its children only to read `readable`. Raises OSError if the kernel lacks Landlock.

    What is `executable` may be read and run, what is `writable` used in any way; with it, TCP is left alone.
    """
    offered = kernel.syscall(_CREATE_RULESET, None, 0, _ASK_VERSION)
    kernel.forgo_privileges()
    every = (1 << _FILE_RIGHTS[min(offered, len(_FILE_RIGHTS) - 1)]) - 1
    ruleset = _ruleset(offered, every, tcp=writable is not None)
    reading = _READ_FILE | _READ_DIR
    rule = bytearray(_RULE.size)  # one for all of them: there are many files
    add = kernel.prepared_syscall(_ADD_RULE, ruleset, _PATH_BENEATH, kernel.pointer_into(rule), 0)
    try:
        for paths, rights in (
            (readable, reading),
            (executable, reading | _EXECUTE),
            (writable or (), every),
        ):
            for path in paths:
                _allow(path, rights, rule, add)
        kernel.syscall(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _ruleset(offered: int, files: int, *, tcp: bool) -> int:
    words = [files]
    if offered >= 4:
        words.append(0 if tcp else _TCP_BIND_AND_CONNECT)
    if offered >= 6:
        words.append(_ABSTRACT_SOCKETS_AND_SIGNALS)
    attributes = struct.pack(f"={len(words)}Q", *words)
    return kernel.syscall(_CREATE_RULESET, kernel.pointer_to(attributes), len(attributes), 0)


def _allow(path: str, rights: int, rule: bytearray, add: Callable[[], int]) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # what isn't there, or isn't ours to read, needs no permission
        return
    try:
        directory = stat.S_ISDIR(os.fstat(opened).st_mode)
        _RULE.pack_into(rule, 0, rights if directory else rights & _OF_FILES, opened)
        add()
    finally:
        os.close(opened)
