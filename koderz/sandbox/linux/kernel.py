"""Linux system calls that the standard library doesn't offer.

Imported inside the workers, so this module and its siblings there use the standard library only.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

TYPE_CHECKING = False  # which process 1 of a sandbox would wait for
if TYPE_CHECKING:
    from collections.abc import Callable

LINUX = sys.platform == "linux"

PR_SET_PDEATHSIG = 1
PR_GET_DUMPABLE, PR_SET_DUMPABLE = 3, 4
PR_SET_SECCOMP = 22
PR_CAPBSET_READ, PR_CAPBSET_DROP = 23, 24
PR_SET_NO_NEW_PRIVS = 38

MS_NOSUID, MS_NODEV = 1 << 1, 1 << 2
MS_BIND, MS_REC, MS_PRIVATE = 1 << 12, 1 << 14, 1 << 18
_MNT_DETACH = 2

_CAPABILITY_VERSION_3 = 0x20080522

_EVENT_SIZE, _EVENT_OF_SOFTWARE, _EVENT_TASK_CLOCK, _EVENT_CLOSE_ON_EXEC = 128, 1, 1, 8
# off until exec, inherited, without the kernel's own events
_EVENT_FLAGS = 1 | 1 << 1 | 1 << 5 | 1 << 6 | 1 << 12

_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}  # the numbers of the call

_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, argument: int) -> None:
    """Calls prctl. Raises OSError if the kernel refuses."""
    _checked(prepared_prctl(option, argument)(), "prctl")


def prepared_prctl(
    option: int, argument: int, pointer: ctypes.c_void_p | None = None
) -> Callable[[], int]:
    """A prctl call prepared in advance, for code in which each touched page of memory costs. Returns 0 on success."""
    words = option, ctypes.c_long(argument), pointer, None, None
    return lambda: int(_libc.prctl(*words))


def syscall(number: int, *arguments: int | ctypes.c_void_p | None) -> int:
    """Makes a system call by its number; pointers are `c_void_p`. Raises OSError if the kernel refuses."""
    return prepared_syscall(number, *arguments)()


def prepared_syscall(number: int, *arguments: int | ctypes.c_void_p | None) -> Callable[[], int]:
    """A system call prepared in advance, to be made often. The data behind its pointers may change in between."""
    words = ctypes.c_long(number), *map(_word, arguments)
    return lambda: _checked(_libc.syscall(*words), f"system call {number}")


def unshare(flags: int) -> None:
    _checked(_libc.unshare(flags), "unshare")


def mount(
    source: str | None,
    target: str,
    flags: int = 0,
    *,
    kind: str | None = None,
    data: str | None = None,
) -> None:
    """Calls mount(2). Raises OSError if the kernel refuses."""
    *words, options = [word and os.fsencode(word) for word in (source, target, kind, data)]
    _checked(_libc.mount(*words, ctypes.c_ulong(flags), options), f"mount {target}")


def change_root(folder: str) -> None:
    """Makes a mount point the root of this mount namespace, and detaches the old root."""
    os.chdir(folder)
    _checked(_libc.pivot_root(b".", b"."), "pivot_root")
    _checked(_libc.umount2(b".", _MNT_DETACH), "umount")
    os.chdir("/")


def pointer_to(data: bytes) -> ctypes.c_void_p:
    """The address of a copy of `data`, which lives as long as the pointer does."""
    return pointer_into(bytearray(data))


def pointer_into(data: bytearray) -> ctypes.c_void_p:
    """The address of `data` itself, which can't grow while the pointer lives."""
    buffer = (ctypes.c_char * len(data)).from_buffer(data)
    return ctypes.cast(buffer, ctypes.c_void_p)  # which keeps the buffer


def count_cpu() -> int:
    """A descriptor that reads the CPU of all processes that the caller starts from now on: nanoseconds, as 8 bytes.

    A process counts from its first exec on, and all below it, also after they have ended and whether or not anybody
    waited for them. The caller itself doesn't. OSError when the kernel refuses, as some let root alone do this.
    """
    attributes = bytearray(_EVENT_SIZE)
    struct.pack_into("=IIQ", attributes, 0, _EVENT_OF_SOFTWARE, _EVENT_SIZE, _EVENT_TASK_CLOCK)
    struct.pack_into("=Q", attributes, 40, _EVENT_FLAGS)
    number = _PERF_EVENT_OPEN.get(os.uname().machine, -1)
    return syscall(number, pointer_into(attributes), 0, -1, -1, _EVENT_CLOSE_ON_EXEC)


def die_with_parent() -> None:
    """Asks the kernel for SIGKILL when the thread that started this process ends."""
    if LINUX:
        prctl(PR_SET_PDEATHSIG, 9)


def hide_memory() -> None:
    """Prevents other processes of this user from reading this one's memory, environment or descriptors."""
    if LINUX:
        prctl(PR_SET_DUMPABLE, 0)


def show_memory() -> None:
    """Lets other processes of this user read this one again, as they may read any program."""
    prctl(PR_SET_DUMPABLE, 1)


class HiddenMemory:
    """Hides this process's memory while the block runs; the earlier state is restored after it."""

    def __enter__(self) -> None:
        self._before = _libc.prctl(PR_GET_DUMPABLE) if LINUX else 0
        hide_memory()

    def __exit__(self, *_: object) -> None:
        if self._before == 1:  # no other value may be given back
            prctl(PR_SET_DUMPABLE, self._before)


def take_signals(*numbers: int) -> None:
    """Restores the default action of signals, which ends this process."""
    for number in numbers:
        _libc.signal(number, None)


def forgo_privileges() -> None:
    """Prevents programs started from here from gaining rights, as Landlock and seccomp require."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def bound_capabilities() -> None:
    """Prevents programs started from here from having any capability, also those of the namespace's user 0."""
    number = 0
    while _libc.prctl(PR_CAPBSET_READ, number, None, None, None) >= 0:
        prctl(PR_CAPBSET_DROP, number)
        number += 1


def drop_capabilities() -> None:
    header = pointer_to(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0))
    nothing = pointer_to(bytes(24))  # effective, permitted, inheritable; twice 32 bits each
    _checked(_libc.capset(header, nothing), "capset")


def _word(value: int | ctypes.c_void_p | None) -> ctypes.c_long | ctypes.c_void_p | None:
    return ctypes.c_long(value) if isinstance(value, int) else value


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
