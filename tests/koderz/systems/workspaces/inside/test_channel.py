"""The channel of a verifier's rewards: what the agent's programs that it starts can't do, and what it itself can."""

from __future__ import annotations

import pytest

from tests.koderz.systems.workspaces.inside.conftest import REWARD, TEST, Verified


def test_channel_lets_the_verifier_write_its_rewards(verified: Verified) -> None:
    ended, logs = verified({"solve.py": "print(4)"})
    assert logs == {"reward.txt": "1"}, ended.output
    assert (ended.loaded, ended.refused) == ([], [])


def test_channel_serves_what_verifiers_do_in_their_folder(verified: Verified) -> None:
    test = """set -e
mkdir -p /logs/verifier/a/b; cd /logs/verifier; echo 1 > a/one; echo 2 >> a/one; mv a/one a/b/two; cp a/b/two three
echo 3 > /tmp/x; mv /tmp/x four; chmod 600 four; touch -d 2020-01-01 four; echo 5 | tee five > /dev/null; ln four six
rm five six; rmdir a/c 2> /dev/null || true; truncate -s 1 three; sed -i s/3/7/ four; install -m 644 four eight
python3 - <<'.'
import os, pathlib, json
pathlib.Path("/logs/verifier/reward.json").write_text(json.dumps({"reward": 1}))
os.replace("/logs/verifier/reward.json", "/logs/verifier/new.json")
.
(sleep 0.1; echo late > late) & wait; exec > >(cat > out); echo hi
sleep 0.2
"""
    ended, logs = verified({"solve.py": ""}, test)
    plain = {"a/b/two": "1\n2", "three": "1", "four": "7", "eight": "7", "late": "late", "out": "hi"}
    assert logs == plain | {"new.json": '{"reward": 1}'}, ended.output


PARENT = "import os, sys\nparent = os.getppid()\n"


@pytest.mark.parametrize(
    "code",
    [
        "open('/logs/verifier/reward.json', 'w').write('1')",
        "import os; os.open('/logs/verifier/x', os.O_RDWR | os.O_CREAT)",
        "open('/logs/../logs/./verifier/reward.txt', 'w').write('1')",
        "import os; os.chdir('/logs/verifier'); open('reward.json', 'w').write('1')",
        "import os; open('verifier/a', 'w', opener=lambda p, f: os.open(p, f, dir_fd=os.open('/logs', 0))).write('1')",
        "import os; os.symlink('/logs/verifier', '/tmp/l'); open('/tmp/l/reward.json', 'w').write('1')",
        "import os; open('/tmp/r', 'w').write('1'); os.rename('/tmp/r', '/logs/verifier/reward.json')",
        "import os; open('/tmp/r', 'w').write('1'); os.link('/tmp/r', '/logs/verifier/reward.json')",
        "import os; os.symlink('/tmp/r', '/logs/verifier/reward.json')",
        "import os; os.mkdir('/logs/verifier/reward.json')",
        "import os; os.unlink('/logs/verifier/reward.txt')",
        "import os; os.truncate('/logs/verifier/reward.txt', 0)",
        "import os; os.chmod('/logs/verifier', 0o777); open('/logs/verifier/reward.json', 'w')",
        "open('/tests/answer').read()",
        "import os; os.symlink('/tests/answer', '/tmp/l'); open('/tmp/l').read()",
        "import os; os.chdir('/tests'); open('answer').read()",
        "import subprocess; print(subprocess.run(['cat', '/tests/answer'], check=True))",
        "import os; os.execv('/tests/check.py', ['x'])",
        PARENT + "open(f'/proc/{parent}/root/tests/answer').read()",
        PARENT + "open(f'/proc/{parent}/mem', 'rb').read(1)",
        PARENT + "open(f'/proc/{parent}/maps').read()",
        PARENT + "open(f'/proc/{parent}/environ').read()",
        PARENT + "open(f'/proc/{parent}/fd/{max(map(int, os.listdir(f'/proc/{parent}/fd')))}').read()",
        PARENT + "os.kill(parent, 9)",
        PARENT + "os.kill(0, 9)",
        PARENT + "os.kill(-1, 9)",
        PARENT + "os.killpg(os.getpgid(parent), 9)",
        PARENT + "import signal; signal.pidfd_send_signal(os.pidfd_open(parent), 9)",
        PARENT + "import ctypes; ctypes.CDLL(None).ptrace(16, parent, 0, 0) and 1 / 0",
        "import ctypes; l = ctypes.CDLL(None); l.syscall(425, 8, bytes(120)) < 0 and 1 / 0",
        "import ctypes; l = ctypes.CDLL(None); l.prctl(36, 1, 0, 0, 0) and 1 / 0",
    ],
)
def test_channel_refuses_programs_of_the_agents(verified: Verified, code: str) -> None:
    """Each line fails with an error, after which nothing is printed that the check would take."""
    ended, logs = verified({"solve.py": f"{code}\nprint(4)"})
    assert logs == {"reward.txt": "0"}, ended.output
    assert "Error" in ended.output
    assert ended.loaded == []


@pytest.mark.parametrize("start", ["", "bash ", "env ", "timeout 20 "])
def test_channel_knows_programs_however_they_are_started(verified: Verified, start: str) -> None:
    files = {"run": "#!/bin/bash\necho 1 > /logs/verifier/reward.json || cat /tests/answer || exit 3\n"}
    ended, logs = verified(files, f"cd /workspace; {start}./run; echo $?\n")
    assert (logs, ended.output.splitlines()[-1]) == ({}, "3")


def test_channel_knows_programs_made_of_the_agents_files(verified: Verified) -> None:
    test = "cp /workspace/run /tmp/copy; mv /tmp/copy /tmp/moved; mkdir /tmp/d; cat /tmp/moved > /tmp/d/x\n"
    test += "for each in /tmp/moved /tmp/d/x; do bash $each; done; true\n"
    ended, logs = verified({"run": "echo 1 > /logs/verifier/reward.json\n"}, test)
    assert logs == {}
    assert ended.output.count("Permission denied") == 2


@pytest.mark.slow
def test_channel_refuses_daemons_of_the_agents(verified: Verified) -> None:
    code = """import os, sys, time
if not os.fork():
    os.setsid()
    if not os.fork():
        for _ in range(20):
            time.sleep(0.02)
            try:
                open('/logs/verifier/reward.json', 'w').write('1')
            except OSError:
                pass
    os._exit(0)
os.wait()
"""
    _, logs = verified({"solve.py": code}, f"{TEST}sleep 0.5\n")
    assert logs == {"reward.txt": "0"}


def test_channel_keeps_answers_from_links_of_the_agents(verified: Verified) -> None:
    """A program can't make such a link, nor is one followed by the verifier that was there."""
    code = "import os\nos.symlink('/tests/answer', '/workspace/answer')"
    ended, logs = verified(
        {"solve.py": code}, "python3 /workspace/solve.py; cmp /workspace/answer /tests/answer\n" + REWARD
    )
    assert logs == {"reward.txt": "0"}, ended.output


_SWAPPED = """
import os
path = os.readlink("/proc/self/fd/1")
os.unlink(path)
{links}
"""
_SAME = f"python3 /workspace/solve.py > /tmp/deep/er/out; diff /tmp/deep/er/out /tests/answer\n{REWARD}"


@pytest.mark.parametrize(
    "links",
    [
        "os.symlink('/tests/answer', path)",
        "os.symlink('step/tests/answer', path); os.symlink('/', '/tmp/deep/er/step')",
        "os.symlink('step/../../../tests/answer', path); os.symlink('.', '/tmp/deep/er/step')",
        "os.symlink('/proc/self/root/tests/answer', path)",
        "os.makedirs('a/b/c/d'); os.symlink('../../../tests/answer', 'a/b/c/d/l'); os.rename('a/b/c/d/l', path)",
        "os.makedirs('a/b/c/d'); os.symlink('../../../tests/answer', 'a/b/c/d/l'); os.link('a/b/c/d/l', path)",
    ],
    ids=["direct", "two steps", "up behind a link", "proc", "moved", "hard link"],
)
def test_channel_keeps_answers_from_who_compares_without_opening(verified: Verified, links: str) -> None:
    """`diff` opens neither of two paths that lead to the same file."""
    test = f"mkdir -p /tmp/deep/er\n{_SAME}"
    _, logs = verified({"solve.py": _SWAPPED.format(links=links)}, test)
    assert logs == {"reward.txt": "0"}


def test_channel_lets_programs_of_the_agents_make_links_and_move_them(verified: Verified) -> None:
    code = (
        "import os, shutil\n"
        "os.makedirs('/tmp/a/b'); open('/tmp/a/x', 'w').write('4')\n"
        "os.symlink('../x', '/tmp/a/b/l'); os.symlink('/usr/bin', '/tmp/a/bin'); os.rename('/tmp/a', '/tmp/c')\n"
        "shutil.move('/tmp/c/b', '/tmp/c/d'); print(open('/tmp/c/d/l').read())"
    )
    ended, logs = verified({"solve.py": code})
    assert logs == {"reward.txt": "1"}, ended.output


def test_channel_starts_no_program_of_the_agents_in_place_of_the_systems(verified: Verified) -> None:
    code = """import os, pathlib
place = pathlib.Path.home() / "bin"
place.mkdir()
for name in ("diff", "mine"):
    (place / name).write_text("#!/bin/sh\\necho ran\\n")
    (place / name).chmod(0o755)
"""
    test = f"PATH=~/bin:$PATH; python3 /workspace/solve.py; mine; diff /dev/null /tests/answer\n{REWARD}"
    ended, logs = verified({"solve.py": code}, test)
    assert logs == {"reward.txt": "0"}
    assert "ran" in ended.output
    assert any("in place of the system's" in each for each in ended.refused or ())


def test_channel_lets_nobody_have_a_child_of_its_parents(verified: Verified) -> None:
    code = """import ctypes, os, time
number = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
if ctypes.CDLL(None).syscall(number, 0x8000 | 17, 0, 0, 0, 0) == 0:
    open("/logs/verifier/reward.json", "w").write("1")
    os._exit(0)
time.sleep(0.2)
"""
    _, logs = verified({"solve.py": code})
    assert logs == {"reward.txt": "0"}


def test_channel_knows_what_settings_have_git_start(verified: Verified) -> None:
    line = "echo 1 > /logs/verifier/reward.txt; true"
    code = f"import subprocess\nsubprocess.run(['git', 'config', '--global', 'core.fsmonitor', {line!r}])"
    test = "git init -q; python3 /workspace/solve.py; git status; echo 0 > /logs/verifier/done\n"
    ended, logs = verified({"solve.py": code}, test)
    assert logs == {"done": "0"}, ended.output


def test_channel_lets_programs_of_the_agents_work(verified: Verified) -> None:
    code = """import os, pathlib, socket, subprocess, tempfile, threading, multiprocessing
piped = subprocess.run("cat < /dev/stdin | sort > out; cat out", shell=True, input=b"b", capture_output=True)
assert piped.stdout == b"b\\n"
with tempfile.TemporaryDirectory() as folder:
    pathlib.Path(folder, "x").write_text("1")
    os.rename(folder + "/x", folder + "/y")
    os.mkfifo(folder + "/pipe")
    threading.Thread(target=lambda: open(folder + "/pipe", "w").write("through")).start()
    assert open(folder + "/pipe").read() == "through"
child = subprocess.Popen(["sleep", "100"])
child.terminate()
child.wait()
assert open("/proc/self/status").read() and open("/dev/null", "w").write("x") and os.listdir("/proc/self/fd")
with multiprocessing.get_context("spawn").Pool(1) as pool:
    assert pool.map(abs, [-1]) == [1]
server = socket.socket(socket.AF_UNIX)
server.bind(f"{os.getpid()}.socket")  # a spawned process comes here, too
server.listen()
socket.socket(socket.AF_UNIX).connect(f"{os.getpid()}.socket")
os.umask(0o77)
open("private", "w").close()
assert os.stat("private").st_mode & 0o777 == 0o600
print(4)
"""
    code = code.replace("with multiprocessing", "if __name__ == '__main__':\n  with multiprocessing").replace(
        "    assert pool", "      assert pool"
    )
    ended, logs = verified({"solve.py": code}, f"cd /workspace\n{TEST}")
    assert logs == {"reward.txt": "1"}, ended.output


@pytest.mark.parametrize(
    ("test", "loaded"),
    [
        ("cd /workspace; python3 -c 'import solve'", ["/workspace/solve.py"]),
        (". /workspace/settings.sh", ["/workspace/settings.sh"]),
        ("make -s -C /workspace", ["/workspace/Makefile"]),
        ("cat /workspace/solve.py > /dev/null; python3 /workspace/solve.py", []),
    ],
)
def test_channel_tells_whether_the_agents_code_was_loaded(verified: Verified, test: str, loaded: list[str]) -> None:
    """And the process that loaded it can't write the reward."""
    files = {"solve.py": "", "settings.sh": "", "Makefile": "all:\n"}
    found = verified(files, test + " 2> /dev/null\n")[0].loaded or []
    if "make" in test and not found:
        pytest.skip("there is no make")
    assert [path for path in found if path.endswith(loaded[0])] if loaded else not found


def test_channel_keeps_rewards_from_loaded_code(verified: Verified) -> None:
    code = "import os\nos.system('echo 1 > /logs/verifier/reward.json')\nopen('/logs/verifier/reward.txt', 'w')"
    ended, logs = verified(
        {"solve.py": code}, "cd /workspace; python3 -c 'import solve'; echo no > /logs/verifier/log\n"
    )
    assert logs == {"log": "no"}, ended.output


def test_channel_ends_with_the_verifier(verified: Verified) -> None:
    ended, logs = verified({"solve.py": ""}, "sleep 1000 & echo 1 > /logs/verifier/reward.txt\n")
    assert (ended.status, logs) == (0, {"reward.txt": "1"})


@pytest.mark.parametrize(
    ("files", "line"),
    [
        ({"x.sed": "1w /logs/verifier/reward.json\n"}, "echo 1 | sed -f /workspace/x.sed"),
        ({"x.sed": "1r /tests/answer\n"}, "echo 1 | sed -n --file=/workspace/x.sed | grep -q 4 && exit 0"),
        ({"x.awk": 'BEGIN { print 1 > "/logs/verifier/reward.json" }\n'}, "awk -f /workspace/x.awk"),
        ({"x.awk": 'BEGIN { getline a < "/tests/answer"; exit a != "4" }\n'}, "awk -f /workspace/x.awk"),
        ({"x.awk": 'BEGIN { exit system("cat /tests/answer") }\n'}, "awk -f /workspace/x.awk"),
        ({"q.txt": "open('/tests/answer').read()\n"}, "python3 < /workspace/q.txt"),
        ({"q.txt": "cat /tests/answer > /tmp/x\n"}, "bash -s a b < /workspace/q.txt"),
        (
            {"q.sql": ".shell cat /tests/answer > /tmp/x && echo 1 > /tmp/good\n"},
            "sqlite3 < /workspace/q.sql; cat /tmp/good",
        ),
        ({"q.txt": "echo 1 > /logs/verifier/reward.json\n"}, 'bash -c "$(cat /workspace/q.txt)"'),
        ({"q.txt": "open('/tests/answer').read()\n"}, 'python3 -c "$(cat /workspace/q.txt)"'),
        ({"a.c": '#include "/tests/answer"\n'}, "gcc -E /workspace/a.c -o /tmp/out 2> /dev/null"),
        ({"a.s": '.incbin "/tests/answer"\n'}, "gcc -c /workspace/a.s -o /tmp/out 2> /dev/null"),
    ],
)
def test_channel_knows_scripts_that_are_given_to_tools(verified: Verified, files: dict[str, str], line: str) -> None:
    """By an option, as standard input, as text; and what compilers include for them."""
    ended, logs = verified(files, f"{line}\n{REWARD}")
    assert logs == {"reward.txt": "0"} or (logs == {"reward.txt": "1"} and "x.sed" in files), ended.output
    assert ended.refused, ended.output


@pytest.mark.parametrize("pack", ["tar xf /workspace/a.tar", "tar x < /workspace/a.tar"])
def test_channel_follows_no_link_out_of_an_archive_of_the_agents(verified: Verified, pack: str) -> None:
    made = (
        "mkdir /tmp/m /tmp/o; ln -s /tests/answer /tmp/m/answer; tar -cf /workspace/a.tar -C /tmp/m answer; cd /tmp/o"
    )
    ended, logs = verified({"a.tar": ""}, f"{made}; {pack}; ls -l; diff answer /tests/answer\n{REWARD}")
    assert logs == {"reward.txt": "0"}, ended.output


@pytest.mark.parametrize(
    ("files", "line"),
    [
        ({"out.txt": "4\n"}, "sed 's/ //' /workspace/out.txt | diff - <(cat /tests/answer; echo)"),
        ({"out.txt": "4\n"}, "awk 'NR == FNR { a = $0 } END { exit a != $0 }' /workspace/out.txt /tests/answer"),
        ({"a.c": "int main(void) { return 0; }\n"}, "gcc /workspace/a.c -o /tmp/out && /tmp/out"),
        ({"out.txt": "4\n"}, 'bash -c "[ $(cat /workspace/out.txt) = 4 ]"'),
        ({"a.h": "#define A 4\n"}, "echo '#include \"/workspace/a.h\"' > /tmp/t.c && gcc -E /tmp/t.c | grep -q ."),
        ({"in.txt": "4\n"}, "python3 -c 'assert input() == open(\"/tests/answer\").read()' < /workspace/in.txt"),
    ],
)
def test_channel_lets_tools_compare_what_the_agent_made(verified: Verified, files: dict[str, str], line: str) -> None:
    ended, logs = verified(files, f"{line}\n{REWARD}")
    assert logs == {"reward.txt": "1"}, ended.output
    assert ended.refused == []
