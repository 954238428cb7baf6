"""Namespaces for a zygote: no network, no foreign processes, no shared memory, and few files."""

from __future__ import annotations

import os

from koderz.sandbox.linux import kernel

TYPE_CHECKING = False  # which process 1 of a sandbox would wait for
if TYPE_CHECKING:
    from collections.abc import Callable

_NEW_USER, _NEW_PID, _NEW_NET = 0x10000000, 0x20000000, 0x40000000
_NEW_IPC, _NEW_UTS, _NEW_MOUNTS = 0x08000000, 0x04000000, 0x00020000
_NOBODY = 65534
_KILL = 9
_DESCRIPTORS = 1024  # far more than a process has that has just begun


def enter(furnish: Callable[[], object] | None, user: int = _NOBODY, group: int = _NOBODY) -> None:
    """Continues as process 1 of new namespaces, without capabilities, and as nobody or as `user` and `group`.

    `furnish` runs there while it still has them, to make the file tree that is seen (see `mounts`). None leaves it all
    files, for systems that refuse mounts. The process that called stays behind as an empty stub, which ends with the
    new one and holds no descriptor. OSError when the kernel refuses, after which the process isn't fit for anything
    else: try in a child first (`support.available`).
    """
    own_user, own_group = os.getuid(), os.getgid()
    kernel.unshare(
        _NEW_USER | _NEW_PID | _NEW_NET | _NEW_IPC | _NEW_UTS | (_NEW_MOUNTS if furnish else 0)
    )
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{user} {own_user} 1")
    _write("/proc/self/gid_map", f"{group} {own_group} 1")
    inner = os.fork()
    if inner:
        _stay_behind(inner)
    if furnish:
        furnish()
    kernel.bound_capabilities()
    kernel.drop_capabilities()
    kernel.die_with_parent()


def sweep() -> None:
    """Ends and reaps all other processes of this namespace; to be called from its first process."""
    try:
        while True:
            os.kill(-1, _KILL)
            os.waitpid(-1, 0)
    except (ProcessLookupError, ChildProcessError):
        return


def _write(path: str, text: str) -> None:
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


def _stay_behind(inner: int) -> None:
    os.closerange(0, _DESCRIPTORS)
    _, status = os.waitpid(inner, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
