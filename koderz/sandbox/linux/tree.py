"""The file tree of a command, built as the root of its mount namespace or described to bubblewrap."""

from __future__ import annotations

import os

from koderz.sandbox.linux import kernel, mounts

TYPE_CHECKING = False  # so that process 1 of a workspace starts at once, see `inside`
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"}
_OF_THE_HOST = ("sys", "sysrq-trigger", "irq", "bus")  # of /proc: may be writable for the machine's root
_SHARED_MEMORY = 256 << 20  # bytes of /dev/shm


class Entry:
    """An entry of the tree."""

    def __init__(self, kind: str, source: str, target: str) -> None:
        self.kind = kind  # "read", "write": the host's `source`; "link": a symbolic link to `source`
        self.source, self.target = source, target


def furnish(entries: Iterable[Entry], processes: int) -> None:
    """Makes the tree the root of this mount namespace. Raises OSError if the kernel refuses."""
    mounts.stage()
    for entry in entries:
        _place(entry, mounts.STAGE + entry.target)
    _make_devices(f"{mounts.STAGE}/dev")
    _make_processes(f"{mounts.STAGE}/proc", processes)
    kernel.change_root(mounts.STAGE)
    mounts.make_read_only("/", recursive=False)


def bubblewrap(program: str, entries: Iterable[Entry]) -> list[str]:
    """The tree as the beginning of a bubblewrap command line; process 1 follows it."""
    return [
        *(program, "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"),
        *("--uid", "65534", "--gid", "65534", "--as-pid-1", "--die-with-parent", "--clearenv"),
        *(word for entry in entries for word in _told(entry)),
        *("--proc", "/proc", "--dev", "/dev", "--size", str(_SHARED_MEMORY), "--tmpfs", "/dev/shm"),  # noqa: S108
        *("--remount-ro", "/", "--chdir", "/", "--"),
    ]


def _told(entry: Entry) -> Iterator[str]:
    yield {"read": "--ro-bind", "write": "--bind", "link": "--symlink"}[entry.kind]
    yield entry.source
    yield entry.target


def _place(entry: Entry, place: str) -> None:
    if entry.kind == "link":
        os.symlink(entry.source, place)
        return
    if os.path.isdir(entry.source):
        os.makedirs(place, exist_ok=True)
    elif not os.path.lexists(place):
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o444))
    kernel.mount(entry.source, place, kernel.MS_BIND | kernel.MS_REC)
    if entry.kind == "read":
        mounts.make_read_only(place)


def _make_devices(folder: str) -> None:
    os.mkdir(folder)
    for name in _DEVICES:
        _place(Entry("device", f"/dev/{name}", name), f"{folder}/{name}")
    for name, target in _LINKS.items():
        os.symlink(target, f"{folder}/{name}")
    for name in ("shm", "pts"):
        os.mkdir(f"{folder}/{name}")
    kernel.mount("none", f"{folder}/shm", kind="tmpfs", data=f"mode=1777,size={_SHARED_MEMORY}")
    kernel.mount("none", f"{folder}/pts", kind="devpts", data="newinstance,ptmxmode=0666,mode=620")


def _make_processes(folder: str, processes: int) -> None:
    """Mounts a view of this namespace's processes. If the kernel counts, their number is limited."""
    os.mkdir(folder)
    kernel.mount("proc", folder, kind="proc")
    _limit(folder, processes)
    for name in _OF_THE_HOST:
        place = f"{folder}/{name}"
        if os.path.exists(place):
            kernel.mount(place, place, kernel.MS_BIND | kernel.MS_REC)
            mounts.make_read_only(place)


def _limit(processes_folder: str, processes: int) -> None:
    try:
        with open(f"{processes_folder}/sys/kernel/pid_max", "w") as limit:
            limit.write(str(max(301, processes)))
    except OSError:  # before Linux 6.14 it is the machine's, and refused
        return
