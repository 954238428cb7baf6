"""Runs a command where its folders aren't: they come by stdin and go back by stdout, in frames.

Run by whatever python3 the sandbox' image has (3.8 or later), with nothing of koderz but `frames` and `remote`. Where
this is root, the command is USER, which can't touch it.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress

from frames import frame, incoming
from remote import BESIDE, CLOCK, ENDED, LARGEST, OUTPUT, SPEC, TREE, WIRE, entries, pack, unpack

SILENCE = 120.0  # seconds without a frame, after which whoever wanted the command is gone
USER = 1000

_TMP = "/tmp"
_CHILD_SUBREAPER, _NO_NEW_PRIVILEGES = 36, 38
# seconds between two looks, and between two at the disk in times of what one takes
_PAUSE, _DISK_PAUSES = 0.2, 20
_END_SECONDS = 5.0
_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Reads what is to be done from stdin, does it and says what came of it."""
    ends = Ends()
    spec = json.loads(ends.next(SPEC))
    ended = {}
    if spec["argv"]:
        owner = USER if os.geteuid() == 0 else None
        hidden = {*spec["hidden"], *(entry.path for entry in os.scandir(_TMP))}
        for folder in spec["folders"]:
            hidden |= emptied(folder, hidden, owner)
        for folder in spec["own"] if owner is not None else ():
            os.chown(folder, owner, owner)
        unpack(ends, spec["folders"], float("inf"), owner)
        ends.finish()
        ended = Work(ends, spec, hidden, owner).done()
        if not pack(spec["back"], ends, spec["room"], hidden):
            ended["cause"] = ended["cause"] or "disk"
    else:
        pack(spec["back"], ends, spec["room"])
    ends.send(TREE)
    ends.send(ENDED, json.dumps(ended).encode())


class Ends:
    """Both streams of frames; also a file of the archive that comes in, and of the one that goes out."""

    def __init__(self) -> None:
        self._sending, self._rest, self._whole = threading.Lock(), b"", False
        self.frames = incoming(heard)

    def send(self, kind, data=b"", channel=0):
        with self._sending:
            rest = memoryview(frame(kind, data, channel))
            while rest:
                rest = rest[os.write(1, rest) :]

    def next(self, wanted):
        return next(data for kind, _, data in self.frames if kind == wanted)

    def write(self, data):
        for at in range(0, len(data), LARGEST):
            self.send(TREE, bytes(data[at : at + LARGEST]))
        return len(data)

    def read(self, size):
        while len(self._rest) < size and not self._whole:
            more = self.next(TREE)
            self._rest, self._whole = self._rest + more, not more
        part, self._rest = self._rest[:size], self._rest[size:]
        return part

    def finish(self):
        """Takes what is left of the archive."""
        while not self._whole:
            self._whole = not self.next(TREE)


class Work:
    """A command, and whoever connects to the bridge's port."""

    def __init__(self, ends, spec, hidden, owner):
        self._ends, self._spec, self._hidden, self._owner = ends, spec, hidden, owner
        self._connections, self._orders = {}, {}

    def done(self):
        """How the command ended: `{status, cause, cpu}`."""
        for option in (_CHILD_SUBREAPER, _NO_NEW_PRIVILEGES):
            if ctypes.CDLL(None).prctl(option, 1, 0, 0, 0):
                raise OSError(f"prctl {option} is refused")
        port = self._spec["port"]
        listening = socket.create_server(("127.0.0.1", port), backlog=128) if port else None
        try:
            process = self._started()
        except OSError as error:
            self._ends.send(OUTPUT, f"{self._spec['argv'][0]}: {error.strerror}\n".encode())
            return {"status": 127, "cause": "", "cpu": 0.0}
        printing = begun(self._print, process.stdout)
        begun(self._listen)
        if listening:
            begun(self._accept, listening)
        cause = self._watched(process)
        if cause:
            end(signal.SIGTERM, self._spec["grace"])
        end(signal.SIGKILL, _END_SECONDS)
        process.wait()
        printing.join(_END_SECONDS)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return {"status": process.returncode, "cause": cause, "cpu": used.ru_utime + used.ru_stime}

    def _started(self):
        own = {name: value for name, value in os.environ.items() if not name.startswith("MODAL_")}
        return subprocess.Popen(
            self._spec["argv"],
            cwd=self._spec["folders"][0],
            env={**own, **self._spec["environment"]},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=self._drop,  # no other thread runs yet
            start_new_session=True,
        )

    def _drop(self):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if self._owner is not None:
            os.setgroups([])
            os.setgid(self._owner)
            os.setuid(self._owner)

    def _watched(self, process):
        """Returns when the command has ended, or exceeds a limit: that one."""
        spec, until, look = self._spec, time.monotonic() + self._spec["seconds"], 0.0
        while True:
            with suppress(subprocess.TimeoutExpired):
                process.wait(min(_PAUSE, max(0.0, until - time.monotonic())))
            if process.returncode is not None:
                return ""
            began = time.monotonic()
            memory, threads = used()
            if began >= until:
                return "timeout"
            if memory > spec["memory"]:
                return "memory"
            if threads > spec["processes"]:
                return "processes"
            if began >= look:
                found = (
                    told.st_blocks
                    for folder in spec["folders"]
                    for _, told in entries(folder, self._hidden)
                )
                if sum(found) * 512 > spec["room"]:
                    return "disk"
                look = time.monotonic() + max(1.0, _DISK_PAUSES * (time.monotonic() - began))

    def _print(self, stream):
        while True:
            part = os.read(stream.fileno(), LARGEST)
            if not part:
                return
            self._ends.send(OUTPUT, part)

    def _accept(self, listening):
        for channel in range(1 << 32):
            self._connections[channel] = listening.accept()[0]
            begun(self._hand_out, channel, self._connections[channel])

    def _hand_out(self, channel, connection):
        part = b"-"
        while part:
            try:
                part = connection.recv(LARGEST)
            except OSError:
                part = b""
            self._ends.send(WIRE, part, channel)

    def _beside(self, channel, order):
        """Runs Python that isn't the command's, as whoever this is; nothing is said where it fails."""
        words, given = [sys.executable, "-I", "-S", "-c", order["source"]], order["given"].encode()
        ended = subprocess.run(
            words, input=given, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/"
        )
        for at in range(0, 0 if ended.returncode else len(ended.stdout), LARGEST):
            self._ends.send(BESIDE, ended.stdout[at : at + LARGEST], channel)
        self._ends.send(BESIDE, b"", channel)

    def _listen(self):
        """Hands on what comes for connections. Ends all when nobody is there any more."""
        with suppress(EOFError):
            for kind, channel, data in self._ends.frames:
                if kind == CLOCK:
                    self._ends.send(CLOCK, b"%d" % cpu(), channel)
                elif kind == BESIDE and data:
                    self._orders[channel] = self._orders.get(channel, b"") + data
                elif kind == BESIDE:
                    begun(self._beside, channel, json.loads(self._orders.pop(channel)))
                elif kind == WIRE and channel in self._connections:
                    with suppress(OSError):
                        if data:
                            self._connections[channel].sendall(data)
                        else:
                            self._connections.pop(channel).shutdown(socket.SHUT_RDWR)
        end(signal.SIGKILL, _END_SECONDS)
        os._exit(1)


def begun(work, *arguments):
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    thread.start()
    return thread


def heard(size):
    """Read from stdin, at most so many bytes. Raises EOFError at its end."""
    part = os.read(0, size) if select.select([0], [], [], SILENCE)[0] else b""
    if not part:
        raise EOFError("nobody is there any more")
    return part


def emptied(folder, hidden, owner):
    """Makes a folder, and empties it but for what is hidden. Returns what can't be removed."""
    os.makedirs(folder, exist_ok=True)
    if owner is not None and folder != _TMP:
        os.chown(folder, owner, owner)
    kept = set()
    for path, told in [*entries(folder, hidden)][::-1]:
        try:
            os.rmdir(path) if stat.S_ISDIR(told.st_mode) else os.unlink(path)
        except OSError:
            kept.add(path)
    return kept


def below():
    """The processes that this one has brought about and that haven't ended."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError, ValueError):
            with open(f"/proc/{name}/stat") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(name)] = int(parent)
    found, more = set(), {os.getpid()}
    while more:
        found |= more
        more = {each for each, parent in parents.items() if parent in found} - found
    return found - {os.getpid()}


def used():
    """Bytes of memory that are no file's, and threads, of all of them."""
    memory, threads = 0, 0
    for each in below():
        with suppress(OSError, ValueError):
            with open(f"/proc/{each}/statm") as file:
                _, resident, shared = map(int, file.read().split()[:3])
            memory += max(0, resident - shared) * resource.getpagesize()
            threads += len(os.listdir(f"/proc/{each}/task"))
    return memory, threads


def cpu():
    """Nanoseconds of CPU of all of them, and of those that have ended; of the latter to a tick of the kernel's."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = round((ended.ru_utime + ended.ru_stime) * 1e9)
    for each in below():
        with suppress(OSError, ValueError):
            total += time.clock_gettime_ns((~each << 3) | 2)
            with open(f"/proc/{each}/stat") as file:
                total += sum(map(int, file.read().rpartition(")")[2].split()[13:15])) * _TICK
    return total


def end(number, seconds):
    """Signals all processes below this one until none is left, or for so long."""
    until, told = time.monotonic() + seconds, set()
    left = below()
    while left and time.monotonic() < until:
        for each in left if number == signal.SIGKILL else left - told:
            with suppress(OSError):
                os.kill(each, number)
        told |= left
        time.sleep(0.02)
        left = below()


main()
