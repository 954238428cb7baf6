"""Run as a script: makes a folder the root of everything, with other folders bound into it, and becomes a program.

The folder then has what the container has and nothing else: the mounted files at their places, the volumes at theirs.
The program ends with whoever started it, however that ends.
It keeps honest, it doesn't contain: whoever needs containment has `koderz.sandbox`.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import sys
from pathlib import Path

_NEW_MOUNTS, _NEW_USER, _NEW_PROCESSES, _NEW_NETWORK = 0x00020000, 0x10000000, 0x20000000, 0x40000000
_SET_FLAGS, _UP = 0x8914, 1  # of a network's interface
_DIE_WITH_PARENT = 1
_BIND, _RECURSIVE, _PRIVATE, _REMOUNT, _READ_ONLY = 4096, 16384, 1 << 18, 32, 1
_LOCKED = os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text())
    _unshare((0 if spec["network"] else _NEW_NETWORK) | (_NEW_PROCESSES if spec["apart"] else 0))
    if not spec["network"]:
        with socket.socket() as any_socket:
            fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP))
    if spec["apart"]:
        _become_the_first()
    root = Path(spec["root"])
    for source, target in spec["binds"]:
        if spec["apart"] and source == "/proc":
            (root / "proc").mkdir(exist_ok=True)
            _checked(_libc().mount(b"proc", str(root / "proc").encode(), b"proc", 0, None), "mount of /proc")
        else:
            _bind(Path(source), root / target.lstrip("/"), read_only=target in spec["read_only"])
    os.chroot(root)
    os.makedirs(spec["folder"], exist_ok=True)  # noqa: PTH103  # of the new root, which pathlib says no better
    os.chdir(spec["folder"])
    _libc().prctl(_DIE_WITH_PARENT, signal.SIGKILL)  # last, since whoever changes its rights loses this
    os.execvp(spec["command"][0], spec["command"])


def _unshare(more: int) -> None:
    user, group = os.getuid(), os.getgid()
    many = more & _NEW_PROCESSES and user == 0  # whose processes may become other users, which needs help from outside
    helper, done = _map_from_outside() if many else (0, 0)
    _checked(_libc().unshare(_NEW_MOUNTS | _NEW_USER | more), "unshare")
    if many:
        os.close(done)
        os.waitpid(helper, 0)
    else:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _mount("none", "/", _RECURSIVE | _PRIVATE)


def _map_from_outside() -> tuple[int, int]:
    """A process that maps the users of this one once the descriptor is closed, and the descriptor."""
    waiting, done = os.pipe()
    helper = os.fork()
    if helper:
        os.close(waiting)
        return helper, done
    os.close(done)
    os.read(waiting, 1)
    for kind in ("uid", "gid"):
        Path(f"/proc/{os.getppid()}/{kind}_map").write_text("0 0 65536")
    os._exit(0)


def _become_the_first() -> None:
    """Goes on as the first process of the new namespace; this one ends as that does."""
    child = os.fork()
    if child:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code < 0:
            os.kill(os.getpid(), -code)
        os._exit(code)
    _libc().prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def _bind(source: Path, target: Path, *, read_only: bool) -> None:
    if source.is_symlink():
        with contextlib.suppress(FileExistsError):  # another command was here before
            target.symlink_to(source.readlink())
        return
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    _mount(str(source), str(target), _BIND | _RECURSIVE)
    if read_only:
        kept = os.statvfs(target).f_flag & _LOCKED
        _mount("none", str(target), _BIND | _REMOUNT | _READ_ONLY | kept)


def _mount(source: str, target: str, flags: int) -> None:
    _checked(_libc().mount(source.encode(), target.encode(), None, flags, None), f"mount of {source}")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


if __name__ == "__main__":
    main()
