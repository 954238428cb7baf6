"""The folder an agent works in, which is the one that was built, and which its verifier sees as it was left."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from koderz.sandbox.scratch import scratch
from koderz.systems.rollouts.grading import Graded, grade
from koderz.systems.rollouts.options import RolloutsOptions
from koderz.systems.rollouts.task import Rollout
from koderz.systems.rollouts.tasks.formats import load_task
from koderz.systems.rollouts.workspaces.afresh import Work
from koderz.systems.rollouts.workspaces.workspace import Stores, Workspace, at_once
from koderz.systems.workspaces.local import Local

_ME = "git config user.email a@b.c && git config user.name a && git config commit.gpgsign false"
_INIT = f"git init -q --template= -b main . && {_ME} && git add -A && git commit -q --allow-empty -m"
_DOCKERFILE = f"""FROM ubuntu:24.04
WORKDIR /app
COPY notes.txt run.sh ./
RUN mkdir -p out/deep shut && touch shut/a && chmod 750 shut && chmod 600 notes.txt && chmod 444 run.sh
RUN ln notes.txt twin && ln -s notes.txt near && ln -s /etc/hostname far && ln -s none dead
RUN mkdir inner && cd inner && touch a && {_INIT} within
RUN echo '*.txt filter=evil text eol=crlf' > .gitattributes && echo '*.log' > .gitignore && echo kept > a.log
RUN mkdir aged && touch aged/a && touch -d 2002-02-02T02:02:02.123456789Z aged/a aged
RUN {_INIT} first && git commit -qm second --allow-empty
RUN git config core.autocrlf true && git config core.fileMode false
RUN git config filter.evil.clean 'touch /app/canary; cat'
RUN mkdir .git/hooks && printf '#!/bin/sh\\ntouch /app/canary\\n' > .git/hooks/post-index-change
RUN chmod 755 .git/hooks/* && cp .git/hooks/post-index-change .git/hooks/post-checkout
RUN touch -d 2001-01-01T00:00:00Z notes.txt && touch -h -d 2001-01-01T00:00:01Z near && chmod 711 .
"""
_LOOK = """
stat -c '%n %a' . shut out/deep notes.txt run.sh inner
stat -c '%n %h %Y' notes.txt twin near
stat -c '%n %.9Y' aged aged/a
readlink near far dead
cat a.log .gitattributes | tr '\\n' ' '
od -c notes.txt | head -2
git log --format=%s; git -C inner log --format=%s; git config core.autocrlf
ls -A .git/hooks/post* inner; ls canary
"""
_SEEN = r""". 711
shut 750
out/deep 755
notes.txt 600
run.sh 444
inner 755
notes.txt 2 978307200
twin 2 978307200
near 1 978307201
aged 1012615322.123456789
aged/a 1012615322.123456789
notes.txt
/etc/hostname
none
kept *.txt filter=evil text eol=crlf 0000000   o   n   e  \n   t   w   o  \n
0000010
second
first
within
true
.git/hooks/post-checkout
.git/hooks/post-index-change

inner:
.git
a
"""


def _task(folder: Path, dockerfile: str, look: str, seen: str) -> Rollout:
    """A task that passes if a command prints the same to the verifier."""
    texts = {
        "task.toml": 'schema_version = "1.1"\n[task]\nname = "cases/kept"\n[verifier]\ntimeout_sec = 60.0\n',
        "instruction.md": "Do it.",
        "environment/Dockerfile": dockerfile,
        "environment/notes.txt": "one\ntwo\n",
        "environment/run.sh": "true\n",
        "tests/seen.txt": seen,
        "tests/test.sh": f"""cat > /tmp/look.sh <<'END'\n{look}\nEND
bash /tmp/look.sh > /tmp/seen.txt 2>/dev/null
diff /tests/seen.txt /tmp/seen.txt; echo $((! $?)) > /logs/verifier/reward.txt\n""",
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return load_task(folder)


async def _worked(task: Rollout, local: Local, *lines: str) -> tuple[list[str], str, Graded]:
    """What lines print to an agent, its diff, and what is graded."""
    stores = Stores({"": local})
    with scratch() as place:
        workspace = Workspace(task, stores, place, at_once, RolloutsOptions())
        printed = [str((await workspace.shell(line))["output"]) for line in lines]
        diff = str((await workspace.diff())["diff"])
        graded = await grade(task, Work(diff, place), stores)
        return printed, diff, graded


def test_folder_is_the_one_that_was_built(runner: asyncio.Runner, local: Local, tmp_path: Path) -> None:
    task = _task(tmp_path, _DOCKERFILE, _LOOK, _SEEN)
    (printed,), diff, graded = runner.run(_worked(task, local, f"({_LOOK}) 2>/dev/null"))
    assert printed == _SEEN
    assert diff == ""
    assert graded.scored.success, graded.log
    assert graded.published
    assert graded.published.success


def test_changes_reach_the_verifier_as_they_were_left(runner: asyncio.Runner, local: Local, tmp_path: Path) -> None:
    lines = [
        "chmod 640 notes.txt; chmod 0 run.sh; rmdir out/deep; mkdir -m 700 made; touch -d 1999-09-09T00:00:00Z inner/a",
        "cd inner && echo more > b && git add b && git -c user.name=a -c user.email=a@b.c commit -qm 'by the agent'",
        "echo new > new.txt; mkdir cloned; git init -q cloned; echo x > cloned/x",
        "echo ignored > b.log; ln new.txt hard",
    ]
    look = (
        "stat -c '%n %a' notes.txt run.sh made; ls out; stat -c %Y inner/a; git -C inner log --format=%s; ls -A cloned"
    )
    seen = "notes.txt 640\nrun.sh 0\nmade 700\n936835200\nby the agent\nwithin\n.git\nx\nignored\n2\n"
    task = _task(tmp_path, _DOCKERFILE, f"{look}; cat b.log; stat -c %h hard", seen)
    _, diff, graded = runner.run(_worked(task, local, *lines))
    assert graded.scored.success, graded.log
    for text in ("+++ b/inner/b\n", "+++ b/new.txt\n@@ -0,0 +1 @@\n+new\n", "+++ b/cloned/x\n"):
        assert text in diff
    assert ".git/" not in diff
    assert "b.log" not in diff
    assert not graded.tampering


_LOST = f"""FROM ubuntu:24.04
WORKDIR /app
COPY notes.txt .
RUN {_INIT} first
RUN echo three >> notes.txt && git commit -qam lost && git reset -q --hard HEAD~1
"""


@pytest.mark.parametrize("line", ["git reset -q --hard HEAD@{1}", "true"])
def test_lost_commit_can_be_recovered(runner: asyncio.Runner, local: Local, tmp_path: Path, line: str) -> None:
    look = "test \"$(git log --format=%s | tr '\\n' ' ')\" = 'lost first ' && git status --short && echo right"
    task = _task(tmp_path, _LOST, look, "right\n")
    _, diff, graded = runner.run(_worked(task, local, line))
    assert graded.scored.success == (line != "true"), graded.log
    assert ("+three" in diff) == (line != "true")


def test_folder_without_a_repository_has_none(runner: asyncio.Runner, local: Local, tmp_path: Path) -> None:
    task = _task(tmp_path, "FROM ubuntu:24.04\nWORKDIR /app\nCOPY notes.txt .\n", "ls -A", "new\nnotes.txt\n")
    _, diff, graded = runner.run(_worked(task, local, "touch new; git status && touch old; true"))
    assert graded.scored.success, graded.log
    assert "new file mode 100644" in diff


@pytest.mark.parametrize("name", [".git", "inner/.git"])
def test_link_in_a_repository_leads_nowhere_else(
    runner: asyncio.Runner, local: Local, tmp_path: Path, name: str
) -> None:
    """Else a link beside it, which stays in the folder, would lead through it to the verifier's files."""
    task = _task(tmp_path, _DOCKERFILE, "cat answer.txt", "secret\n")
    (tmp_path / "tests/secret").write_text("secret\n")
    line = f"ln -s /tests/secret {name}/leak; ln -s {name}/leak answer.txt"
    _, _, graded = runner.run(_worked(task, local, line))
    assert not graded.scored.success
    assert f"{name}/leak: a link that leaves /app" in graded.tampering


def test_settings_of_git_forge_no_reward(runner: asyncio.Runner, local: Local, tmp_path: Path) -> None:
    task = _task(tmp_path, _DOCKERFILE, "git status; cat answer.txt", "right\n")
    forge = "echo 1 > /logs/verifier/reward.txt; kill $(cut -d' ' -f4 /proc/$PPID/stat)"
    (tmp_path / "forge").write_text(forge)
    _, _, graded = runner.run(_worked(task, local, f"git config core.fsmonitor {forge!r}"))
    assert not graded.scored.success


def test_settings_of_git_put_no_reward_in_place(runner: asyncio.Runner, local: Local, tmp_path: Path) -> None:
    """Though git writes where a repository says that its files belong."""
    task = _task(tmp_path, _DOCKERFILE, "", "")
    script = (
        "git checkout -qf HEAD && ls a.log || exit 1; test -s answer.txt; echo $((! $?)) > /logs/verifier/reward.txt"
    )
    (tmp_path / "tests/test.sh").write_text(script)
    forge = f"echo 1 > reward.txt; git add -f reward.txt; {_ME}; git commit -qm x -- reward.txt; rm reward.txt a.log"
    _, _, graded = runner.run(_worked(task, local, f"{forge}; git config core.worktree /logs/verifier"))
    assert graded.published
    assert graded.published.success  # where the agent worked nobody is kept from it
    assert not graded.scored.success
