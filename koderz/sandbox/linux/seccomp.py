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

TYPE_CHECKING = False  # which process 1 of a sandbox would wait for
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, operand
Rule = tuple[str, list[Instruction]]  # a call by name, and what it comes to

LOAD, EQUAL, _ABOVE, _AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x25, 0x35, 0x45, 0x06
_ALLOW, _KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
NUMBER_OFFSET, _ARCH_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16
_SECCOMP_MODE_FILTER = 2
_SECCOMP = {"x86_64": 317, "aarch64": 277}  # the numbers of the call
_SET_MODE_FILTER, _NEW_LISTENER, _WAIT_KILLABLE = 1, 8, 32
_X32_BIT = 0x40000000

MACHINE = os.uname().machine
_AF_UNIX, _SOCK_STREAM, _SOCK_NONBLOCK, _SOCK_CLOEXEC = 1, 1, 0o4000, 0o2000000
_STREAMS = tuple(
    _SOCK_STREAM | more
    for more in (0, _SOCK_NONBLOCK, _SOCK_CLOEXEC, _SOCK_NONBLOCK | _SOCK_CLOEXEC)
)
_MSG_OOB = 1
CLONE_THREAD = 0x00010000
CLONE_NAMESPACES = 0x7E020000
_TERMINAL_FREE_IOCTLS = (0x5421, 0x5451, 0x5450, 0x541B)  # FIONBIO, FIOCLEX, FIONCLEX, FIONREAD
# duplicate, flags; no F_SETOWN, which would send signals to others
_PLAIN_FCNTLS = (0, 1, 2, 3, 4, 1030)
# the last: O_TMPFILE
_OPENS_TO_CHANGE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | 0o20000000


# System call numbers of the two architectures, for the calls that a candidate may make and for those with a rule.
# x86_64: arch/x86/entry/syscalls/syscall_64.tbl; aarch64: include/uapi/asm-generic/unistd.h. A call that an
# architecture doesn't have (aarch64 has no `open`, only `openat`) is absent from its table.

AUDIT_ARCH: Mapping[str, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_FREE = """
access alarm arch_prctl brk clock_getres clock_gettime clock_nanosleep close close_range dup dup2 dup3
epoll_create1 epoll_ctl epoll_pwait epoll_wait eventfd2 exit exit_group faccessat faccessat2 fadvise64
fstat futex getcpu getcwd getdents64 getegid geteuid getgid getitimer getpeername getpgrp getpid getppid
getrandom getresgid getresuid getrlimit getrusage getsockname getsockopt gettid gettimeofday getuid
lseek lstat madvise membarrier mmap mprotect mremap munmap nanosleep newfstatat pause pipe pipe2 poll
ppoll pread64 preadv pselect6 pwrite64 read readlink readlinkat readv restart_syscall
rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigreturn rt_sigsuspend rt_sigtimedwait
sched_getaffinity sched_getparam sched_getscheduler sched_yield select set_robust_list
set_tid_address setitimer shutdown sigaltstack stat statx sysinfo time times umask uname write writev
"""

_X86_64 = """
read 0 write 1 open 2 close 3 stat 4 fstat 5 lstat 6 poll 7 lseek 8 mmap 9 mprotect 10 munmap 11 brk 12
rt_sigaction 13 rt_sigprocmask 14 rt_sigreturn 15 ioctl 16 pread64 17 pwrite64 18 readv 19 writev 20
access 21 pipe 22 select 23 sched_yield 24 mremap 25 madvise 28 dup 32 dup2 33 pause 34 nanosleep 35
getitimer 36 alarm 37 setitimer 38 getpid 39 sendto 44 recvfrom 45 sendmsg 46 recvmsg 47 shutdown 48
getsockname 51 getpeername 52 socketpair 53 getsockopt 55 clone 56 fork 57 vfork 58 exit 60 wait4 61 kill 62
uname 63 fcntl 72 getcwd 79 readlink 89 umask 95 gettimeofday 96 getrlimit 97 getrusage 98 sysinfo 99
times 100 getuid 102 getgid 104 geteuid 107 getegid 108 getppid 110 getpgrp 111 getresuid 118
getresgid 120 rt_sigpending 127 rt_sigtimedwait 128 rt_sigsuspend 130 sigaltstack 131 setpriority 141 sched_getparam 143
sched_getscheduler 145 prctl 157 arch_prctl 158 gettid 186 time 201 futex 202 sched_setaffinity 203
sched_getaffinity 204
getdents64 217 set_tid_address 218 restart_syscall 219 fadvise64 221 clock_gettime 228 clock_getres 229
clock_nanosleep 230 exit_group 231 epoll_wait 232 epoll_ctl 233 openat 257 newfstatat 262 readlinkat 267
faccessat 269 pselect6 270 ppoll 271 set_robust_list 273 epoll_pwait 281 eventfd2 290 epoll_create1 291
dup3 292 pipe2 293 preadv 295 prlimit64 302 getcpu 309 getrandom 318 membarrier 324 statx 332 rseq 334
clone3 435 close_range 436 faccessat2 439
"""

_AARCH64 = """
getcwd 17 eventfd2 19 epoll_create1 20 epoll_ctl 21 epoll_pwait 22 dup 23 dup3 24 fcntl 25 ioctl 29
faccessat 48 openat 56 close 57 pipe2 59 getdents64 61 lseek 62 read 63 write 64 readv 65 writev 66
pread64 67 pwrite64 68 preadv 69 pselect6 72 ppoll 73 readlinkat 78 newfstatat 79 fstat 80 exit 93
exit_group 94 set_tid_address 96 futex 98 set_robust_list 99 nanosleep 101 getitimer 102 setitimer 103
clock_gettime 113 clock_getres 114 clock_nanosleep 115 sched_getscheduler 120 sched_getparam 121
sched_setaffinity 122 sched_getaffinity 123 sched_yield 124 restart_syscall 128 kill 129 sigaltstack 132
rt_sigsuspend 133
rt_sigaction 134 rt_sigprocmask 135 rt_sigpending 136 rt_sigtimedwait 137 rt_sigreturn 139 setpriority 140 getresuid 148
getresgid 150 times 153 uname 160 getrlimit 163 getrusage 165 umask 166 prctl 167 getcpu 168
gettimeofday 169 getpid 172 getppid 173 getuid 174 geteuid 175 getgid 176 getegid 177 gettid 178
sysinfo 179 socketpair 199 getsockname 204 getpeername 205 sendto 206 recvfrom 207 getsockopt 209
shutdown 210 sendmsg 211 recvmsg 212 brk 214 munmap 215 mremap 216 clone 220 mmap 222 fadvise64 223
mprotect 226 madvise 233 wait4 260 prlimit64 261 getrandom 278 membarrier 283 statx 291 rseq 293
clone3 435 close_range 436 faccessat2 439
"""


def table(text: str) -> Mapping[str, int]:
    """Numbers by names, from words that are one and the other in turn."""
    words = text.split()
    return {name: int(number) for name, number in zip(words[::2], words[1::2], strict=True)}


NUMBERS: Mapping[str, Mapping[str, int]] = {"x86_64": table(_X86_64), "aarch64": table(_AARCH64)}

KEEPING = frozenset({"clone", "fork", "kill", "prctl", "prlimit64", "setpriority", "wait4"})
"""The additional calls of a zygote to keep candidates. A candidate loses them in whole or in part."""

FREE = frozenset(_FREE.split())
"""The calls allowed with any arguments, which an interpreter needs to compute, to wait, and to read."""


class Filter:
    """A BPF program prepared in memory, so that binding a process to it takes one call."""

    def __init__(self, steps: Iterable[Instruction]) -> None:
        code = b"".join(struct.pack("=HBBI", *step) for step in steps)
        self._code = kernel.pointer_to(code)
        header = kernel.pointer_to(struct.pack("=HxxxxxxQ", len(code) // 8, self._code.value or 0))
        self._bind = kernel.prepared_prctl(kernel.PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header)

        self._listen = [
            kernel.prepared_syscall(_SECCOMP[MACHINE], _SET_MODE_FILTER, flags, header)
            for flags in (_NEW_LISTENER | _WAIT_KILLABLE, _NEW_LISTENER)
        ]

    def install(self) -> None:
        """Binds this thread and its children to the filter. Raises OSError if the kernel refuses."""
        if self._bind():
            raise OSError(errno.EPERM, "the kernel refuses the filter")

    def listen(self) -> int:
        """Binds them, and returns a descriptor by which calls are heard of. Raises OSError if the kernel refuses."""
        try:
            return self._listen[0]()
        except OSError:  # before Linux 5.19
            return self._listen[1]()


def shared_steps(machine: str = MACHINE) -> list[Instruction]:
    """The filter of a zygote and its candidates: the list, and the calls to keep candidates. Raises OSError."""
    steps = only_this_architecture(machine)
    numbers = NUMBERS[machine]
    free = sorted(numbers[name] for name in FREE | KEEPING if name in numbers)
    return [*steps, *ruled(_shared_rules(), numbers), *_allowed(free), answer(errno.EPERM)]


def candidates_steps(machine: str = MACHINE) -> list[Instruction]:
    """The additional filter of a candidate, which refuses the zygote's calls. Short, as each candidate pays for it."""
    return [(LOAD, 0, 0, NUMBER_OFFSET), *ruled(_candidates_rules(), NUMBERS[machine]), answer(0)]


def only_this_architecture(machine: str) -> list[Instruction]:
    """The beginning of a filter, which kills for other architectures' calls. OSError where there is no list for one."""
    if machine not in NUMBERS:
        raise OSError(errno.ENOSYS, f"no list of system calls for {machine}")
    return [
        (LOAD, 0, 0, _ARCH_OFFSET),
        (EQUAL, 1, 0, AUDIT_ARCH[machine]),
        (RETURN, 0, 0, _KILL),
        (LOAD, 0, 0, NUMBER_OFFSET),
        (_AT_LEAST, 0, 1, _X32_BIT),
        (RETURN, 0, 0, _KILL),
    ]


def _shared_rules() -> Iterator[Rule]:
    """Rules for calls that depend on their arguments. Each begins with a free accumulator and returns."""
    yield "open", without_bits(1, _OPENS_TO_CHANGE, errno.EACCES)
    yield "openat", without_bits(2, _OPENS_TO_CHANGE, errno.EACCES)
    yield "clone3", [answer(errno.ENOSYS)]  # its flags are in memory; libc falls back to clone
    yield "clone", without_bits(0, CLONE_NAMESPACES, errno.EPERM)
    local = [low(0), (EQUAL, 1, 0, _AF_UNIX), answer(errno.EPERM)]
    yield "socketpair", [*local, *one_of(1, _STREAMS, errno.EPERM)]  # asyncio has one
    for name, flags in (("sendto", 3), ("recvfrom", 3), ("sendmsg", 2), ("recvmsg", 2)):
        yield name, without_bits(flags, _MSG_OOB, errno.EOPNOTSUPP)
    yield "ioctl", one_of(1, _TERMINAL_FREE_IOCTLS, errno.ENOTTY)
    yield "fcntl", one_of(1, _PLAIN_FCNTLS, errno.EPERM)


def _candidates_rules() -> Iterator[Rule]:
    yield "clone", with_bits(0, CLONE_THREAD, errno.EPERM)
    yield "prlimit64", _read_only_limits()
    for name in sorted(KEEPING - {"clone", "prlimit64"}):
        yield name, [answer(errno.EPERM)]


def ruled(rules: Iterable[Rule], numbers: Mapping[str, int]) -> Iterator[Instruction]:
    """Each rule, for the call of its name."""
    for name, rule in rules:
        if name in numbers:
            yield from [(EQUAL, 0, len(rule), numbers[name]), *rule]


def without_bits(argument: int, bits: int, refusal: int) -> list[Instruction]:
    """Refuses an argument that has any of these bits."""
    return [low(argument), (ANY_BIT, 0, 1, bits), answer(refusal), answer(0)]


def one_of(argument: int, values: tuple[int, ...], refusal: int) -> list[Instruction]:
    """Refuses an argument that is none of these values."""
    tests = [(EQUAL, len(values) - index, 0, value) for index, value in enumerate(values)]
    return [low(argument), *tests, answer(refusal), answer(0)]


def with_bits(argument: int, bits: int, refusal: int) -> list[Instruction]:
    """Refuses an argument that has none of these bits."""
    return [low(argument), (ANY_BIT, 1, 0, bits), answer(refusal), answer(0)]


def _read_only_limits() -> list[Instruction]:
    """Requires `new_limit`, a pointer, to be null in both halves."""
    return [
        low(2),
        (EQUAL, 0, 2, 0),
        (LOAD, 0, 0, _ARGUMENTS_OFFSET + 2 * 8 + 4),
        (EQUAL, 1, 0, 0),
        answer(errno.EPERM),
        answer(0),
    ]


def _allowed(numbers: list[int]) -> Iterator[Instruction]:
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    for first, last in spans:
        yield (_AT_LEAST, 0, 2, first)
        yield (_ABOVE, 1, 0, last)
        yield answer(0)


def low(argument: int) -> Instruction:
    """Loads the lower half of an argument; both architectures are little-endian."""
    return (LOAD, 0, 0, _ARGUMENTS_OFFSET + 8 * argument)


def answer(number: int) -> Instruction:
    """Refuses by this error, or allows by 0."""
    return (RETURN, 0, 0, ERRNO | number if number else _ALLOW)
