"""The file trees that commands see, made as the root of their mount namespace: this machine's, or an image's."""

from __future__ import annotations

import os
import stat

from koderz.sandbox.linux import kernel
from koderz.sandbox.linux.mounts import STAGE, make_read_only, stage

TYPE_CHECKING = False  # which process 1 of a sandbox would wait for
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "fd/0",
    "stdout": "fd/1",
    "stderr": "fd/2",
    "ptmx": "pts/ptmx",
}
# of /proc: may be writable for the machine's root
_OF_THE_HOST = ("sys", "sysrq-trigger", "irq", "bus")
_SHARED_MEMORY = 256 << 20  # bytes of /dev/shm
_RESERVED = 300  # process ids that the kernel gives out no second time
_MOST_LINKS = 40  # that are followed for one path, as by the kernel
_OPAQUE = "user.overlay.opaque"


class Entry:
    """An entry of the tree of a command."""

    def __init__(self, kind: str, source: str, target: str) -> None:
        # "read", "write": the host's `source`; "link": a symbolic link to `source`
        self.kind = kind
        self.source, self.target = source, target


def furnish(entries: Iterable[Entry], processes: int) -> None:
    """Makes the tree of a command the root of this mount namespace. Raises OSError if the kernel refuses."""
    stage()
    for entry in entries:
        _place(entry, STAGE + entry.target)
    _make_devices(f"{STAGE}/dev")
    _make_processes(f"{STAGE}/proc", processes)
    kernel.change_root(STAGE)
    make_read_only("/", recursive=False)


def furnish_image(
    overlay: Sequence[str],
    hosted: Sequence[Sequence[str]],
    entries: Iterable[Entry],
    processes: int,
    needed: Iterable[str],
) -> list[str]:
    """Makes an image, and over it a folder that takes what is changed, the root of this mount namespace.

    `overlay`: the image's folders, the topmost first, that folder, and an empty one beside it; `hosted`: the same of
    folders of this machine in the root, each after its path. Returns the paths in the root that had to be made as mount
    points, and for the `needed` folders. Raises OSError if the kernel refuses.
    """
    kernel.mount(None, "/", kernel.MS_PRIVATE | kernel.MS_REC)
    made: list[str] = []
    _overlay(overlay, STAGE, is_copied=not hosted)
    for path, *own in hosted:
        _overlay(own, mount_point(path, made))
    devices = mount_point("/dev", made)
    # what is written there is memory
    kernel.mount("none", devices, kind="tmpfs", data="mode=755,size=1m,nr_inodes=1k")
    _fill_devices(devices)
    kernel.mount("proc", proc := mount_point("/proc", made), kind="proc")
    _restrict_processes(proc, processes)
    for entry in entries:
        _bind(entry, mount_point(entry.target, made, is_folder=os.path.isdir(entry.source)))
    for folder in needed:
        mount_point(folder, made)
    kernel.change_root(STAGE)
    return made


def _overlay(folders: Sequence[str], place: str, *, is_copied: bool = False) -> None:
    """Mounts folders over each other; with `is_copied` a copy of all in the upper one where the kernel refuses."""
    *lower, upper, work = map(_escaped, folders)
    data = f"lowerdir={':'.join(lower)},upperdir={upper},workdir={work},userxattr"
    try:
        # as a kernel left it that refused, since nothing else may read it
        if is_copied and _is_whole(folders[-2]):
            raise OSError(0, "")
        kernel.mount(
            "overlay", place, kernel.MS_NOSUID | kernel.MS_NODEV, kind="overlay", data=data
        )
    except OSError as error:
        if is_copied and _copy(folders[:-2], folders[-2]):
            kernel.mount(folders[-2], place, kernel.MS_BIND)
            return
        why = f"overlayfs refuses {folders[-2]}: {error.strerror}; TMPDIR names a folder on another disk"
        raise OSError(error.errno, why) from None


def _copy(lower: Sequence[str], upper: str) -> bool:
    """Copies folders into the one that takes what is changed, unless it has all already. False where that fails.

    It is marked as one through which nothing of the others shows.
    """
    if _is_whole(upper):
        return True
    for folder in reversed(lower):
        words = ["cp", "-a", "--reflink=auto", "--no-preserve=ownership", f"{folder}/.", upper]
        if os.spawnvp(os.P_WAIT, "cp", words):  # noqa: S606 a shell would do no more
            return False
    os.setxattr(upper, _OPAQUE, b"y")
    return True


def _is_whole(folder: str) -> bool:
    try:
        return os.getxattr(folder, _OPAQUE) == b"y"
    except OSError:
        return False


def mount_point(path: str, made: list[str], *, is_folder: bool = True) -> str:
    """The place of a path of the image's root, below `STAGE`; what is missing is made, and added to `made`.

    Links are followed as from within that root. What is no folder and has to be one is moved aside, and the other way
    round, so that no command prevents the mounts of the next.
    """
    place, rest, links = STAGE, _parts(path), 0
    while rest:
        name = rest.pop()
        if name == "..":
            place = os.path.dirname(place) if place != STAGE else place
            continue
        here = f"{place}/{name}"
        mode = os.lstat(here).st_mode if os.path.lexists(here) else 0
        if stat.S_ISLNK(mode) and links < _MOST_LINKS:
            target, links = os.readlink(here), links + 1
            place = STAGE if target.startswith("/") else place
            rest += _parts(target)
            continue
        folder = is_folder or bool(rest)
        if mode and stat.S_ISDIR(mode) != folder:
            os.rename(here, f"{here}.aside-{os.urandom(4).hex()}")
            mode = 0
        if not mode:
            os.mkdir(here) if folder else os.close(
                os.open(here, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o444)
            )
            made.append(here[len(STAGE) :])
        place = here
    return place


def _parts(path: str) -> list[str]:
    """The names in a path, the last one first."""
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def _escaped(path: str) -> str:
    """A path as a word of the options of overlayfs."""
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")


def bubblewrap(program: str, entries: Iterable[Entry]) -> list[str]:
    """The tree as the beginning of a bubblewrap command line; process 1 follows it."""
    return [
        *(
            program,
            "--unshare-user",
            "--unshare-pid",
            "--unshare-net",
            "--unshare-ipc",
            "--unshare-uts",
        ),
        *("--uid", "65534", "--gid", "65534", "--as-pid-1", "--die-with-parent", "--clearenv"),
        *(word for entry in entries for word in _words(entry)),
        *("--proc", "/proc", "--dev", "/dev", "--size", str(_SHARED_MEMORY), "--tmpfs", "/dev/shm"),  # noqa: S108
        *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/", "--"),
    ]


def _words(entry: Entry) -> Iterator[str]:
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
    _bind(entry, place)


def _bind(entry: Entry, place: str) -> None:
    kernel.mount(entry.source, place, kernel.MS_BIND | kernel.MS_REC)
    if entry.kind == "read":
        make_read_only(place)


def _make_devices(folder: str) -> None:
    os.mkdir(folder)
    _fill_devices(folder)


def _fill_devices(folder: str) -> None:
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
    _restrict_processes(folder, processes)


def _restrict_processes(folder: str, processes: int) -> None:
    _limit(folder, processes)
    for name in _OF_THE_HOST:
        place = f"{folder}/{name}"
        if os.path.exists(place):
            kernel.mount(place, place, kernel.MS_BIND | kernel.MS_REC)
            make_read_only(place)


def _limit(processes_folder: str, processes: int) -> None:
    try:
        with open(f"{processes_folder}/sys/kernel/pid_max", "w") as limit:
            limit.write(str(_RESERVED + processes))
    except OSError:  # before Linux 6.14 it is the machine's, and refused
        return
