"""The reward's channel: what a verifier's processes may do to its folder, its tests and each other.

The folder is read-only for everything in the verifier's namespaces. Process 1 hears of calls by a seccomp listener and
opens files of the folder for those who may write there. A process is *judged* once it runs a program of the agent's, as
is all that it starts, and whatever has lost its parents: it can't write there, read the tests, signal others or see
their memory. Its opens are made for it, so that no thread of its changes a path meanwhile. A process that loads the
agent's code without being started as such is *tainted*: it may not write the reward itself.

The agent's are the files that it changed, and those made of them: what a process writes after it has read one, see
`flows`.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import select
import stat
import struct

from koderz.systems.workspaces.inside import callers, programs, startup
from koderz.systems.workspaces.inside.callers import AT_CWD, Call, Refusal
from koderz.systems.workspaces.inside.flows import Flows

TYPE_CHECKING = False  # which process 1 of a sandbox would wait for
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

_NOTICE, _ANSWER, _DESCRIPTOR = (
    struct.Struct("=QIIiIQ6Q"),
    struct.Struct("=QqiI"),
    struct.Struct("=QIIII"),
)
_RECEIVE, _SEND, _IS_VALID, _ADD, _SET_FLAGS = (
    0xC0502100,
    0xC0182101,
    0x40082102,
    0x40182103,
    0x40082104,
)
_CONTINUE, _SET, _SEND_WITH_IT, _SYNC_WAKE_UP = 1, 1, 2, 1
_ERRORS = 2

_NO_MAGIC_LINKS, _NO_LINKS, _BENEATH = 2, 4, 8
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_MOST_LISTED, _MOST_KNOWN = 20, 200
_REWARDS = ("reward.txt", "reward.json")
_CODE = (
    *(
        ".py",
        ".pyc",
        ".so",
        ".js",
        ".mjs",
        ".cjs",
        ".rb",
        ".pl",
        ".pm",
        ".sh",
        ".bash",
        ".lua",
        ".php",
        ".r",
        ".R",
    ),
    *(
        ".jl",
        ".class",
        ".jar",
        ".tcl",
        ".ts",
        ".mk",
        ".pkl",
        ".pickle",
        ".joblib",
        ".pt",
        ".pth",
        ".exs",
        ".el",
    ),
)
_CODE_NAMES = (
    "Makefile",
    "makefile",
    "GNUmakefile",
    "CMakeLists.txt",
    "package.json",
    "build.rs",
    "Rakefile",
)
_PROGRAMS = ("/usr/local/bin", "/usr/bin", "/bin", "/opt/koderz/tools", "/opt/koderz/tools/bin")
_OWN = re.compile(r"/proc/(?:self|thread-self|\d+)/fd/(\d+)")


class Broker:
    """Answers the calls of a verifier."""

    def __init__(self, terms: Mapping[str, Any], folder: int, listener: int, verifier: int) -> None:
        """`terms`: a `koderz.sandbox.workspace.RewardChannel` as a dict; `folder`: a handle on its folder."""
        self._at: str = terms["target"]
        self.folder, self.listener, self._verifier = folder, listener, verifier
        self._hidden: tuple[str, ...] = (
            () if "tests-readable" in terms["lifted"] else tuple(terms["hidden"])
        )
        # a folder that nobody may reach
        self._closed = f"{terms['closed']}/" if terms.get("closed") else ""
        self._guards_rewards = "rewards-writable" not in terms["lifted"]
        self._guards_loaders = self._guards_rewards and "loaders-write" not in terms["lifted"]
        self.guards_signals = "signals" not in terms["lifted"]
        self.agents: set[str] = {*terms["agents"]}
        self._given = frozenset(self.agents)
        self._homes: tuple[str, ...] = tuple(terms["homes"])  # where the agent's files may lie
        self._handed: set[tuple[int, int]] = set()  # files of the folder, by their identity
        self._by_judged: set[str] = set()  # those that judged processes have made
        self._known: dict[int, callers.Process] = {}
        self.handlers: dict[
            int, Callable[[Call], bool]
        ] = {}  # by the number of a call: returns whether it has answered
        self._notice, self._answer = bytearray(_NOTICE.size), bytearray(_ANSWER.size)
        self.loaded: list[str] = []
        self.refused: list[str] = []
        self.flows = Flows(
            self.agents, self._known, self._load, lambda what: self._list(self.loaded, what)
        )
        try:
            fcntl.ioctl(listener, _SET_FLAGS, _SYNC_WAKE_UP)
        except OSError:  # before Linux 6.6
            return

    def facts(self) -> dict[str, Any]:
        """The agent's code that processes of the verifier loaded, and what judged ones were refused."""
        return {"loaded": self.loaded, "refused": self.refused}

    def answer(self) -> bool:
        """Answers the next call. To be called when the listener is readable. Returns whether there can be more."""
        self._notice[:] = bytes(_NOTICE.size)
        try:
            fcntl.ioctl(self.listener, _RECEIVE, self._notice)
        except OSError:  # the caller is gone, or all are
            return not self._has_ended()
        call, thread, _, number, _, _, *arguments = _NOTICE.unpack(self._notice)
        handled = self.handlers.get(number)
        error, flags = 0, _CONTINUE
        try:
            if handled and handled((call, thread, tuple(arguments))):
                return True
        except Refusal as refusal:
            error, flags = -refusal.number, 0
            self._list(self.refused, refusal.what)
        except OSError as failed:
            error, flags = -(failed.errno or errno.EIO), 0
        except (LookupError, ValueError):
            # the caller ended meanwhile, or asks for what makes no sense
            error, flags = -errno.EIO, 0
        self._respond(call, 0, error, flags)
        return True

    def _has_ended(self) -> bool:
        looked = select.poll()
        looked.register(self.listener, select.POLLIN)
        return any(event & select.POLLHUP for _, event in looked.poll(0))

    def _respond(self, call: int, value: int, error: int, flags: int) -> None:
        _ANSWER.pack_into(self._answer, 0, call, value, error, flags)
        try:
            fcntl.ioctl(self.listener, _SEND, self._answer)
        except OSError:  # the caller is gone
            return

    def done(self, call: Call) -> bool:
        """Answers that the call has succeeded."""
        self._respond(call[0], 0, 0, 0)
        return True

    def _list(self, into: list[str], what: str) -> None:
        if what and what not in into and len(into) < _MOST_LISTED:
            into.append(what)

    # Who calls.

    def of(self, thread: int) -> callers.Process:
        """The process of a thread; Refusal if it has ended."""
        found = self._known.get(thread)
        if found and found.is_alive:
            return found
        status = callers.status(thread)
        number = int(status["Tgid"])
        found = self._known.get(number)
        if found and found.is_alive:
            return found
        if found:
            self._known.pop(number).close()
        if len(self._known) > _MOST_KNOWN:
            self._forget()
        parent = int(status["PPid"])
        is_verifier = number == self._verifier
        above = None if is_verifier or parent <= 1 else self.of(parent)
        is_ours = is_verifier or number == os.getpid()
        found = self._known[number] = callers.Process(number, above, is_verifier=is_ours)
        self.flows.began(found)
        return found

    def _forget(self) -> None:
        for number in [number for number, process in self._known.items() if not process.is_alive]:
            self._known.pop(number).close()

    # Paths.

    def path(self, call: Call, folder: int, address: int) -> str:
        """A path argument as an absolute one; links aren't followed."""
        text = os.fsdecode(callers.read_text(call[1], address))
        if not text.startswith("/"):
            text = os.path.normpath(f"{self._base(call[1], folder)}/{text}")
        elif "/." in text or "//" in text:
            text = os.path.normpath(text)
        if self._closed and any(
            f"{each}/".startswith(self._closed) for each in (text, os.path.realpath(text))
        ):
            raise Refusal(errno.EACCES, f"reach {text}")
        return text

    @staticmethod
    def _base(thread: int, folder: int) -> str:
        folder = ctypes.c_int(folder).value
        return os.readlink(
            f"/proc/{thread}/cwd" if folder == AT_CWD else f"/proc/{thread}/fd/{folder}"
        )

    def inside(self, path: str) -> str | None:
        """A path relative to the verifier's folder; None where it isn't below it."""
        if path.startswith(self._at) and path[len(self._at) : len(self._at) + 1] in ("", "/"):
            return path[len(self._at) + 1 :]
        return None

    def is_agents(self, path: str) -> bool:
        return path in self.agents

    def take(self, paths: set[str], judged: bool) -> None:
        """Files become the agent's; `judged`: made by a process that is."""
        if judged:
            self._by_judged |= paths
        self.flows.add(paths)

    def _is_or_leads_to_agents(self, path: str) -> bool:
        return self.is_agents(path) or self.is_agents(self._real(path))

    def _real(self, path: str) -> str:
        return os.path.realpath(path) if path.startswith(self._homes) else path

    def is_hidden(self, path: str) -> bool:
        return any(path == each or path.startswith(f"{each}/") for each in self._hidden)

    def is_above_hidden(self, path: str) -> bool:
        """Whether hidden files lie below a path."""
        return any(each.startswith(f"{path.rstrip('/')}/") for each in self._hidden)

    @staticmethod
    def folder_of(path: str) -> int:
        """A handle on the folder of a path."""
        return callers.open_2(
            AT_CWD, os.path.dirname(path), os.O_PATH | os.O_DIRECTORY, 0, _NO_MAGIC_LINKS
        )

    # Programs and code.

    def execute(self, call: Call) -> bool:
        path, words = call[2][:2]
        return self._executed(call, self.path(call, AT_CWD, path), words)

    def execute_at(self, call: Call) -> bool:
        folder, path, words = call[2][:3]
        return self._executed(call, self.path(call, folder, path), words)

    def _executed(self, call: Call, program: str, words: int) -> bool:
        thread = call[1]
        process = self.of(thread)
        if process.judged:
            if self.is_hidden(program) or self.is_hidden(os.path.realpath(program)):
                raise Refusal(errno.EACCES, f"run {program}")
            return False
        argv = callers.read_words(thread, words)
        self._require_unreplaced(program, argv[0] if argv else "")
        process.judged = self._is_or_leads_to_agents(program) or programs.is_of_git(thread, program)
        if not process.judged:
            starting = programs.Starting(
                thread, program, argv, self._base(thread, AT_CWD), self.agents
            )
            process.judged = starting.runs_agents(self._is_or_leads_to_agents)
            if not process.judged:
                self.flows.starts(process, starting)
        if process.judged:
            self.flows.gives(process)
            self._take_descriptors(call, process)
        return False

    def _require_unreplaced(self, program: str, word: str) -> None:
        """Refuses a program that a judged process has put where one of the system's is looked for.

        Where a program's own folder may be meant, that is one that is called by its name, without a folder.
        """
        name = os.path.basename(program)
        is_new = self.is_agents(program) and program not in self._given
        if (
            is_new
            and program.startswith(self._homes)
            and ("/" in word or program not in self._by_judged)
        ):
            return
        if is_new and any(os.path.exists(f"{folder}/{name}") for folder in _PROGRAMS):
            raise Refusal(errno.ENOENT, f"run {program} in place of the system's")

    def _take_descriptors(self, call: Call, process: callers.Process) -> None:
        """Puts /dev/null in the place of what a judged process would have inherited of the tests and rewards.

        Its standard input, output and errors are what the verifier gives it.
        """
        for number in callers.descriptors(process.number):
            path = callers.descriptor(process.number, number)
            is_handed = callers.identity(f"/proc/{process.number}/fd/{number}") in self._handed
            if number > _ERRORS and (
                is_handed or self.is_hidden(path) or self.inside(path) is not None
            ):
                nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.ioctl(
                        self.listener, _ADD, _DESCRIPTOR.pack(call[0], _SET, nothing, number, 0)
                    )
                finally:
                    os.close(nothing)

    def map(self, call: Call) -> bool:
        """A file that is mapped as code."""
        process = self.of(call[1])
        descriptor = ctypes.c_int(call[2][4]).value
        if not process.judged and not process.tainted and descriptor >= 0:
            path = os.readlink(f"/proc/{call[1]}/fd/{descriptor}")
            if self.is_agents(path):
                self._load(process, path)
        return False

    def _load(self, process: callers.Process, what: str) -> None:
        process.tainted = True
        self._list(self.loaded, what)

    # Files that are opened.

    def open(self, call: Call) -> bool:
        path, flags, mode = call[2][:3]
        return self._opened(call, AT_CWD, path, flags, mode)

    def create(self, call: Call) -> bool:
        path, mode = call[2][:2]
        return self._opened(call, AT_CWD, path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)

    def open_at(self, call: Call) -> bool:
        folder, path, flags, mode = call[2][:4]
        return self._opened(call, folder, path, flags, mode)

    def open_at_2(self, call: Call) -> bool:
        folder, path, how, size = call[2][:4]
        if size < 24:
            raise Refusal(errno.EINVAL)
        flags, mode, resolve = struct.unpack("=3Q", callers.read(call[1], how, 24))
        process = self.of(call[1])
        if resolve and process.judged:
            # libraries fall back to openat
            raise Refusal(errno.EAGAIN if resolve & 0x20 else errno.ENOSYS)
        return self._opened(call, folder, path, flags, mode)

    def _opened(self, call: Call, folder: int, address: int, flags: int, mode: int) -> bool:
        process = self.of(call[1])
        if process.judged:
            return self._serve_judged(call, folder, address, flags, mode)
        path = self.path(call, folder, address)
        inside = self.inside(path)
        if inside is not None and flags & _WRITES and not flags & os.O_PATH:
            self.require_writer(process, inside)
            return self._hand(call, self.own(inside, flags, mode, call[1]), flags)
        if path.startswith(self._homes) or path in self.agents:
            self._require_unobeyed(path, call[1])
            self._noticed(process, path, flags)
        elif flags & os.O_CREAT:
            self.flows.made(process, {path})
        elif process.includes and self.is_hidden(os.path.realpath(path)):
            raise Refusal(errno.EACCES, f"include {path}")
        elif self.is_hidden(path):
            process.is_of_tests = True
            self.flows.opened_script(process, path)
        return False

    def _require_unobeyed(self, path: str, thread: int) -> None:
        """Hides what a judged process has made for a program of the verifier's to obey as it starts."""
        if path in self._by_judged and startup.is_obeyed(
            path, self._home(), self._base(thread, AT_CWD)
        ):
            raise Refusal(errno.ENOENT, f"have {path} obeyed")

    def _home(self) -> str:
        """The home of the verifier's user."""
        try:
            with open(f"/proc/{self._verifier}/environ", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            return ""
        return next((os.fsdecode(word[5:]) for word in words if word.startswith(b"HOME=")), "")

    def _noticed(self, process: callers.Process, path: str, flags: int) -> None:
        """Takes note of what a process of the verifier's opens where the agent's files may lie."""
        real = os.path.realpath(path)
        if self.is_agents(path) or self.is_agents(real):
            if flags & os.O_ACCMODE != os.O_WRONLY and not flags & os.O_DIRECTORY:
                process.includes = process.includes or (
                    not process.is_of_tests and programs.compiles(process)
                )
                self.flows.received(process)
                self.flows.weigh(process, opened=path)
                if (
                    path.endswith(_CODE) or os.path.basename(path) in _CODE_NAMES
                ) and not programs.only_copies(process.number):
                    self._load(process, path)
        elif flags & os.O_CREAT:
            self.flows.made(process, {path, real})
        if self.is_hidden(real) and not self.is_hidden(path) and self._by_agents_link(path):
            raise Refusal(errno.EACCES, f"lead to {real} by {path}")

    def _by_agents_link(self, path: str) -> bool:
        while path != "/":
            if self.is_agents(path):
                return True
            path = os.path.dirname(path)
        return False

    def require_writer(self, process: callers.Process, inside: str) -> None:
        """Raises Refusal where a process may not write a file of the folder."""
        # Settings of a repository may have git put its files there.
        loads = os.path.basename(inside) in _REWARDS and (
            process.tainted or programs.is_git(process.number)
        )
        if (process.judged and self._guards_rewards) or (loads and self._guards_loaders):
            raise Refusal(errno.EACCES, f"write {self._at}/{inside}")

    def own(self, inside: str, flags: int, mode: int, thread: int) -> int:
        """A file of the verifier's folder, opened here; no link is followed."""
        creates = flags & (os.O_CREAT | 0o20000000)
        before = os.umask(callers.umask(thread))
        try:
            found = callers.open_2(
                self.folder,
                inside or ".",
                flags,
                mode & 0o7777 if creates else 0,
                _BENEATH | _NO_LINKS,
            )
            self._handed.add(callers.identity(f"/proc/self/fd/{found}"))
            return found
        finally:
            os.umask(before)

    def _hand(self, call: Call, descriptor: int, flags: int) -> bool:
        """Answers with a descriptor, which is closed here."""
        try:
            own = flags & os.O_CLOEXEC
            fcntl.ioctl(
                self.listener, _ADD, _DESCRIPTOR.pack(call[0], _SEND_WITH_IT, descriptor, 0, own)
            )
        except OSError as error:
            if error.errno != errno.ENOENT:  # the caller is gone
                raise
        finally:
            os.close(descriptor)
        return True

    def _serve_judged(self, call: Call, folder: int, address: int, flags: int, mode: int) -> bool:
        """Opens a file for a judged process, unless it may not have it."""
        thread = call[1]
        path = os.fsdecode(callers.read_text(thread, address))
        if not path:
            raise Refusal(errno.ENOENT)
        if not path.startswith("/"):
            path = f"{self._base(thread, folder)}/{path}"
        path = self._of_caller(path, thread)
        if self.inside(os.path.normpath(path)) is not None and flags & _WRITES:
            if self._guards_rewards:
                raise Refusal(errno.EACCES, f"write {path}")
            inside = self.inside(os.path.normpath(path)) or ""
            return self._hand(call, self.own(inside, flags, mode, thread), flags)
        if own := _OWN.fullmatch(path):
            return self._hand(
                call, os.open(f"/proc/{thread}/fd/{own[1]}", flags & ~_CREATES), flags
            )
        found = self._found(path, flags, thread)
        if found < 0:
            return self._hand(call, self._created(path, flags, mode, thread), flags)
        return self._reopened(call, found, flags)

    def _of_caller(self, path: str, thread: int) -> str:
        """A path in which the caller's own /proc/self is written out, and the links of /dev to its descriptors."""
        path = re.sub(r"/+", "/", path)
        path = re.sub(r"^/dev/fd/", "/proc/self/fd/", path)
        if path in _STANDARD:
            path = f"/proc/self/fd/{_STANDARD.index(path)}"
        return re.sub(
            r"^/proc/(?:self|thread-self)(?=/|$)", f"/proc/{self.of(thread).number}", path
        )

    def _found(self, path: str, flags: int, thread: int) -> int:
        """A handle on what is at a path; -1 where it is to be made. Refusal where a judged process may not have it."""
        follows = flags & os.O_NOFOLLOW
        try:
            handle = callers.open_2(
                AT_CWD, path, os.O_PATH | os.O_CLOEXEC | follows, 0, _NO_MAGIC_LINKS
            )
        except FileNotFoundError:
            if flags & os.O_CREAT:
                return -1
            raise
        try:
            self._require_visible(handle, thread)
            if flags & os.O_CREAT and flags & os.O_EXCL:
                raise Refusal(errno.EEXIST)
            if follows and not flags & os.O_PATH and stat.S_ISLNK(os.fstat(handle).st_mode):
                raise Refusal(errno.ELOOP)
        except BaseException:
            os.close(handle)
            raise
        return handle

    def _require_visible(self, handle: int, thread: int) -> None:
        real = os.readlink(f"/proc/self/fd/{handle}")
        if self.is_hidden(real):
            raise Refusal(errno.EACCES, f"read {real}")
        head, _, rest = real.removeprefix("/proc/").partition("/")
        if real.startswith("/proc/") and head.isdigit() and rest:
            other = self._known.get(int(head))
            if int(head) != self.of(thread).number and not (other and other.judged):
                raise Refusal(
                    errno.EACCES, f"read {real}" if rest in ("mem", "maps", "environ") else ""
                )

    def _reopened(self, call: Call, handle: int, flags: int) -> bool:
        if flags & os.O_PATH:
            return self._hand(call, handle, flags)
        try:
            if flags & _WRITES:
                self.take({os.readlink(f"/proc/self/fd/{handle}")}, judged=True)
            if stat.S_ISFIFO(os.fstat(handle).st_mode):
                self._wait_apart(call, handle, flags)
            else:
                self._hand(call, _opened_again(handle, flags), flags)
        finally:
            os.close(handle)
        return True

    def _wait_apart(self, call: Call, handle: int, flags: int) -> None:
        """Opens a pipe with a name, whose other end may be long in coming."""
        if os.fork():
            return
        try:
            self._hand(call, _opened_again(handle, flags), flags)
        except OSError as error:
            self._respond(call[0], 0, -(error.errno or errno.EIO), 0)
        finally:
            os._exit(0)

    def _created(self, path: str, flags: int, mode: int, thread: int) -> int:
        parent, name = os.path.split(path.rstrip("/"))
        folder = callers.open_2(
            AT_CWD, parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, 0, _NO_MAGIC_LINKS
        )
        before = os.umask(callers.umask(thread))
        try:
            self._require_visible(folder, thread)
            made = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode & 0o7777, dir_fd=folder)
            self.take({f"{os.readlink(f'/proc/self/fd/{folder}')}/{name}"}, judged=True)
            return made
        finally:
            os.umask(before)
            os.close(folder)


def _opened_again(handle: int, flags: int) -> int:
    return os.open(f"/proc/self/fd/{handle}", flags & ~(_CREATES | os.O_NOFOLLOW) | os.O_CLOEXEC)


_CREATES = os.O_CREAT | os.O_EXCL
_STANDARD = ("/dev/stdin", "/dev/stdout", "/dev/stderr")
