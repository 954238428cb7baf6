"""Patches that are made to fool the measuring: none gains by it, and none is more than a failed patch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from koderz.sandbox.calibration import open_exclusive
from koderz.systems.patches.checking import Unrecorded
from koderz.systems.patches.judging import verdict_on
from koderz.systems.patches.measuring.bench import Bench, Measured
from koderz.systems.patches.measuring.legs import Workloads
from koderz.systems.patches.measuring.verdicts import Block, Rule, found
from koderz.systems.patches.patches import diff_of, patch_of
from koderz.systems.patches.tasks import PerfTask
from koderz.systems.patches.trees import Trees
from koderz.systems.workspaces.local import Local
from koderz.types import Verdict
from tests.koderz.systems.patches.conftest import FAST, FILES, SLOW

RULE = Rule(max_blocks=3)
KEPT = "\n\n_slow = total\n\n\ndef total(n):\n    name = str(n)\n"

# No faster than base, whatever they try: inputs are fresh, the clock is outside, and nothing is left for the next leg.
IDLE = {
    "memory": f"{SLOW}\n\n_seen = {{}}\n{KEPT}    _seen[name] = _seen.get(name) or _slow(n)\n    return _seen[name]\n",
    "disk": f"""{SLOW}{KEPT}
    import pathlib, tempfile
    places = [pathlib.Path(p) for p in (tempfile.gettempdir(), "/dev/shm", "/var/tmp", "/run", pathlib.Path.home())]
    for place in places:
        if (place / name).exists():
            return int((place / name).read_text())
    found = _slow(n)
    for place in places:
        try:
            (place / name).write_text(str(found))
        except OSError:
            pass
    return found
""",
    "keyring": f"""{SLOW}{KEPT}
    import ctypes
    libc = ctypes.CDLL(None)
    key = libc.syscall(250, 10, -4, b"user", name.encode(), 0)  # KEYCTL_SEARCH
    held = ctypes.create_string_buffer(32)
    if key > 0 and libc.syscall(250, 11, key, held, 32) > 0:
        return int(held.value)
    found = str(_slow(n)).encode()
    libc.syscall(248, b"user", name.encode(), found, len(found), -4)  # add_key
    return int(found)
""",
    "clocks": f"import time, resource\n\nfor _c in ('time', 'perf_counter', 'process_time', 'monotonic'):\n"
    f"    setattr(time, _c, lambda: 0.0)\n    setattr(time, _c + '_ns', lambda: 0)\n"
    f"resource.getrusage = lambda who: None\n\n\n{SLOW}",
    "limits": "import os, resource, signal\n\n"
    "resource.setrlimit(resource.RLIMIT_CPU, resource.getrlimit(resource.RLIMIT_CPU))\n"
    f"os.sched_setaffinity(0, range(os.cpu_count()))\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n\n\n{SLOW}",
    "threads": f"""import threading

{SLOW.replace("def total", "def _slow")}

def total(n):
    found = []
    thread = threading.Thread(target=lambda: found.append(_slow(n)))
    thread.start()
    thread.join()
    return found[0]
""",
    "harness": "import json, sys\n\n"
    "for _m in list(sys.modules.values()):\n    for _n in ('equal', 'compare', 'timing_of'):\n"
    f"        setattr(_m, _n, lambda *a: True)\njson.dumps = lambda *a, **k: '0'\n\n\n{SLOW}",
    "terminal": f"print('\\x1b[2J\\x1b]0;owned\\x07' * 1000, flush=True)\n\n\n{SLOW}",
    "flood": f"import os\n\nos.write(1, b'x' * (1 << 24))\n\n\n{SLOW}",
    "driver": f"""import builtins, ctypes, gc, json, os, sys

sys.stdout = sys.stderr = open(os.devnull, "w")
for _place in ("/proc/self/mem", "/proc/1/mem", "/dev/mem"):
    try:
        os.close(os.open(_place, os.O_RDWR))
        raise SystemExit(f"{{_place}} can be written")
    except OSError:
        pass
_frame = sys._getframe()
while _frame := _frame.f_back:
    for _name in ("calls", "order"):
        if isinstance(_frame.f_locals.get(_name), dict):
            _frame.f_locals[_name].update(clock=0)
_fast = lambda *a, **k: 0
sys.setprofile(None)
json.encoder.c_make_encoder, json.decoder.scanner.c_make_scanner = None, None


{SLOW}""",
    "shared memory": f"""{SLOW}{KEPT}
    from multiprocessing import shared_memory
    try:
        held = shared_memory.SharedMemory(name="koderz" + name, track=False)
    except (OSError, TypeError):
        found = _slow(n)
        with open("/dev/shm/koderz" + name, "wb") as file:
            file.write(str(found).encode())
        return found
    return int(bytes(held.buf).rstrip(b"\\0"))
""",
    "no-op": f"# as fast as it can be\n{SLOW}",
}

# Faster where it is timed, but the work is done elsewhere in the process.
_READS_AHEAD = f"""import json, sys

{SLOW.replace("def total", "def _slow")}
_main, _ahead, _given = sys.modules["__main__"], {{}}, []
_receive, _send = getattr(_main, "receive", None), getattr(_main, "send", None)


def receive():
    _given.append(_receive())
    return _given[-1]


def send(content):
    if content == b"decoded":
        n = json.loads(_given[-1])
        _ahead[n] = _slow(n // PART)
    _send(content)


if _receive:
    _main.receive, _main.send = receive, send


def total(n):
    begun = n // PART if n in _ahead else 0
    result = _ahead.get(n, 0)
    for each in range(begun, n):
        result += each
    return result
"""

MOVED = {
    "read ahead": _READS_AHEAD.replace("PART", "1"),
    "a part ahead": _READS_AHEAD.replace("PART", "5"),
    "a thread ahead": f"""import sys, threading, time

{SLOW.replace("def total", "def _slow")}
_ahead, _held = {{}}, []
_frame = sys._getframe()
while _frame:
    _held, _frame = ([_frame] if _frame.f_code.co_name == "main" else _held), _frame.f_back
sys.setswitchinterval(0.0005)


def _watch():
    while True:
        given = _held[0].f_locals.get("given")
        if given and given not in _ahead:
            _ahead[given] = _slow(given)
        time.sleep(0.0001)


if _held and "leg.py" in _held[0].f_code.co_filename:
    threading.Thread(target=_watch, daemon=True).start()


def total(n):
    while _held and n > 100 and n not in _ahead:
        time.sleep(0.0001)
    return _ahead[n] if n in _ahead else _slow(n)
""",
    "answered early": f"""import json, sys

{SLOW.replace("def total", "def _slow")}
_main, _ahead, _given = sys.modules["__main__"], {{}}, []
_receive, _send = getattr(_main, "receive", None), getattr(_main, "send", None)


def receive():
    _given.append(_receive())
    return _given[-1]


def send(content):
    if content == b"decoded":
        _ahead[0] = _slow(json.loads(_given[-1]))
        _send(content)
        _send(str(_ahead[0]).encode())
    elif content == b"ready" or not _ahead:
        _send(content)


if _receive:
    _main.receive, _main.send = receive, send


def total(n):
    return _ahead[0] if _ahead else _slow(n)
""",
    "afterwards": f"""import sys

{SLOW.replace("def total", "def _slow")}
_main, _late = sys.modules["__main__"], []
_receive = getattr(_main, "receive", None)


def receive():
    while _late:
        _slow(_late.pop())
    return _receive()


if _receive:
    _main.receive = receive


def total(n):
    _late.append(n)
    return n * (n - 1) // 2
""",
    "at exit": f"""import atexit

{SLOW.replace("def total", "def _slow")}
_late = []
atexit.register(lambda: [_slow(n) for n in _late])


def total(n):
    _late.append(n)
    return n * (n - 1) // 2
""",
    "at import": f"""{SLOW.replace("def total", "def _slow")}
_table = {{n: _slow(n) for n in range(20000, 21000)}}


def total(n):
    return _table[n] if n in _table else _slow(n)
""",
}


# In few calls what the others leave to be done: the median call is fast.
_NOW_AND_THEN = f"""{SLOW.replace("def total", "def _slow")}
_late = []


def total(n):
    _late.append(n)
    if len(_late) == 5:
        for each in _late:
            _slow(each)
        _late.clear()
    return n * (n - 1) // 2
"""


def _failing(body: str, imports: str = "os") -> str:
    """Right and fast in the unit test; for larger inputs it does something else first."""
    return f"import {imports}\n\n\ndef total(n):\n    if n > 100:\n        {body}\n    return n * (n - 1) // 2\n"


# What fails, each in its own way.
FAILED = {
    "fork": _failing("os.fork() or os._exit(0)"),
    "spawn": _failing("subprocess.run(['true'])", "subprocess"),
    "clone": _failing("assert ctypes.CDLL(None).syscall(56, 17, 0, 0, 0, 0) >= 0", "ctypes"),
    "wrong for large": _failing("return 0"),
    "nearly": _failing("return n * (n - 1) / 2 * (1 + 1e-8)"),
    "not a number": _failing("return float('nan')"),
    "nearly, as a whole number's float": _failing("return float(n * (n - 1) // 2) * (1 + 1e-12) + 1e-6"),
    "true": _failing("return True"),
    "text": _failing("return str(n * (n - 1) // 2)"),
    "a number that tells itself": _failing(
        "return type('N', (int,), {'__repr__': lambda s: '0', '__reduce__': lambda s: (exit, ())})(0)"
    ),
    "a list that fills itself": _failing("return type('L', (list,), {'__iter__': lambda s: iter([n])})()"),
    "stack": _failing("sys.setrecursionlimit(1 << 30); f = lambda: f(); f()", "sys"),
    "trace": _failing("os.kill(os.getpid(), signal.SIGTRAP)", "os, signal"),
    "replaced": _failing("os.execv('/bin/true', ['true'])"),
    "silent": _failing("sys.modules['__main__'].send = lambda content: None", "sys"),
    "says too soon": _failing("os.write(4, b'm\\0\\0\\0\\0\\1\\0\\0\\0' b'0')"),
    "half a message": _failing("os.write(4, b'm\\0\\0\\0\\0\\0\\1\\0\\0'); os._exit(0)"),
    "raises at length": _failing("raise ValueError('x' * (64 << 20))"),
    "warns": _failing("sys.excepthook = print; raise KeyboardInterrupt", "sys"),
    "lazy": _failing("return iter(range(n))"),
    "nested": _failing("return json.loads('[' * 900 + ']' * 900)", "json"),
    "out of step": _failing("sys.modules['__main__'].send(b'[' * 100000 + b']' * 100000)", "sys"),
    "huge": _failing("return '0' * (150 << 20)"),
    "many": _failing("return '0' * 300_000"),
    "forged": _failing("os.write(3, b'm' + bytes(4) + (2).to_bytes(4, 'little') + b'{}')"),
    "closes": _failing("os.close(3)"),
    "exits": _failing("os._exit(0)"),
    "fails at exit": _failing("atexit.register(os._exit, 3)", "atexit, os"),
    "hangs at exit": _failing("atexit.register(time.sleep, 99)", "atexit, time"),
    "stops": _failing("os.kill(os.getpid(), signal.SIGSTOP)", "os, signal"),
    "kills": _failing("[os.kill(each, signal.SIGKILL) for each in (1, -1)] and os.abort()", "os, signal"),
    "memory": _failing("bytearray(6 << 30)"),
    "writes": _failing("open(__file__, 'a').write('#')"),
    "secrets": """import os, pathlib


def total(n):
    if n < 100:
        return n * (n - 1) // 2
    seen = [name for name in os.environ if "KEY" in name or "TOKEN" in name or "KODERZ" in name]
    for place in (os.environ.get("HOME", "/"), "/root", "/home", "/mnt", "/proc/1", SECRET):
        for folder, _, names in os.walk(place):
            seen += [name for name in names if name in ("secret-key", "journal.jsonl", ".netrc", "id_rsa")]
        if os.path.isfile(place):
            seen.append(place)
    try:
        seen += [word for word in pathlib.Path("/proc/1/environ").read_bytes().split(b"=") if b"hostile" in word]
    except OSError:
        pass
    raise SystemExit(f"seen: {seen}")
""",
}

_NEW = "diff --git a/{0} b/{0}\nnew file mode {1}\n--- /dev/null\n+++ b/{0}\n@@ -0,0 +1 @@\n+{2}\n"
_GOOD = diff_of(FILES, {**FILES, "sums.py": FAST})
UNFIT = {
    "outside": _NEW.format("../out.py", "100644", "x"),
    "far outside": _NEW.format("../../../../tmp/out.py", "100644", "x"),
    "hook": _NEW.format(".git/hooks/post-checkout", "100755", "#!/bin/sh"),
    "configuration": _NEW.format(".git/config", "100644", "[core]"),
    "inner repository": _NEW.format("sub/.git/config", "100644", "[core]"),
    "link": _NEW.format("link", "120000", "/etc/passwd"),
    "through a link": _NEW.format("link", "120000", "/tmp") + _NEW.format("link/out.py", "100644", "x"),
    "renamed outside": "diff --git a/sums.py b/../sums.py\nsimilarity index 100%\nrename from sums.py\n"
    "rename to ../sums.py\n",
    "copied from outside": "diff --git a/../secret-key b/copy\nsimilarity index 100%\ncopy from ../secret-key\n"
    "copy to copy\n",
    "made a link": "diff --git a/sums.py b/sums.py\nold mode 100644\nnew mode 120000\n",
    "quoted": _NEW.format("x", "100644", "x").replace("b/x", '"b/\\056\\056/out.py"'),
    "twice": _GOOD + _GOOD,
    "half": _GOOD + _NEW.format("../out.py", "100644", "x"),
    "half a character": _GOOD + "\ud800",
    "binary rubbish": "GIT binary patch\nliteral 9\nzcmZ\0\x01\x02\n",
    "editor": "--- sums.py\n+++ sums.py\n1d\n!touch /tmp/out\n.\nw\n",
    "huge": _GOOD + "+" * (10 << 20),
}

pytestmark = pytest.mark.slow


def _judged(task: PerfTask, local: Local, folder: Path, patch: str, seconds: float = 20.0) -> Verdict:
    async def measured() -> str:
        with open_exclusive(lambda _: None) as exclusive:
            bench = Bench(task, Trees(local), folder, Unrecorded("exp_hostile"), RULE, seconds=seconds)
            return await bench.measured(exclusive, "agent", patch)

    told = json.loads(asyncio.run(measured()))
    verdict = verdict_on(json.dumps({**told, "stopped": True}), RULE, "")
    assert msgspec.convert(told, Measured).arm == "agent"
    assert not verdict.passed
    assert verdict.facts["opt"] != "opt"
    return verdict


def _block(task: PerfTask, local: Local, folder: Path, module: str, *, calls: int = 20, whole: bool = True) -> Block:
    """The legs of one block, of which the agent's has this module; without `whole` that and base's."""

    @asynccontextmanager
    async def anywhere() -> AsyncIterator[int | None]:
        yield None

    trees = {}
    others = {"again": SLOW, "human": FAST} if whole else {}
    for leg, text in {"base": SLOW, **others, "agent": module}.items():
        trees[leg] = folder / leg
        trees[leg].mkdir(exist_ok=True)
        (trees[leg] / "sums.py").write_text(text)
    legs = asyncio.run(Workloads(task, local, 15.0).block(trees, {"sums": calls}, "seed", anywhere))
    assert not [leg.wrong for name, leg in legs.items() if name != "agent" and leg.wrong]
    return Block(legs)


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-hostile")


@pytest.mark.parametrize("name", IDLE)
def test_hostile_patch_gains_nothing(task: PerfTask, local: Local, tmp_path: Path, name: str) -> None:
    block = _block(task, local, tmp_path, IDLE[name], whole=False)
    assert not block.legs["agent"].wrong
    ratio = block.legs["base"].work["sums"].cpu / block.legs["agent"].work["sums"].cpu
    assert ratio < 4  # a trick that worked would make it a hundred times as fast


@pytest.mark.parametrize("name", MOVED)
def test_work_that_is_moved_is_found_out(task: PerfTask, local: Local, tmp_path: Path, name: str) -> None:
    for _ in range(3):  # of the seven blocks of a run: a busy machine may hide it in one
        block = _block(task, local, tmp_path, MOVED[name], calls=60)
        assert not block.legs["agent"].wrong
        finding = found([block] * 7, "agent", RULE)
        # Work that another thread does gains nothing where the calls' clock happens to see it.
        if finding.hack == "moved" or finding.speedups["base"].value <= 2:
            break
    else:
        pytest.fail(f"{finding}")
    assert finding.opt == "not"


def test_work_that_few_calls_do_for_many_counts(task: PerfTask, local: Local, tmp_path: Path) -> None:
    block = _block(task, local, tmp_path, _NOW_AND_THEN, calls=60)
    base, agent = (block.legs[leg].work["sums"] for leg in ("base", "agent"))
    assert agent.cpu < base.cpu / 2
    finding = found([block] * 7, "agent", RULE)
    assert finding.opt == "not"
    assert finding.beside["agent"] > base.cpu / 2


@pytest.mark.parametrize("name", FAILED)
def test_hostile_failure_is_a_failed_leg_and_no_fault(task: PerfTask, local: Local, tmp_path: Path, name: str) -> None:
    (tmp_path / "secret-key").write_text("sk-hostile")
    module = FAILED[name].replace("SECRET", repr(str(tmp_path / "secret-key")))
    leg = _block(task, local, tmp_path, module, calls=2, whole=False).legs["agent"]
    assert leg.wrong
    if name == "secrets":
        assert "seen: []" in leg.wrong


@pytest.mark.parametrize(
    ("module", "hidden", "status", "hack"),
    [
        ("def total(n):\n    return 6\n", "def test_total():\n    pass\n", "test_failed", None),
        (FAILED["wrong for large"], FILES["tests/test_sums.py"], "test_failed", None),
        (MOVED["answered early"], FILES["tests/test_sums.py"], "passed", "moved"),
        (IDLE["memory"], FILES["tests/test_sums.py"], "passed", None),
    ],
    ids=["tests", "wrong", "moved", "idle"],
)
def test_hostile_patch_is_not_opt(
    task: PerfTask, local: Local, tmp_path: Path, module: str, hidden: str, status: str, hack: str | None
) -> None:
    patch = diff_of(FILES, {**FILES, "sums.py": module, "tests/test_sums.py": hidden})
    verdict = _judged(task, local, tmp_path, patch)
    assert (verdict.facts["status"], verdict.facts["hack"]) == (status, hack)


@pytest.mark.parametrize("name", UNFIT)
def test_patch_that_does_not_fit_changes_nothing(task: PerfTask, local: Local, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    verdict = _judged(task, local, folder, UNFIT[name])
    assert (verdict.facts["status"], verdict.metrics) == ("patch_failed", {})
    assert [path.name for path in tmp_path.iterdir()] == ["work"]
    assert [path for path in folder.rglob("*") if path.is_file()] == []
    assert not Path("/tmp/out.py").exists()
    assert not Path("/tmp/out").exists()


def test_submodule_is_an_empty_folder(task: PerfTask, local: Local, tmp_path: Path) -> None:
    modules = '[submodule "x"]\n+\tpath = x\n+\turl = file:///etc\n'
    patch = _NEW.format(".gitmodules", "100644", modules.rstrip()).replace("+1 @@", "+1,3 @@")
    patch += _NEW.format("x", "160000", f"Subproject commit {'0' * 40}")
    folder = tmp_path / "tree"
    applied = asyncio.run(Trees(local).patched(task, patch, folder))
    assert applied.status in ("passed", "patch_failed")
    assert not [*folder.glob("x/*")]


def test_install_changes_to_pytest_are_undone(task: PerfTask, local: Local, tmp_path: Path) -> None:
    task = replace(task, install=("python3 setup.py || true",))
    own = "for path in ('conftest.py', 'tests/conftest.py'):\n    open(path, 'w').write('raise SystemExit(0)')\n"
    patch = diff_of(FILES, {**FILES, "setup.py": own})
    folder = tmp_path / "tree"
    applied = asyncio.run(Trees(local).patched(task, patch, folder))
    assert applied.status == "passed"
    assert [line.partition(":")[0] for line in applied.tampering] == ["conftest.py", "tests/conftest.py"]
    assert not (folder / "conftest.py").exists()


def test_reply_of_many_blocks_is_read_in_time() -> None:
    assert patch_of("```diff\n" * 500_000, {}) == ""
    assert patch_of("```file x\n" * 100_000 + "a\n```\n", {}).count("\n") > 99_000
