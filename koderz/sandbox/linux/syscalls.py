"""System call numbers of the two architectures, for the calls that a candidate may make and for those with a rule.

x86_64: arch/x86/entry/syscalls/syscall_64.tbl; aarch64: include/uapi/asm-generic/unistd.h. A call that
an architecture doesn't have (aarch64 has no `open`, only `openat`) is absent from its table.
"""

from __future__ import annotations

TYPE_CHECKING = False  # so that process 1 of a workspace starts at once, see `inside`
if TYPE_CHECKING:
    from collections.abc import Mapping


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
getresgid 120 rt_sigpending 127 rt_sigtimedwait 128 rt_sigsuspend 130 sigaltstack 131 sched_getparam 143
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
rt_sigaction 134 rt_sigprocmask 135 rt_sigpending 136 rt_sigtimedwait 137 rt_sigreturn 139 getresuid 148
getresgid 150 times 153 uname 160 getrlimit 163 getrusage 165 umask 166 prctl 167 getcpu 168
gettimeofday 169 getpid 172 getppid 173 getuid 174 geteuid 175 getgid 176 getegid 177 gettid 178
sysinfo 179 socketpair 199 getsockname 204 getpeername 205 sendto 206 recvfrom 207 getsockopt 209
shutdown 210 sendmsg 211 recvmsg 212 brk 214 munmap 215 mremap 216 clone 220 mmap 222 fadvise64 223
mprotect 226 madvise 233 wait4 260 prlimit64 261 getrandom 278 membarrier 283 statx 291 rseq 293
clone3 435 close_range 436 faccessat2 439
"""


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


def _table(text: str) -> Mapping[str, int]:
    words = text.split()
    return {name: int(number) for name, number in zip(words[::2], words[1::2], strict=True)}


NUMBERS: Mapping[str, Mapping[str, int]] = {"x86_64": _table(_X86_64), "aarch64": _table(_AARCH64)}

REFUSED: Mapping[str, Mapping[str, int]] = {
    "x86_64": _table(_NOT_IN_WORKSPACES + _NOT_IN_WORKSPACES_X86_64),
    "aarch64": _table(_NOT_IN_WORKSPACES + _NOT_IN_WORKSPACES_AARCH64),
}
"""The calls refused to a command in a workspace: tracing, mounts, namespaces, keys, modules; `socket` by family."""

KEEPING = frozenset({"clone", "fork", "kill", "prctl", "prlimit64", "wait4"})
"""The additional calls of a zygote to keep candidates. A candidate loses them in whole or in part."""

FREE = frozenset(_FREE.split())
"""The calls allowed with any arguments, which an interpreter needs to compute, to wait, and to read."""
