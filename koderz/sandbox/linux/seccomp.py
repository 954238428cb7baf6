"""The system calls that a candidate may make: an allow-list, as a BPF program.

Whatever isn't listed fails with EPERM, as a system administrator's refusal would, so that a program
that probes goes on and only its harm is gone. A foreign architecture's calls kill. Without fork and
exec nothing can outlive a candidate. What could carry a word out of one has been tried:

- Sockets: there are pairs of streams and no others. Their ends can't be bound or connected elsewhere, and
  the kernel refuses an address to send to, which it takes from pairs of datagrams. No out-of-band data,
  which nobody uses and which has let programs into the kernel (CVE-2025-38236).
- Descriptors: a candidate inherits /dev/null three times and its socket to the judge, which reads bytes and
  lets go of descriptors that come with them. The handle on the judge that SO_PEERPIDFD gives can be waited for,
  not signalled, entered, or taken descriptors from.
- Pipes are its own. A FIFO, a device or a file of somebody else's can't be opened to be written.
- No locks, leases, notifications, owners of descriptors, extended attributes, times of files, message queues,
  semaphores, shared memory, keys.

What remains needs somebody on this machine who watches: how busy it is, which pages of readable files are in
memory, when they were last read, and futexes on them. Where mounts are refused (`mounts`), also that a name
is looked up, of which an automounter or a file system in user space is told.
"""

from __future__ import annotations

import errno
import os
import struct

from koderz.sandbox.linux import kernel
from koderz.sandbox.linux.syscalls import AUDIT_ARCH, FREE, KEEPING, NUMBERS, REFUSED

TYPE_CHECKING = False  # so that process 1 of a workspace starts at once, see `inside`
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, operand
Rule = tuple[str, list[Instruction]]  # a call by name, and what it comes to

_LOAD, _EQUAL, _ABOVE, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER_OFFSET, _ARCH_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16
_SECCOMP_MODE_FILTER = 2
_X32_BIT = 0x40000000

_MACHINE = os.uname().machine
_AF_UNIX, _SOCK_STREAM, _SOCK_NONBLOCK, _SOCK_CLOEXEC = 1, 1, 0o4000, 0o2000000
_STREAMS = tuple(_SOCK_STREAM | more for more in (0, _SOCK_NONBLOCK, _SOCK_CLOEXEC, _SOCK_NONBLOCK | _SOCK_CLOEXEC))
_MSG_OOB = 1
_CLONE_THREAD = 0x00010000
_CLONE_NAMESPACES = 0x7E020000
_TERMINAL_FREE_IOCTLS = (0x5421, 0x5451, 0x5450, 0x541B)  # FIONBIO, FIOCLEX, FIONCLEX, FIONREAD
_TYPING = (0x5412, 0x541C)  # TIOCSTI and TIOCLINUX, which put words into a terminal's mouth
_FAMILIES = (1, 2, 10, 16)  # UNIX, INET, INET6 and NETLINK, by which addresses are resolved; each namespace has its own
_PLAIN_FCNTLS = (0, 1, 2, 3, 4, 1030)  # duplicate, flags; no F_SETOWN, which would send signals to others
_OPENS_TO_CHANGE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | 0o20000000  # the last: O_TMPFILE


class Filter:
    """A BPF program prepared in memory, so that binding a process to it takes one call."""

    def __init__(self, steps: Iterable[Instruction]) -> None:
        code = b"".join(struct.pack("=HBBI", *step) for step in steps)
        self._code = kernel.pointer_to(code)
        header = kernel.pointer_to(struct.pack("=HxxxxxxQ", len(code) // 8, self._code.value or 0))
        self._bind = kernel.prepared_prctl(kernel.PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header)

    def install(self) -> None:
        """Binds this thread and its children to the filter. Raises OSError if the kernel refuses."""
        if self._bind():
            raise OSError(errno.EPERM, "the kernel refuses the filter")


def workspaces_steps(machine: str = _MACHINE, *, forks: bool = True, keeps_core: bool = False) -> list[Instruction]:
    """The filter of a command in a workspace, which refuses only calls that could undo its bounds.

    A list of refusals; whatever isn't listed is allowed. Without `forks` it can't start processes either. With
    `keeps_core` a request for other cores succeeds and changes nothing, as libraries make it that don't depend on it.
    OSError where there is no list for this machine.
    """
    steps = _only_this_architecture(machine)
    rules = _workspaces_rules(forks=forks, keeps_core=keeps_core)
    steps += _ruled(rules, {**NUMBERS[machine], **REFUSED[machine]})
    steps += [step for number in sorted(REFUSED[machine].values()) for step in _answer_to(number, errno.EPERM)]
    return [*steps, _answer(0)]


def _workspaces_rules(*, forks: bool, keeps_core: bool) -> Iterator[Rule]:
    clone = _without_bits(0, _CLONE_NAMESPACES, errno.EPERM)
    if not forks:
        clone[-1:] = _with_bits(0, _CLONE_THREAD, errno.EPERM)
        yield from ((name, [_answer(errno.EPERM)]) for name in ("fork", "vfork"))
    if keeps_core:
        yield "sched_setaffinity", [(_RETURN, 0, 0, _ERRNO)]  # the error 0: done, as the caller sees it
    yield "clone", clone
    yield "clone3", [_answer(errno.ENOSYS)]  # its flags are in memory; libc falls back to clone
    yield "ioctl", [_low(1), *(step for number in _TYPING for step in _answer_to(number, errno.EPERM)), _answer(0)]
    yield "socket", _one_of(0, _FAMILIES, errno.EAFNOSUPPORT)


def _answer_to(value: int, refusal: int) -> list[Instruction]:
    """Refuses if the accumulator has this value, else continues with the next step."""
    return [(_EQUAL, 0, 1, value), _answer(refusal)]


def shared_steps(machine: str = _MACHINE) -> list[Instruction]:
    """The filter of a zygote and its candidates: the list, and the calls to keep candidates. Raises OSError."""
    steps = _only_this_architecture(machine)
    numbers = NUMBERS[machine]
    free = sorted(numbers[name] for name in FREE | KEEPING if name in numbers)
    return [*steps, *_ruled(_shared_rules(), numbers), *_allowed(free), _answer(errno.EPERM)]


def candidates_steps(machine: str = _MACHINE) -> list[Instruction]:
    """The additional filter of a candidate, which refuses the zygote's calls. Short, as each candidate pays for it."""
    return [(_LOAD, 0, 0, _NUMBER_OFFSET), *_ruled(_candidates_rules(), NUMBERS[machine]), _answer(0)]


def _only_this_architecture(machine: str) -> list[Instruction]:
    if machine not in NUMBERS:
        raise OSError(errno.ENOSYS, f"no list of system calls for {machine}")
    return [
        (_LOAD, 0, 0, _ARCH_OFFSET),
        (_EQUAL, 1, 0, AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_OFFSET),
        (_AT_LEAST, 0, 1, _X32_BIT),
        (_RETURN, 0, 0, _KILL),
    ]


def _shared_rules() -> Iterator[Rule]:
    """Rules for calls that depend on their arguments. Each begins with a free accumulator and returns."""
    yield "open", _without_bits(1, _OPENS_TO_CHANGE, errno.EACCES)
    yield "openat", _without_bits(2, _OPENS_TO_CHANGE, errno.EACCES)
    yield "clone3", [_answer(errno.ENOSYS)]  # its flags are in memory; libc falls back to clone
    yield "clone", _without_bits(0, _CLONE_NAMESPACES, errno.EPERM)
    local = [_low(0), (_EQUAL, 1, 0, _AF_UNIX), _answer(errno.EPERM)]
    yield "socketpair", [*local, *_one_of(1, _STREAMS, errno.EPERM)]  # asyncio has one
    for name, flags in (("sendto", 3), ("recvfrom", 3), ("sendmsg", 2), ("recvmsg", 2)):
        yield name, _without_bits(flags, _MSG_OOB, errno.EOPNOTSUPP)
    yield "ioctl", _one_of(1, _TERMINAL_FREE_IOCTLS, errno.ENOTTY)
    yield "fcntl", _one_of(1, _PLAIN_FCNTLS, errno.EPERM)


def _candidates_rules() -> Iterator[Rule]:
    yield "clone", _with_bits(0, _CLONE_THREAD, errno.EPERM)
    yield "prlimit64", _read_only_limits()
    for name in sorted(KEEPING - {"clone", "prlimit64"}):
        yield name, [_answer(errno.EPERM)]


def _ruled(rules: Iterable[Rule], numbers: Mapping[str, int]) -> Iterator[Instruction]:
    for name, rule in rules:
        if name in numbers:
            yield from [(_EQUAL, 0, len(rule), numbers[name]), *rule]


def _without_bits(argument: int, bits: int, refusal: int) -> list[Instruction]:
    return [_low(argument), (_ANY_BIT, 0, 1, bits), _answer(refusal), _answer(0)]


def _one_of(argument: int, values: tuple[int, ...], refusal: int) -> list[Instruction]:
    tests = [(_EQUAL, len(values) - index, 0, value) for index, value in enumerate(values)]
    return [_low(argument), *tests, _answer(refusal), _answer(0)]


def _with_bits(argument: int, bits: int, refusal: int) -> list[Instruction]:
    return [_low(argument), (_ANY_BIT, 1, 0, bits), _answer(refusal), _answer(0)]


def _read_only_limits() -> list[Instruction]:
    """Requires `new_limit`, a pointer, to be null in both halves."""
    return [
        _low(2),
        (_EQUAL, 0, 2, 0),
        (_LOAD, 0, 0, _ARGUMENTS_OFFSET + 2 * 8 + 4),
        (_EQUAL, 1, 0, 0),
        _answer(errno.EPERM),
        _answer(0),
    ]


def _allowed(numbers: list[int]) -> Iterator[Instruction]:
    for first, last in _spans(numbers):
        yield (_AT_LEAST, 0, 2, first)
        yield (_ABOVE, 1, 0, last)
        yield _answer(0)


def _spans(numbers: Iterable[int]) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return spans


def _low(argument: int) -> Instruction:
    """Loads the lower half of an argument; both architectures are little-endian."""
    return (_LOAD, 0, 0, _ARGUMENTS_OFFSET + 8 * argument)


def _answer(number: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | number if number else _ALLOW)
