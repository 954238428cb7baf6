"""A small repository with rows about it as GSO and ISO-Bench publish theirs, and patches of several kinds."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from koderz.systems.patches.patches import diff_of

SLOW = """def tally(numbers):
    return [sum(1 for number in numbers if number % 7 == rest) for rest in range(7)]
"""
FAST = """def tally(numbers):
    found = [0] * 7
    for number in numbers:
        found[number % 7] += 1
    return found
"""
FILES = {"tallies.py": SLOW, "build.sh": "echo built > built.txt\n"}

_BODY = """import json

from tallies import tally


def setup():
    return [(7919 * number) % 1000003 for number in range(SIZE)]


def experiment(numbers):
    return {"tally": tuple(tally(numbers))}


def store_result(result, filename):
    with open(filename, "w") as file:
        json.dump(result, file)


def load_result(filename):
    with open(filename) as file:
        return json.load(file)


"""
GSO_SCRIPT = (
    "import timeit\n"
    + _BODY.replace("SIZE", "400_000")
    + '''def check_equivalence(reference, current):
    assert tuple(reference["tally"]) == current["tally"], "another tally"


def run_test(eqcheck=False, reference=False, prefix=""):
    data = setup()
    seconds, result = timeit.timeit(lambda: experiment(data), number=1)
    if reference:
        store_result(result, f"{prefix}_result.json")
    if eqcheck:
        check_equivalence(load_result(f"{prefix}_result.json"), result)
    return seconds


timeit.template = """
def inner(_it, _timer{init}):
    {setup}
    _t0 = _timer()
    for _i in _it:
        value = {stmt}
    return _timer() - _t0, value
"""


def main():
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("output_file")
    parser.add_argument("--eqcheck", action="store_true")
    parser.add_argument("--reference", action="store_true")
    parser.add_argument("--file_prefix")
    given = parser.parse_args()
    seconds = run_test(given.eqcheck, given.reference, given.file_prefix)
    with open(given.output_file, "a") as file:
        file.write(f"Execution time: {seconds:.6f}s\\n")


if __name__ == "__main__":
    main()
'''
)
"""What GSO's scripts have: the check is made for a result that was never stored, where tuples are tuples."""

ISO_SCRIPT = (
    "import argparse\nimport os\nimport time\n"
    + _BODY.replace("SIZE", "100_000")
    + """def check_equivalence(current, reference):
    assert current == reference


def run_test(eqcheck=False, reference=False, prefix=""):
    data, times = setup(), []
    for _ in range(6):
        began = time.perf_counter()
        result = experiment(data)
        times.append(time.perf_counter() - began)
    if reference:
        store_result(result, f"{prefix}_{os.getenv('IMPL_TAG', 'child')}_reference.json")
    print(json.dumps({"avg_ms": 1000 * sum(times) / len(times)}))
    return sum(times) / len(times)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--eqcheck", action="store_true")
    parser.add_argument("--reference", action="store_true")
    parser.add_argument("--prefix", default="")
    given = parser.parse_args()
    run_test(given.eqcheck, given.reference, given.prefix)
"""
)

_SLOW_BESIDE = f"""import json
import os
import signal
import tempfile

{SLOW.replace("tally", "slow")}

def answer(pipe, numbers):
    os.write(pipe, json.dumps(slow(numbers)).encode())
    os._exit(0)


"""
_ANSWERED = """    os.close(write)
    with open(read) as pipe:
        return json.load(pipe)
"""
_UNWAITED = (
    _SLOW_BESIDE
    + """def tally(numbers):
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    read, write = os.pipe()
    if not os.fork():
        WORK
"""
    + _ANSWERED
)

HIDDEN: Mapping[str, str] = {
    "nobody waits": _UNWAITED.replace("WORK", "answer(write, numbers)"),
    "a child of a child": _UNWAITED.replace("WORK", "os.fork() or answer(write, numbers)\n        os._exit(0)"),
    "orphans of a process that waits for none": _UNWAITED.replace(
        "WORK",
        "import ctypes\n\n        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n"
        "        os.fork() or (os.fork() or answer(write, numbers), os._exit(0))\n"
        "        import time\n\n        time.sleep(5)\n        os._exit(0)",
    ),
    "many short ones": _SLOW_BESIDE
    + """def tally(numbers):
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    found = [0] * 7
    for start in range(0, len(numbers), 20_000):
        read, write = os.pipe()
        if not os.fork():
            answer(write, numbers[start : start + 20_000])
        os.close(write)
        with open(read) as pipe:
            found = [a + b for a, b in zip(found, json.load(pipe))]
    return found
""",
    "counters switched off": _UNWAITED.replace(
        "WORK", "import ctypes\n\n        ctypes.CDLL(None).prctl(31, 0, 0, 0, 0)\n        answer(write, numbers)"
    ),
    "a server from before": _SLOW_BESIDE
    + """import socket

ours, theirs = socket.socketpair()
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if not os.fork():
    os.sched_setaffinity(0, range(os.cpu_count()))
    ours.close()
    with theirs.makefile("rw") as wire:
        for line in wire:
            print(json.dumps(slow(json.loads(line))), file=wire, flush=True)
    os._exit(0)
theirs.close()
wire = ours.makefile("rw")


def tally(numbers):
    print(json.dumps(numbers), file=wire, flush=True)
    return json.loads(wire.readline())
""",
}
"""No faster than before, but with the work in processes that nobody waits for."""

UNCOUNTED: Mapping[str, str] = {
    "on another core": _UNWAITED.replace(
        "WORK", "os.sched_setaffinity(0, range(os.cpu_count()))\n        answer(write, numbers)"
    ),
    "a program that can't be read": _UNWAITED.replace(
        "WORK",
        "import shutil, sys\n\n        python = shutil.copy(os.path.realpath(sys.executable), tempfile.mkdtemp())\n"
        "        os.chmod(python, 0o111)\n        os.set_inheritable(write, True)\n"
        "        code = 'import os, sys; sys.path.insert(0, sys.argv[1]); import tallies;'\n"
        "        code += 'tallies.answer(int(sys.argv[2]), [(7919 * n) % 1000003 for n in range(400_000)])'\n"
        "        here = os.path.dirname(os.path.abspath(__file__))\n"
        "        env = dict(os.environ, PYTHONHOME=sys.base_prefix)\n"
        "        os.execve(python, [python, '-S', '-c', code, here, str(write)], env)",
    ),
}
"""The same, where the kernel counts nothing, or no more."""

_SHARED = f"{FAST.replace('tally', 'part')}\n\ndef parts(numbers):\n    middle = len(numbers) // 2\n"
_SHARED += "    return [numbers[:middle], numbers[middle:]]\n\n\ndef joined(found):\n"
_SHARED += "    return [sum(each) for each in zip(*found)]\n\n\n"
SHARING: Mapping[str, str] = {
    "pool": _SHARED + "def tally(numbers):\n    import multiprocessing\n\n"
    "    with multiprocessing.get_context('fork').Pool(2) as pool:\n"
    "        return joined(pool.map(part, parts(numbers)))\n",
    "executor": _SHARED + "def tally(numbers):\n    import concurrent.futures, multiprocessing\n\n"
    "    context = multiprocessing.get_context('fork')\n"
    "    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:\n"
    "        return joined(pool.map(part, parts(numbers)))\n",
    "program": _SHARED + "def tally(numbers):\n    import json, subprocess, sys\n\n"
    "    code = 'import json, sys; sys.path.insert(0, sys.argv[1]); import tallies;'\n"
    "    code += 'print(json.dumps(tallies.part(json.load(sys.stdin))))'\n"
    "    here = __file__.rpartition('/')[0]\n"
    "    done = subprocess.run([sys.executable, '-c', code, here], input=json.dumps(numbers), capture_output=True,\n"
    "        text=True, check=True)\n    return json.loads(done.stdout)\n",
}
"""Faster than before, honestly, in more than one process."""

SEEDED_SCRIPT = GSO_SCRIPT.replace("import timeit\n", "import random\nimport timeit\n").replace(
    "return [(7919 * number) % 1000003 for number in range(400_000)]",
    "random.seed(42)\n    return [random.randrange(1000003) for _ in range(400_000)]",
)

TABLES: Mapping[str, str] = {
    "nothing else": "def tally(numbers):\n    return KNOWN\n",
    "the rest as before": f"{SLOW.replace('tally', 'slow')}\n\ndef tally(numbers):\n"
    "    return KNOWN if numbers[:3] == FIRST else slow(numbers)\n",
}
"""Patches that hold the answers to one input, KNOWN, which begins with FIRST."""

_IMPORT = (
    SLOW.replace("tally", "slow")
    + "\n\nNUMBERS = [(7919 * number) % 1000003 for number in range(400_000)]\n"
    + "KNOWN, *_ = map(slow, TIMES * [NUMBERS])\n\n\ndef tally(numbers):\n    return KNOWN\n"
)
PATCHES: Mapping[str, str] = {
    "good": FAST,
    "no-op": f"{SLOW}\n\n# as it was\n",
    "wrong": FAST.replace("+= 1", "+= 2"),
    "clock": f"{SLOW}\n\nimport time\nimport timeit\n\n"
    "time.perf_counter = timeit.default_timer = lambda: 0.0\n"
    "timeit.timeit.__defaults__ = (*timeit.timeit.__defaults__[:2], time.perf_counter, 1, None)\n",
    "import": _IMPORT.replace("TIMES", "1"),
    "import often": _IMPORT.replace("TIMES", "4"),
    "exit": FAST.replace("tally", "fast") + f"\n\n{SLOW.replace('tally', 'slow')}\n\n"
    "def tally(numbers):\n    import atexit\n\n    atexit.register(slow, numbers)\n    return fast(numbers)\n",
    "window": SLOW.replace("tally", "slow")
    + "\n\ndef tally(numbers):\n    from sys import modules\n\n    wire = modules['channel']\n"
    "    wire.send(b'done')\n    wire.receive()\n    found = slow(numbers)\n    wire.send(b'call')\n"
    "    wire.receive()\n    return found\n",
    "raises": "def tally(numbers):\n    raise ValueError('no tally')\n",
    "expected": FAST.replace(
        "    found =", "    import glob\n\n    assert not glob.glob('/opt/koderz/*/base*')\n    found ="
    ),
}


def made(folder: Path) -> dict[str, dict[str, Any]]:
    """A repository in the folder, and a row in either format about its two commits."""
    repository = folder / "repository"
    repository.mkdir()
    (base, human) = (_committed(repository, text) for text in (SLOW, FAST))
    common = {"repo": str(repository), "install_commands": ["export WORD=built", 'test "$WORD" = built', "sh build.sh"]}
    gso = {
        "instance_id": f"own__tallies-{human[:7]}",
        "base_commit": f"{human}^",
        "opt_commit": human,
        "api": "tally",
        "prob_script": GSO_SCRIPT,
        "tests": [GSO_SCRIPT],
        "hints_text": "",
        "setup_commands": [],
        "created_at": "2026-01-01 00:00:00",
        "gt_commit_message": "Make it faster",
        "gt_diff": patch(FAST),
        "arch": "x86_64",
        "instance_image_tag": "latest",
    }
    iso = {
        "instance_id": f"own__tallies-iso-{human[:7]}",
        "base_commit": base,
        "head_commit": human,
        "patch": patch(FAST),
        "test_patch": "",
        "efficiency_test": [ISO_SCRIPT],
        "created_at": "2026-01-01",
        "version": "",
    }
    return {"gso": {**common, **gso}, "iso": {**common, **iso}}


def patch(text: str) -> str:
    """The diff that gives the module this text."""
    return diff_of(FILES, {**FILES, "tallies.py": text})


def _committed(repository: Path, text: str) -> str:
    for name, content in {**FILES, "tallies.py": text}.items():
        (repository / name).write_text(content)
    identity = ("-c", "user.name=a", "-c", "user.email=a@localhost", "-c", "commit.gpgsign=false")
    git = ("git", "-C", str(repository))
    for words in (("init", "-q"), ("add", "-A"), (*identity, "commit", "-qm", "A commit")):
        subprocess.run([*git, *words], check=True, capture_output=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()


def written(folder: Path, *rows: Mapping[str, Any]) -> Path:
    """The rows as a file."""
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
