"""Calls of a verifier's processes that name files of its folder without opening them, or that reach other processes."""

from __future__ import annotations

import ctypes
import errno
import os
from functools import partial

from koderz.systems.workspaces.inside import callers, filters
from koderz.systems.workspaces.inside.callers import AT_CWD, Call, Refusal
from koderz.systems.workspaces.inside.channel import Broker

TYPE_CHECKING = False  # which process 1 of a sandbox would wait for
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

_AF_UNIX = 1


def opened(terms: Mapping[str, Any], folder: int, listener: int, verifier: int) -> Broker:
    """A channel that answers all calls; see `Channel` for the arguments."""
    channel = Broker(terms, folder, listener, verifier)
    channel.handlers = handlers(channel)
    return channel


class Names:
    """Answers such calls by the rules of a channel. A method returns whether it has answered."""

    def __init__(self, rules: Broker) -> None:
        self._rules = rules

    def _paths(self, call: Call, *arguments: tuple[int, int]) -> list[str]:
        """The paths of some pairs of a folder and a path, read once, since another thread may change them."""
        return [self._rules.path(call, folder, address) for folder, address in arguments]

    def _named(self, call: Call, *paths: str) -> list[str | None]:
        """The paths relative to the verifier's folder, if the caller may write there; None for others."""
        process = self._rules.of(call[1])
        found = [self._rules.inside(path) for path in paths]
        for each in found:
            if each is not None:
                self._rules.require_writer(process, each)
        return found

    def rename(
        self, call: Call, first: tuple[int, int], second: tuple[int, int], flags: int = 0
    ) -> bool:
        before, after = self._paths(call, first, second)
        source, target = self._named(call, before, after)
        if source is not None and target is not None:
            os.rename(source, target, src_dir_fd=self._rules.folder, dst_dir_fd=self._rules.folder)
            return self._rules.done(call)
        if source is None and target is None:
            judged = self._rules.of(call[1]).judged
            if judged:
                self._require_kept_in_place(before, after)
                self._require_kept_in_place(after, before)
                self._in_folders(before, after, partial(callers.rename, flags))
            moved = {
                path
                for path in self._rules.agents
                if path == before or path.startswith(f"{before}/")
            }
            self._rules.take(
                {after + path[len(before) :] for path in moved} | ({after} if judged else set()),
                judged,
            )
            return self._rules.done(call) if judged else False
        return False  # between two mounts: the kernel says so, and the file is copied

    def link(
        self, call: Call, first: tuple[int, int], second: tuple[int, int], flags: int = 0
    ) -> bool:
        before, after = self._paths(call, first, second)
        source, target = self._named(call, before, after)
        if source is not None and target is not None:
            os.link(
                source,
                target,
                src_dir_fd=self._rules.folder,
                dst_dir_fd=self._rules.folder,
                follow_symlinks=False,
            )
            return self._rules.done(call)
        if source is None and target is None:
            judged = self._rules.of(call[1]).judged
            if judged or self._rules.is_agents(before):
                self._rules.take({after}, judged)
            if judged and not flags:
                self._require_kept_in_place(before, after)
                self._in_folders(before, after, _linked)
                return self._rules.done(call)
        return False

    def _in_folders(
        self, before: str, after: str, act: Callable[[int, str, int, str], object]
    ) -> None:
        """Acts on two paths for the caller, by their folders' handles."""
        source = self._rules.folder_of(before)
        try:
            target = self._rules.folder_of(after)
            try:
                act(source, os.path.basename(before), target, os.path.basename(after))
            finally:
                os.close(target)
        finally:
            os.close(source)

    def symlink(self, call: Call, text: int, folder: int, address: int) -> bool:
        process = self._rules.of(call[1])
        if not (process.judged or process.tainted or process.reads):
            return False
        path = self._rules.path(call, folder, address)
        self._rules.take({path}, process.judged)
        if (process.tainted and not process.judged) or self._rules.inside(path) is not None:
            return False
        target = callers.read_text(call[1], text)
        parent = self._rules.folder_of(path)
        try:
            self._require_harmless(parent, os.fsdecode(target))
            os.symlink(target, os.path.basename(path), dir_fd=parent)
        finally:
            os.close(parent)
        return self._rules.done(call)

    def _require_harmless(self, parent: int, target: str) -> None:
        """Refuses a link by which a verifier could take a file of its tests for one of the agent's.

        Those that compare two files may look at nothing but whether they are the same, without opening them.
        """
        reached = os.path.realpath(f"{os.readlink(f'/proc/self/fd/{parent}')}/{target}")
        if target.startswith("/"):
            reached = os.path.realpath(target)
        way = os.path.normpath(target)
        if (
            self._rules.is_above_hidden(reached)
            or self._rules.is_hidden(reached)
            or reached == "/dev"
            or way.startswith(("/proc", "/dev/fd", "/dev/std"))
            or reached.startswith("/proc")
            or climbs(target)
        ):
            raise Refusal(errno.EACCES, f"link to {reached}")

    @staticmethod
    def _require_kept_in_place(before: str, after: str) -> None:
        """Make a judged process copy a link that would lead elsewhere from its new place."""
        if os.path.dirname(before) != os.path.dirname(after) and _has_relative_link(before):
            raise Refusal(errno.EXDEV)

    def remove(self, call: Call, folder: int, address: int, *, is_folder: bool) -> bool:
        (inside,) = self._named(call, *self._paths(call, (folder, address)))
        if inside is None:
            return False
        (os.rmdir if is_folder else os.unlink)(inside, dir_fd=self._rules.folder)
        return self._rules.done(call)

    def make_folder(self, call: Call, folder: int, address: int, mode: int) -> bool:
        (inside,) = self._named(call, *self._paths(call, (folder, address)))
        if inside is None:
            return False
        os.mkdir(inside or ".", mode & 0o7777, dir_fd=self._rules.folder)
        return self._rules.done(call)

    def truncate(self, call: Call) -> bool:
        address, length = call[2][:2]
        (inside,) = self._named(call, *self._paths(call, (AT_CWD, address)))
        if inside is None:
            return False
        opened = self._rules.own(inside, os.O_WRONLY, 0, call[1])
        try:
            os.ftruncate(opened, length)
        finally:
            os.close(opened)
        return self._rules.done(call)

    def change_mode(self, call: Call, folder: int, address: int, mode: int) -> bool:
        (inside,) = self._named(call, *self._paths(call, (folder, address)))
        if inside is None:
            return False
        opened = self._rules.own(inside, os.O_RDONLY, 0, call[1])
        try:
            os.fchmod(opened, mode & 0o7777)
        finally:
            os.close(opened)
        return self._rules.done(call)

    def pass_over(self, call: Call, folder: int, address: int) -> bool:
        """Owners and times of files, which nobody looks at."""
        if not address:
            return False
        (inside,) = self._named(call, *self._paths(call, (folder, address)))
        return inside is not None and self._rules.done(call)

    def signal(self, call: Call) -> bool:
        """`kill` and the like: a judged process reaches judged ones alone."""
        process, target = self._rules.of(call[1]), ctypes.c_int(call[2][0]).value
        if process.judged and self._rules.guards_signals:
            if target > 0:
                reached = [target]
            else:
                group = os.getpgid(process.number) if target == 0 else -target
                reached = [] if target == -1 else [*callers.members(group)]
            if target == -1 or not all(self.is_judged(each) for each in reached):
                raise Refusal(errno.EPERM, "signal the verifier")
        return False

    def signal_by_handle(self, call: Call) -> bool:
        process = self._rules.of(call[1])
        if process.judged and self._rules.guards_signals:
            with open(f"/proc/{call[1]}/fdinfo/{ctypes.c_int(call[2][0]).value}") as lines:
                found = [int(line.split()[1]) for line in lines if line.startswith("Pid:")]
            if not all(self.is_judged(each) for each in found if each > 0):
                raise Refusal(errno.EPERM, "signal the verifier")
        return False

    def limit(self, call: Call) -> bool:
        process, number = self._rules.of(call[1]), ctypes.c_int(call[2][0]).value
        if process.judged and call[2][2] and not self.is_judged(number):
            raise Refusal(errno.EPERM, "limit the verifier")
        return False

    def is_judged(self, number: int) -> bool:
        try:
            return self._rules.of(number).judged
        except (OSError, KeyError):  # there is none
            return True

    def connect(self, call: Call) -> bool:
        """A judged process reaches Unix sockets of judged ones alone."""
        if not self._rules.of(call[1]).judged:
            return False
        _, address, size = call[2][:3]
        target = callers.read(call[1], address, min(size, 110))
        if len(target) < 3 or int.from_bytes(target[:2], "little") != _AF_UNIX:
            return False
        raw = target[2:]
        name = b"@" + raw[1:].rstrip(b"\0") if raw[:1] == b"\0" else raw.partition(b"\0")[0]
        for inode in callers.unix_sockets(os.fsdecode(name)):
            if any(not self.is_judged(each) for each in callers.holders(inode)):
                raise Refusal(errno.EACCES, "connect to the verifier")
        return False


def climbs(target: str) -> bool:
    """Whether a link's target has `..` behind a name, which leads elsewhere than it reads where that is a link."""
    words = [word for word in target.split("/") if word not in ("", ".")]
    named = next((place for place, word in enumerate(words) if word != ".."), len(words))
    return ".." in words[named:]


def _has_relative_link(path: str) -> bool:
    """Whether a path is a link that goes up, or a folder with such."""
    found = [path]
    for folder, folders, files in os.walk(path) if not os.path.islink(path) else ():
        found += [f"{folder}/{name}" for name in (*folders, *files)]
    return any(os.path.islink(each) and os.readlink(each).startswith("..") for each in found)


def handlers(rules: Broker) -> dict[int, Callable[[Call], bool]]:
    """The method for each call, by its number. A method returns whether it has answered."""
    names, cwd = Names(rules), AT_CWD
    calls: dict[str, Callable[[Call], bool]] = {
        "execve": rules.execute,
        "execveat": rules.execute_at,
        "open": rules.open,
        "creat": rules.create,
        "openat": rules.open_at,
        "openat2": rules.open_at_2,
        "rename": lambda call: names.rename(call, (cwd, call[2][0]), (cwd, call[2][1])),
        "renameat": lambda call: names.rename(call, call[2][:2], call[2][2:4]),  # type: ignore[arg-type]
        "renameat2": lambda call: names.rename(call, call[2][:2], call[2][2:4], call[2][4]),  # type: ignore[arg-type]
        "link": lambda call: names.link(call, (cwd, call[2][0]), (cwd, call[2][1])),
        "linkat": lambda call: names.link(call, call[2][:2], call[2][2:4], call[2][4]),  # type: ignore[arg-type]
        "symlink": lambda call: names.symlink(call, call[2][0], cwd, call[2][1]),
        "symlinkat": lambda call: names.symlink(call, *call[2][:3]),
        "unlink": lambda call: names.remove(call, cwd, call[2][0], is_folder=False),
        "unlinkat": lambda call: names.remove(
            call, *call[2][:2], is_folder=bool(call[2][2] & 0x200)
        ),
        "rmdir": lambda call: names.remove(call, cwd, call[2][0], is_folder=True),
        "mkdir": lambda call: names.make_folder(call, cwd, *call[2][:2]),
        "mkdirat": lambda call: names.make_folder(call, *call[2][:3]),
        "truncate": names.truncate,
        "chmod": lambda call: names.change_mode(call, cwd, *call[2][:2]),
        **dict.fromkeys(
            ("fchmodat", "fchmodat2"), lambda call: names.change_mode(call, *call[2][:3])
        ),
        **dict.fromkeys(
            ("chown", "lchown", "utime", "utimes"),
            lambda call: names.pass_over(call, cwd, call[2][0]),
        ),
        **dict.fromkeys(
            ("fchownat", "utimensat"), lambda call: names.pass_over(call, *call[2][:2])
        ),
        **dict.fromkeys(
            ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"), names.signal
        ),
        "pidfd_send_signal": names.signal_by_handle,
        "connect": names.connect,
    }
    machine = os.uname().machine
    numbers = {**filters.NOTIFIED[machine], **filters.HEARD[machine]}
    calls |= {"mmap": rules.map, "prlimit64": names.limit}
    return {number: calls[name] for name, number in numbers.items()}


def _linked(source: int, name: str, target: int, other: str) -> None:
    os.link(name, other, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
