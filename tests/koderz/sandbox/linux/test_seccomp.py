"""The filters, run by a small machine that knows their few instructions: so for both architectures, anywhere."""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from koderz.sandbox.linux import seccomp
from koderz.sandbox.linux.seccomp import AUDIT_ARCH, FREE, NUMBERS, Instruction

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
MACHINES = sorted(NUMBERS)
THREAD, FORK = 0x3D0F00, 0x1200011  # the flags that glibc gives to clone


def answer(steps: Sequence[Instruction], arch: int, number: int, *arguments: int) -> int:
    """What the filter says to a system call."""
    words = {0: number, 4: arch}
    for index, argument in enumerate(arguments):
        words[16 + 8 * index], words[20 + 8 * index] = argument & 0xFFFFFFFF, argument >> 32
    at = held = 0
    while True:
        code, yes, no, operand = steps[at]
        at += 1
        match code:
            case 0x20:
                held = words.get(operand, 0)
            case 0x06:
                return operand
            case _:
                tests = {0x15: held == operand, 0x25: held > operand, 0x35: held >= operand}
                at += yes if tests.get(code, bool(held & operand)) else no


def verdict(machine: str, name: str, *arguments: int) -> int:
    """Both filters together: the stricter one counts."""
    call = (AUDIT_ARCH[machine], NUMBERS[machine][name], *arguments)
    answers = [answer(steps, *call) for steps in (seccomp.shared_steps(machine), seccomp.candidates_steps(machine))]
    return min(answers, key=lambda said: said if said != KILL else -1)


@pytest.mark.parametrize("machine", MACHINES)
def test_harmless_calls_are_allowed(machine: str) -> None:
    for name in FREE & set(NUMBERS[machine]):
        assert verdict(machine, name) == ALLOW, name


@pytest.mark.parametrize("machine", MACHINES)
def test_threads_start_and_processes_do_not(machine: str) -> None:
    assert verdict(machine, "clone", THREAD) == ALLOW
    assert verdict(machine, "clone", FORK) == ERRNO | errno.EPERM
    assert verdict(machine, "clone", THREAD | 0x10000000) == ERRNO | errno.EPERM
    assert verdict(machine, "clone3") == ERRNO | errno.ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
def test_files_open_to_be_read_only(machine: str) -> None:
    assert verdict(machine, "openat", 0, 0, 0o2000000) == ALLOW
    for flags in (1, 2, 0o100, 0o1000, 0o20200000 | 2):
        assert verdict(machine, "openat", 0, 0, flags) == ERRNO | errno.EACCES


@pytest.mark.parametrize("machine", MACHINES)
def test_limits_are_read_and_not_set(machine: str) -> None:
    assert verdict(machine, "prlimit64", 0, 9, 0, 1 << 40) == ALLOW
    assert verdict(machine, "prlimit64", 0, 9, 1 << 40, 0) == ERRNO | errno.EPERM
    assert verdict(machine, "prlimit64", 0, 9, 16, 0) == ERRNO | errno.EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_descriptors_signal_nobody(machine: str) -> None:
    assert verdict(machine, "fcntl", 3, 4) == ALLOW
    for owner in (8, 10, 15, 1024, 1026):
        assert verdict(machine, "fcntl", 3, owner) == ERRNO | errno.EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_sockets_come_in_local_pairs_of_streams(machine: str) -> None:
    """Of a pair of datagrams, either end sends to whatever address it likes."""
    for more in (0, socket.SOCK_NONBLOCK, socket.SOCK_CLOEXEC, socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC):
        assert verdict(machine, "socketpair", 1, socket.SOCK_STREAM | more) == ALLOW
        for kind in (0, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET, 1 << 8 | socket.SOCK_STREAM):
            assert verdict(machine, "socketpair", 1, kind | more) == ERRNO | errno.EPERM
        assert verdict(machine, "socketpair", 2, socket.SOCK_STREAM | more) == ERRNO | errno.EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_oob_data_is_refused(machine: str) -> None:
    for name, before in (("sendto", 3), ("recvfrom", 3), ("sendmsg", 2), ("recvmsg", 2)):
        assert verdict(machine, name, *[0] * before, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) == ALLOW
        assert verdict(machine, name, *[0] * before, socket.MSG_OOB) == ERRNO | errno.EOPNOTSUPP


@pytest.mark.parametrize("machine", MACHINES)
def test_unlisted_calls_are_refused(machine: str) -> None:
    steps, known = seccomp.shared_steps(machine), set(NUMBERS[machine].values())
    for number in set(range(600)) - known:
        assert answer(steps, AUDIT_ARCH[machine], number) == ERRNO | errno.EPERM, number


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_of_another_architecture_kill(machine: str) -> None:
    steps = seccomp.shared_steps(machine)
    assert answer(steps, 0x40000003, 1) == KILL
    assert answer(steps, AUDIT_ARCH[machine], 0x40000000 | 39) == KILL


@pytest.mark.parametrize("machine", MACHINES)
def test_candidate_keeps_nothing_that_contains_candidates(machine: str) -> None:
    for name in ("kill", "prctl", "wait4"):
        assert verdict(machine, name) == ERRNO | errno.EPERM


@pytest.mark.parametrize(
    ("machine", "header"),
    [("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), ("aarch64", "/usr/include/asm-generic/unistd.h")],
)
def test_call_numbers_are_those_of_the_kernels_headers(machine: str, header: str) -> None:
    if not Path(header).exists():
        pytest.skip(f"no {header} here")
    pairs = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)$", Path(header).read_text(), re.MULTILINE)
    numbers = {name: int(number) for name, number in pairs}
    numbers.setdefault("newfstatat", numbers.get("fstatat", 0))
    assert {name: numbers[name] for name in NUMBERS[machine]} == NUMBERS[machine]


def test_machine_without_a_list_says_so() -> None:
    with pytest.raises(OSError, match="riscv64"):
        seccomp.shared_steps("riscv64")
