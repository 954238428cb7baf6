"""The system calls that commands in workspaces may make, and those of a verifier that are heard of, as BPF programs."""

from __future__ import annotations

import errno

from koderz.sandbox.linux.seccomp import (
    ANY_BIT,
    CLONE_NAMESPACES,
    CLONE_THREAD,
    EQUAL,
    ERRNO,
    LOAD,
    MACHINE,
    NUMBER_OFFSET,
    NUMBERS,
    RETURN,
    Instruction,
    Rule,
    answer,
    low,
    one_of,
    only_this_architecture,
    ruled,
    table,
    with_bits,
    without_bits,
)

TYPE_CHECKING = False  # which process 1 of a sandbox would wait for
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_NOTIFY = 0x7FC00000
_PROT_EXEC, _MAP_ANONYMOUS = 4, 0x20
_SET_CHILD_SUBREAPER = 36
_CLONE_PARENT = 0x8000
_TYPING = (0x5412, 0x541C)  # TIOCSTI and TIOCLINUX, which put words into a terminal's mouth
# UNIX, INET, INET6 and NETLINK, by which addresses are resolved; each namespace has its own
_FAMILIES = (1, 2, 10, 16)
# F_SETOWN, F_SETSIG, F_SETOWN_EX; FIOSETOWN, SIOCSPGRP
_OWNING_FCNTLS, _OWNING_IOCTLS = (8, 10, 15), (0x8901, 0x8902)

_NOT_IN_WORKSPACES = """
open_tree 428 move_mount 429 fsopen 430 fsconfig 431 fsmount 432 fspick 433 pidfd_getfd 438 process_madvise 440
mount_setattr 442 quotactl_fd 443 open_tree_attr 467 io_uring_setup 425 io_uring_enter 426 io_uring_register 427
"""

_NOT_IN_WORKSPACES_X86_64 = """
socket 41 ptrace 101 pivot_root 155 chroot 161 acct 163 mount 165 umount2 166 swapon 167 swapoff 168 reboot 169
iopl 172 ioperm 173 init_module 175 delete_module 176 quotactl 179 add_key 248 request_key 249 keyctl 250
unshare 272 perf_event_open 298 name_to_handle_at 303 open_by_handle_at 304 setns 308 process_vm_readv 310
process_vm_writev 311 kcmp 312 finit_module 313 kexec_load 246 kexec_file_load 320 bpf 321 userfaultfd 323
"""

_NOT_IN_WORKSPACES_AARCH64 = """
umount2 39 mount 40 pivot_root 41 chroot 51 quotactl 60 acct 89 unshare 97 kexec_load 104 init_module 105
delete_module 106 ptrace 117 reboot 142 socket 198 add_key 217 request_key 218 keyctl 219 swapon 224 swapoff 225
perf_event_open 241 name_to_handle_at 264 open_by_handle_at 265 setns 268 process_vm_readv 270 process_vm_writev 271
kcmp 272 finit_module 273 bpf 280 userfaultfd 282 kexec_file_load 294
"""

_NOTIFIED = """
openat2 437 fchmodat2 452 pidfd_send_signal 424
"""

_NOTIFIED_X86_64 = """
open 2 connect 42 execve 59 kill 62 truncate 76 rename 82 mkdir 83 rmdir 84 creat 85 link 86 unlink 87 symlink 88
chmod 90 chown 92 lchown 94 rt_sigqueueinfo 129 utime 132 tkill 200 tgkill 234 utimes 235 openat 257 mkdirat 258
fchownat 260 unlinkat 263 renameat 264 linkat 265 symlinkat 266 fchmodat 268 utimensat 280 rt_tgsigqueueinfo 297
renameat2 316 execveat 322
"""

_NOTIFIED_AARCH64 = """
mkdirat 34 unlinkat 35 symlinkat 36 linkat 37 renameat 38 truncate 45 fchmodat 53 fchownat 54 openat 56 utimensat 88
kill 129 tkill 130 tgkill 131 rt_sigqueueinfo 138 connect 203 execve 221 rt_tgsigqueueinfo 240 renameat2 276
execveat 281
"""

REFUSED: Mapping[str, Mapping[str, int]] = {
    "x86_64": table(_NOT_IN_WORKSPACES + _NOT_IN_WORKSPACES_X86_64),
    "aarch64": table(_NOT_IN_WORKSPACES + _NOT_IN_WORKSPACES_AARCH64),
}
"""The calls refused to a command in a workspace: tracing, mounts, namespaces, keys, modules; `socket` by family."""

NOTIFIED: Mapping[str, Mapping[str, int]] = {
    "x86_64": table(_NOTIFIED + _NOTIFIED_X86_64),
    "aarch64": table(_NOTIFIED + _NOTIFIED_AARCH64),
}
"""The calls of a verifier that a listener always answers, see `channel`."""

HEARD: Mapping[str, Mapping[str, int]] = {
    machine: {name: numbers[name] for name in ("mmap", "prlimit64")}
    for machine, numbers in NUMBERS.items()
}
"""The calls that it answers by their arguments: code that is mapped, and limits of other processes."""


def workspaces_steps(
    machine: str = MACHINE, *, forks: bool = True, keeps_core: bool = False
) -> list[Instruction]:
    """The filter of a command in a workspace, which refuses only calls that could undo its bounds.

    A list of refusals; whatever isn't listed is allowed. Without `forks` it can't start processes either. With
    `keeps_core` a request for other cores succeeds and changes nothing, as libraries make it that don't depend on it.
    OSError where there is no list for this machine.
    """
    steps = only_this_architecture(machine)
    rules = _workspaces_rules(forks=forks, keeps_core=keeps_core)
    steps += ruled(rules, {**NUMBERS[machine], **REFUSED[machine]})
    steps += [
        step
        for number in sorted(REFUSED[machine].values())
        for step in _answer_to(number, errno.EPERM)
    ]
    return [*steps, answer(0)]


def _workspaces_rules(*, forks: bool, keeps_core: bool) -> Iterator[Rule]:
    clone = without_bits(0, CLONE_NAMESPACES, errno.EPERM)
    if not forks:
        clone[-1:] = with_bits(0, CLONE_THREAD, errno.EPERM)
        yield from ((name, [answer(errno.EPERM)]) for name in ("fork", "vfork"))
    if keeps_core:
        # the error 0: done, as the caller sees it
        yield "sched_setaffinity", [(RETURN, 0, 0, ERRNO)]
    yield "clone", clone
    yield "clone3", [answer(errno.ENOSYS)]  # its flags are in memory; libc falls back to clone
    yield (
        "ioctl",
        [
            low(1),
            *(step for number in _TYPING for step in _answer_to(number, errno.EPERM)),
            answer(0),
        ],
    )
    yield "socket", one_of(0, _FAMILIES, errno.EAFNOSUPPORT)


def _answer_to(value: int, refusal: int) -> list[Instruction]:
    """Refuses if the accumulator has this value, else continues with the next step."""
    return [(EQUAL, 0, 1, value), answer(refusal)]


def verifiers_steps(machine: str = MACHINE) -> list[Instruction]:
    """The additional filter of a verifier, by which a listener hears of its calls.

    Nobody may adopt orphans, or have a child that counts as its parent's, since by their parents it is told whose
    processes are; nor have the kernel send signals to others when something happens to a descriptor.
    """
    numbers = NUMBERS[machine]
    notify: Instruction = (RETURN, 0, 0, _NOTIFY)
    maps = [
        low(2),
        (ANY_BIT, 1, 0, _PROT_EXEC),
        answer(0),
        low(3),
        (ANY_BIT, 0, 1, _MAP_ANONYMOUS),
        answer(0),
    ]
    adopts = [low(0), (EQUAL, 0, 1, _SET_CHILD_SUBREAPER), answer(errno.EPERM), answer(0)]
    clone = without_bits(0, _CLONE_PARENT, errno.EPERM)
    limits = [low(0), (EQUAL, 0, 1, 0), answer(0), notify]  # 0: one's own
    rules: list[Rule] = [
        *(("mmap", [*maps, notify]), ("prctl", adopts), ("clone", clone), ("prlimit64", limits)),
        *(
            (
                name,
                [
                    low(1),
                    *(step for each in numbers for step in _answer_to(each, errno.EPERM)),
                    answer(0),
                ],
            )
            for name, numbers in (("fcntl", _OWNING_FCNTLS), ("ioctl", _OWNING_IOCTLS))
        ),
    ]
    listened = [
        step for number in NOTIFIED[machine].values() for step in ((EQUAL, 0, 1, number), notify)
    ]
    return [(LOAD, 0, 0, NUMBER_OFFSET), *ruled(rules, numbers), *listened, answer(0)]
