"""Texts of the agent's that a verifier runs by way of pipes, variables and files, and what else is the agent's then."""

from __future__ import annotations

import pytest

from tests.koderz.systems.workspaces.inside.conftest import REWARD, Verified

SHELL = "echo 1 > /logs/verifier/reward.json\n"
PYTHON = "open('/logs/verifier/reward.json', 'w').write('1')\n"
CODED = "ZWNobyAxID4gL2xvZ3MvdmVyaWZpZXIvcmV3YXJkLmpzb24K"

WAYS = [
    (PYTHON, "cat /workspace/x | python3"),
    (SHELL, "cat /workspace/x | sed 's/^/ /' | bash"),
    (SHELL, "{ cat /workspace/x; } | bash -o pipefail"),
    (SHELL, "bash /dev/stdin < /workspace/x"),
    (SHELL, "bash <(cat /workspace/x)"),
    (SHELL, 'bash <<< "$(cat /workspace/x)"'),
    (PYTHON, "python3 - <<.\n$(cat /workspace/x)\n."),
    (f"{SHELL}#{'x' * 9000}", 'bash -c "$(cat /workspace/x)"'),
    (f"##\n{SHELL}", 'bash -c "$(sed 1d /workspace/x)"'),
    (CODED, "base64 -d /workspace/x | bash"),
    (CODED, 'bash -c "$(base64 -d /workspace/x)"'),
    (SHELL, 'eval "$(cat /workspace/x)"'),
    (SHELL, 'cat /workspace/x | while read -r l; do eval "$l"; done'),
    (SHELL, 'mapfile -t L < /workspace/x; eval "${L[0]}"'),
    (SHELL, 'trap "$(cat /workspace/x)" EXIT; true'),
    (SHELL, 'export X="$(cat /workspace/x)"; bash -c \'eval "$X"\''),
    (SHELL, ". /workspace/x"),
    (SHELL, "cd /workspace; source ./x"),
    (SHELL, "source <(cat /workspace/x)"),
    (SHELL, "BASH_ENV=/workspace/x bash -c true"),
    ("tee /logs/verifier/reward.json", "echo 1 | $(cat /workspace/x)"),
    (SHELL, "cat /workspace/x | tee /tmp/y > /dev/null; bash /tmp/y"),
    (SHELL, 'v=$(cat /workspace/x); echo "$v" > /tmp/y; bash /tmp/y'),
    (SHELL, "coproc bash; cat /workspace/x >&${COPROC[1]}; exec {COPROC[1]}>&-; wait"),
    (SHELL, "mkfifo /tmp/f; cat /workspace/x > /tmp/f & bash /tmp/f"),
    (SHELL, "exec 7< /workspace/x; bash /dev/fd/7"),
    ("'echo 1 > /logs/verifier/reward.json'\n", "cat /workspace/x | xargs sh -c"),
    ("sh -c 'echo 1 > /logs/verifier/reward.json'\n", "xargs -a /workspace/x env"),
    ('BEGIN { print 1 > "/logs/verifier/reward.json" }', 'awk "$(cat /workspace/x)"'),
    (PYTHON, "python3 -c \"exec(open('/workspace/x').read())\""),
    (PYTHON, "python3 -c 'import sys; exec(sys.stdin.read())' < /workspace/x"),
    (PYTHON, "python3 -c \"import runpy; runpy.run_path('/workspace/x')\""),
    (SHELL, "python3 -c \"import subprocess as s; s.run(['bash'], input=open('/workspace/x', 'rb').read())\""),
    (
        SHELL,
        (
            "python3 -c \"import os; t = open('/workspace/x').read(); os.fork() or (open('/tmp/y', 'w').write(t), "
            'os._exit(0)); os.wait()"; bash /tmp/y'
        ),
    ),
]
"""Texts of the agent's, and how a verifier runs each."""


@pytest.mark.slow
@pytest.mark.parametrize(("text", "line"), WAYS, ids=[line for _, line in WAYS])
def test_channel_follows_texts_of_the_agents(verified: Verified, text: str, line: str) -> None:
    ended, logs = verified({"x": text}, f"{line}\n")
    assert "reward.json" not in logs, ended.output
    assert ended.refused == ["write /logs/verifier/reward.json"], ended.output


PRINTS = "print('echo 1 > /logs/verifier/reward.json')"


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (PRINTS, 'eval "$(python3 /workspace/x)"'),
        (PRINTS, "python3 /workspace/x | bash"),
        (PRINTS, "echo : > /tmp/s; python3 /workspace/x >> /tmp/s; bash /tmp/s"),
        (
            PRINTS,
            (
                "python3 -c \"import subprocess as s; s.run(['python3', '/workspace/x'], "
                "stdout=open('/tmp/s', 'w'))\"; bash /tmp/s"
            ),
        ),
        (f"import sys; sys.stdout = sys.stderr; {PRINTS}", "python3 /workspace/x 2>&1 > /dev/null | bash"),
        (f"import os; os.dup2(3, 1); {PRINTS}", "{ python3 /workspace/x 3>&1 > /dev/null; } | bash"),
    ],
)
def test_channel_follows_what_the_agents_programs_print(verified: Verified, code: str, line: str) -> None:
    ended, logs = verified({"x": code}, f"{line}\n")
    assert "reward.json" not in logs, ended.output
    assert ended.refused == ["write /logs/verifier/reward.json"], ended.output


@pytest.mark.parametrize(
    "line",
    [
        'v=$(cat /workspace/out); [ "$v" = "$(cat /tests/answer)" ]',
        (
            "v=$(cat /workspace/out); cat > /tmp/c.py <<'.'\nassert open('/workspace/out').read() == "
            "open('/tests/answer').read()\n.\npython3 /tmp/c.py"
        ),
        "mkdir -p ~/.local/bin; echo 'A=1' > ~/.local/bin/env; source ~/.local/bin/env; grep -q 4 /workspace/out",
        'echo \'ok() { [ "$1" = 4 ]; }\' > /tmp/l.sh; . /tmp/l.sh; ok "$(cat /workspace/out)"',
        "while read -r l; do [ $l = 4 ] || exit 1; done < <(cat /workspace/out; echo)",
        "cat /workspace/out | python3 -c 'import sys; sys.exit(sys.stdin.read() != open(\"/tests/answer\").read())'",
        "trap 'rm -f /tmp/q' EXIT; exec > >(tee /logs/verifier/log) 2>&1; grep -q 4 /workspace/out",
        'R=$(cat /workspace/out) python3 -c \'import os; os.environ["R"] == "4" or 1 / 0\'',
    ],
)
def test_channel_lets_verifiers_read_what_the_agent_made(verified: Verified, line: str) -> None:
    ended, logs = verified({"out": "4"}, f"{line}\n{REWARD}")
    assert logs.get("reward.txt") == "1", ended.output
    assert (ended.loaded, ended.refused) == ([], []), ended.output


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("os.write(5, b'1')", "exec 5> /logs/verifier/reward.txt; python3 /workspace/x; exec 5>&-; exit"),
        (
            "os.lseek(4, 0, 0); print(os.read(4, 9).decode(), end='')",
            "exec 4< /tests/answer; python3 /workspace/x > /tmp/o; cmp /tmp/o /tests/answer",
        ),
        (
            (
                "import site; p = site.getusersitepackages(); os.makedirs(p); "
                "open(p + '/usercustomize.py', 'w').write('import os; os._exit(0)')"
            ),
            "python3 /workspace/x; python3 /tests/check.py",
        ),
        (
            (
                "import site; p = site.getusersitepackages(); os.makedirs(p); "
                "open(p + '/a.pth', 'w').write('import os; os._exit(0)')"
            ),
            "python3 /workspace/x; python3 /tests/check.py",
        ),
        (
            "open('json.py', 'w').write('import os; os._exit(0)')",
            "cd /workspace; python3 x; python3 -c 'import json; json.loads(1)'",
        ),
        (
            "os.mkdir('json'); open('json/__init__.py', 'w').write('import os; os._exit(0)')",
            "cd /workspace; python3 x; python3 -c 'import json; json.loads(1)'",
        ),
        ("open(os.path.expanduser('~/.bashrc'), 'w').write('exit 0')", "python3 /workspace/x; bash -ic false"),
        ("open(os.path.expanduser('~/.profile'), 'w').write('exit 0')", "python3 /workspace/x; bash -lc false"),
        (
            "os.mkdir('/tmp/bin'); open('/tmp/bin/cmp', 'w').write('#!/bin/sh\\n'); os.chmod('/tmp/bin/cmp', 0o755)",
            "PATH=/tmp/bin:$PATH; python3 /workspace/x; cmp /dev/null /tests/answer",
        ),
    ],
    ids=["written", "read", "usercustomize", "pth", "module", "package", "bashrc", "profile", "program"],
)
def test_channel_has_no_verifier_obey_what_programs_leave(verified: Verified, code: str, line: str) -> None:
    """Nor do they inherit what it has open of its rewards and tests."""
    ended, logs = verified({"x": f"import os\n{code}\n"}, f"{line}\n{REWARD}")
    assert logs.get("reward.txt") in ("0", ""), ended.output


@pytest.mark.parametrize(
    "code",
    [
        "resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (0, 0))",
        "resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (0, 0))",
        "fcntl.fcntl(0, 8, os.getppid())",
        (
            "r, w = os.pipe(); fcntl.fcntl(r, 10, 9); fcntl.fcntl(r, 8, os.getppid()); "
            "fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC); os.write(w, b'x')"
        ),
        "import array; fcntl.ioctl(os.pipe()[0], 0x8901, array.array('i', [os.getppid()]))",
    ],
)
def test_channel_keeps_limits_and_signals_from_the_verifier(verified: Verified, code: str) -> None:
    line = "echo 1 > /logs/verifier/reward.json; python3 /workspace/x; rm /logs/verifier/reward.json"
    ended, logs = verified({"x": f"import fcntl, os, resource, time\n{code}\n"}, f"{line}\n")
    assert logs == {}, ended.output
    assert "Error" in ended.output


def test_channel_moves_what_was_named_whatever_threads_do(verified: Verified) -> None:
    """A path that another thread changes meanwhile leads nowhere else: `diff` would take a link for the answer."""
    code = """import ctypes, os, threading, time
os.makedirs("/tmp/q/b/c")
os.symlink("../../tests/answer", "/tmp/q/b/c/ll")
path, names = ctypes.create_string_buffer(b"/tmp/q/b/c/ff"), (b"ll", b"ff")
end = time.monotonic() + 1
def flip():
    while time.monotonic() < end:
        for name in names:
            path[11:13] = name
threading.Thread(target=flip).start()
while time.monotonic() < end and not os.path.islink("/tmp/d/o"):
    open("/tmp/q/b/c/ff", "w").close()
    ctypes.CDLL(None).rename(path, b"/tmp/d/o")
"""
    test = f"mkdir /tmp/d; python3 /workspace/x > /tmp/d/o; diff /tmp/d/o /tests/answer\n{REWARD}"
    ended, logs = verified({"x": code}, test)
    assert logs == {"reward.txt": "0"}, ended.output
