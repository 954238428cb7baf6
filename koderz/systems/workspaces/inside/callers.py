"""The processes of a verifier as its listener sees them: their memory, their state, and who belongs to whom."""

from __future__ import annotations

import ctypes
import errno
import os
import select
import struct

from koderz.sandbox.linux import kernel

TYPE_CHECKING = False  # which process 1 of a sandbox would wait for
if TYPE_CHECKING:
    from collections.abc import Iterator

_LONGEST_PATH, _LONGEST_WORD, _MOST_WORDS, _PAGE = 4096, 1 << 17, 64, 4096
_OPENAT2 = 437
_RENAMEAT2 = {"x86_64": 316, "aarch64": 276}


AT_CWD = -100

Call = tuple[int, int, tuple[int, ...]]  # the notice's id, the thread, the arguments


class Refusal(Exception):
    """A call fails with this number."""

    def __init__(self, number: int, what: str = "") -> None:
        super().__init__(number, what)
        self.number, self.what = number, what


class Process:
    """A process that has made a call, and what is known of it."""

    def __init__(self, number: int, parent: Process | None, *, is_verifier: bool) -> None:
        self.number = number
        self.judged: bool = not is_verifier and (parent is None or parent.judged)
        self.tainted: bool = bool(parent and parent.tainted)
        self.parent = parent
        self.reads = False  # whether it has read a file of the agent's, see `flows`
        self.hears = False  # whether it has been told of one
        self.input = ""  # what its standard input is, as /proc names it
        self.runs = ""  # the same of what it takes its script from, where that is no file
        self.texts: list[str] = []  # the files of its script
        self.text = ""  # the script that it was given as a word
        self.is_of_tests = False  # whether it has read one of the tests
        self.includes = False  # whether it compiles a file of the agent's, before any of the tests
        self.made: set[str] = set()  # the files that it has made before it read one
        self._handle = os.pidfd_open(number)
        self._poll = select.poll()
        self._poll.register(self._handle, select.POLLIN)

    @property
    def is_alive(self) -> bool:
        return not self._poll.poll(0)

    def close(self) -> None:
        os.close(self._handle)


_libc = ctypes.CDLL(None, use_errno=True)
_buffer = ctypes.create_string_buffer(_PAGE)


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


_here, _there = _Vector(ctypes.addressof(_buffer), 0), _Vector(0, 0)
_read_vectors = _libc.process_vm_readv
_read_vectors.argtypes = (ctypes.c_int, *(ctypes.c_void_p, ctypes.c_ulong) * 2, ctypes.c_ulong)
_read_vectors.restype = ctypes.c_ssize_t
_HERE, _THERE = ctypes.addressof(_here), ctypes.addressof(_there)


def read(thread: int, address: int, size: int) -> bytes:
    """Up to `size` bytes of a thread's memory. Raises OSError."""
    _here.length = _there.length = size
    _there.base = address
    count = _read_vectors(thread, _HERE, 1, _THERE, 1, 0)
    if count < 0:
        raise OSError(ctypes.get_errno() or errno.EFAULT, "memory")
    return _buffer.raw[:count] if count > 256 else ctypes.string_at(_buffer, count)


def read_text(thread: int, address: int, most: int = 0) -> bytes:
    """A text that ends with a zero. Raises OSError if it is longer than a path; with `most`, it is cut there."""
    found = b""
    while len(found) < (most or _LONGEST_PATH):
        part = read(thread, address + len(found), min(256, _PAGE - (address + len(found)) % _PAGE))
        head, end, _ = part.partition(b"\0")
        found += head
        if end:
            return found
    if most:
        return found
    raise OSError(errno.ENAMETOOLONG, "path")


def read_words(thread: int, address: int) -> list[str]:
    """The words of a command."""
    words: list[str] = []
    while address and len(words) < _MOST_WORDS:
        pointer = int.from_bytes(read(thread, address + 8 * len(words), 8), "little")
        if not pointer:
            break
        words.append(os.fsdecode(read_text(thread, pointer, _LONGEST_WORD)))
    return words


def status(thread: int) -> dict[str, str]:
    with open(f"/proc/{thread}/status", "rb") as file:
        text = file.read(1024)
    return {
        name.decode(): value.strip().decode()
        for name, _, value in (each.partition(b":") for each in text.splitlines()[:12])
    }


def descriptor(thread: int, number: int) -> str:
    """The file that a thread's descriptor is open on, as /proc names it; empty if it has ended, or has none."""
    try:
        return os.readlink(f"/proc/{thread}/fd/{number}")
    except OSError:
        return ""


def descriptors(thread: int) -> list[int]:
    """The descriptors that a thread has open; none if it has ended."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{thread}/fd")]
    except OSError:
        return []


def identity(path: str) -> tuple[int, int]:
    """The device and the number of a file; zeros if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


def is_written(thread: int, number: int) -> bool:
    """Whether a thread's descriptor is open for writing."""
    try:
        with open(f"/proc/{thread}/fdinfo/{number}") as lines:
            found = [int(line.split()[1], 8) for line in lines if line.startswith("flags:")]
    except OSError:
        return False
    return bool(found) and found[0] & os.O_ACCMODE != os.O_RDONLY


def program(process: int) -> str:
    """The program that a process runs; empty if it has ended."""
    try:
        return os.readlink(f"/proc/{process}/exe")
    except OSError:
        return ""


def umask(thread: int) -> int:
    return int(status(thread).get("Umask", "22"), 8)


def open_2(folder: int, path: str, flags: int, mode: int, resolve: int) -> int:
    """Calls openat2(2). Raises OSError."""
    how = kernel.pointer_to(struct.pack("=3Q", (flags | os.O_CLOEXEC) & 0xFFFFFFFF, mode, resolve))
    return kernel.syscall(_OPENAT2, folder, kernel.pointer_to(os.fsencode(path) + b"\0"), how, 24)


def rename(flags: int, source: int, name: str, target: int, other: str) -> None:
    """Calls renameat2(2). Raises OSError."""
    words = [kernel.pointer_to(os.fsencode(each) + b"\0") for each in (name, other)]
    kernel.syscall(_RENAMEAT2[os.uname().machine], source, words[0], target, words[1], flags)


def members(group: int) -> Iterator[int]:
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            try:
                if os.getpgid(int(name)) == group:
                    yield int(name)
            except OSError:
                continue


def unix_sockets(name: str) -> list[str]:
    """The numbers of the sockets that listen under a name."""
    with open("/proc/net/unix") as lines:
        rows = [line.split() for line in lines]
    return [
        row[6]
        for row in rows
        if len(row) > 7 and os.path.basename(row[7]) == os.path.basename(name)
    ]


def holders(inode: str) -> Iterator[int]:
    for name in os.listdir("/proc"):
        if not name.isdigit() or name == "1":
            continue
        try:
            if any(
                os.readlink(each.path) == f"socket:[{inode}]"
                for each in os.scandir(f"/proc/{name}/fd")
            ):
                yield int(name)
        except OSError:
            continue
