"""Skills, MCP servers, context files, memories and system prompts: how they are read, and the arms made of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import KoderzError
from koderz.settings.trust import READS
from koderz.systems.rollouts.additions import Kind, read_additions, told_of
from koderz.systems.rollouts.commands import matrix_of
from koderz.systems.rollouts.suite import SAMPLE
from koderz.systems.rollouts.tasks.config import read_config, risks_of


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees what another has left in the cache."""
    monkeypatch.setattr("koderz.systems.rollouts.additions.cache_folder", lambda: tmp_path / "cache")


def _skill(folder: Path, name: str = "sql-style", text: str = "Use upper case.") -> Path:
    (folder / name / "scripts").mkdir(parents=True, exist_ok=True)
    (folder / name / "SKILL.md").write_text(f"---\nname: {name}\ndescription: How SQL is written.\n---\n{text}\n")
    (folder / name / "scripts/check.sh").write_text("echo checked\n")
    return folder / name


def _committed(repository: Path, message: str) -> None:
    words = (("init", "-q"), ("add", "-A"), ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", message))
    for each in words:
        subprocess.run(["git", "-C", str(repository), *each], check=True, capture_output=True)


def test_skill_is_copied_into_the_cache_as_it_is(tmp_path: Path) -> None:
    folder = _skill(tmp_path)
    (folder / "scripts/check.sh").chmod(0o755)
    (found,) = read_additions("skill", str(folder), tmp_path)
    kept = Path(found.path)
    assert (found.kind, found.name, kept.name) == ("skill", "sql-style", "sql-style")
    (folder / "SKILL.md").write_text("edited during the run")
    assert "upper case" in (kept / "SKILL.md").read_text()
    assert (kept / "scripts/check.sh").stat().st_mode & 0o111
    assert read_additions("skill", str(folder), tmp_path)[0].digest != found.digest


def test_digest_depends_on_all_that_is_mounted_and_on_nothing_else(tmp_path: Path) -> None:
    folder = _skill(tmp_path)

    def digest() -> str:
        return read_additions("skill", "sql-style", tmp_path)[0].digest

    before = digest()
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__/a.pyc").write_bytes(b"\0")
    assert digest() == before
    (folder / "scripts/check.sh").chmod(0o700)
    assert digest() != before


def test_skill_of_each_revision_is_read_from_git(tmp_path: Path) -> None:
    folder = _skill(tmp_path / "repository/skills", text="First.")
    _committed(tmp_path / "repository", "one")
    subprocess.run(["git", "-C", str(tmp_path / "repository"), "tag", "team/v1"], check=True)
    _skill(tmp_path / "repository/skills", text="Second.")
    _committed(tmp_path / "repository", "two")
    said = f"{folder}@team/v1", f"{folder}@HEAD", str(folder)
    old, new, live = (read_additions("skill", each, tmp_path)[0] for each in said)
    assert (old.name, new.name, live.name) == ("sql-style@team/v1", "sql-style@HEAD", "sql-style")
    assert "First." in Path(old.path, "SKILL.md").read_text()
    assert new.digest == live.digest != old.digest
    for each in folder.rglob("*"):
        if each.is_file():
            each.unlink()
    _committed(tmp_path / "repository", "three")  # the folder is no longer there
    subprocess.run(["rm", "-r", str(folder.parent)], check=True)
    assert read_additions("skill", f"{folder}@HEAD~1", tmp_path)[0].digest == new.digest


def test_skill_that_is_a_repository_of_its_own_keeps_its_name(tmp_path: Path) -> None:
    folder = _skill(tmp_path)
    _committed(folder, "one")
    (found,) = read_additions("skill", "sql-style@HEAD", tmp_path)
    assert (found.name, Path(found.path).name) == ("sql-style@HEAD", "sql-style")
    assert found.digest == read_additions("skill", "sql-style", tmp_path)[0].digest  # which has no .git


def test_copy_that_was_changed_is_told_and_read_by_others(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        (found,) = read_additions("skill", str(_skill(tmp_path)), tmp_path)
    finally:
        os.umask(before)
    assert all(each.stat().st_mode & 0o004 for each in (Path(found.path), *Path(found.path).rglob("*")))
    for name, text in (("more", "x"), ("SKILL.md", "")):
        Path(found.path, name).write_text(text)
        with pytest.raises(KoderzError, match=r"has changed since koderz copied sql-style there; remove it"):
            read_additions("skill", "sql-style", tmp_path)
        shutil.rmtree(Path(found.path).parent)
        read_additions("skill", "sql-style", tmp_path)


def test_servers_of_a_file_are_mounted_with_what_they_name(tmp_path: Path) -> None:
    (tmp_path / "parcels.py").write_text("print(1)")
    servers: dict[str, dict[str, Any]] = {
        "parcels": {"command": "python3", "args": ["parcels.py", "--fast"], "env": {"A": "b"}},
        "web": {"type": "http", "url": "http://tools.example/mcp"},
    }
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    parcels, web = read_additions("mcp", "mcp.json", tmp_path)
    assert parcels.server == {**servers["parcels"], "args": [f"{parcels.path}/parcels.py", "--fast"]}
    assert Path(parcels.path, "parcels.py").read_text() == "print(1)"
    inside = parcels.mounted
    assert inside.server["args"] == [f"{inside.path}/parcels.py", "--fast"]
    assert inside.path.startswith("/opt/koderz/")
    assert (web.path, web.server) == ("", servers["web"])


def test_server_by_command_is_called_after_its_program(tmp_path: Path) -> None:
    script = tmp_path / "parcels.py"
    script.write_text("print(1)")
    (found,) = read_additions("mcp", f"python3 -u {script}", tmp_path)
    assert (found.name, found.server["args"]) == ("parcels", ["-u", f"{found.path}/parcels.py"])
    (plain,) = read_additions("mcp", "npx -y some-server /data", tmp_path)
    assert (plain.name, plain.path, plain.server["args"]) == ("some-server", "", ["-y", "some-server", "/data"])


@pytest.mark.parametrize(
    ("kind", "said", "why"),
    [
        ("skill", "missing", "there is no file or folder missing"),
        ("skill", "sql-style@v9", "git has no such revision"),
        ("skill", "sql-style@--output=x", "there is no file or folder sql-style@--output=x"),
        ("skill", "empty", "a skill is a folder with a SKILL.md"),
        ("context", "empty", "is a folder"),
        ("system_prompt", "bytes.md", "can't be read as text"),
        ("mcp", "bad.json", "unknown key 'comand'; did you mean 'command'?"),
        ("mcp", "both.json", "either a command or a url"),
        ("mcp", "kinds.json", "expected `array`, got `str`"),
        ("mcp", "no.json", "no MCP servers"),
        ("mcp", "python3 'x", "no command that a shell could read"),
    ],
)
def test_additions_that_cannot_be_used_are_refused(tmp_path: Path, kind: Kind, said: str, why: str) -> None:
    _skill(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "bytes.md").write_bytes(b"\xff\xfe")
    for name, server in (("bad", {"comand": "x"}), ("both", {"url": "u", "command": "x"}), ("kinds", {"args": "x"})):
        (tmp_path / f"{name}.json").write_text(json.dumps({"mcpServers": {"s": server}}))
    (tmp_path / "no.json").write_text("[]")
    with pytest.raises(KoderzError) as told:
        read_additions(kind, said, tmp_path)
    assert why in str(told.value)
    assert "\n" not in str(told.value)


def test_link_that_leaves_a_skill_is_refused(tmp_path: Path) -> None:
    folder = _skill(tmp_path)
    (folder / "secret").symlink_to("/etc/hostname")
    with pytest.raises(KoderzError, match="is a link that leaves its folder"):
        read_additions("skill", str(folder), tmp_path)
    (tmp_path / "every").mkdir()
    (tmp_path / "every/other").symlink_to(_skill(tmp_path / "elsewhere", "other"))
    with pytest.raises(KoderzError, match="a link that leaves"):
        read_additions("skill", "every", tmp_path)


def test_revision_of_a_strange_repository_starts_none_of_its_programs(tmp_path: Path) -> None:
    folder = _skill(tmp_path / "repository")
    (tmp_path / "repository/.gitattributes").write_text("* filter=own\n")
    _committed(tmp_path / "repository", "one")
    smudge = f"touch {tmp_path}/started; cat"
    for key, value in (
        ("filter.own.smudge", smudge),
        ("core.fsmonitor", f"touch {tmp_path}/started"),
        ("tar.tar.command", smudge),
    ):
        subprocess.run(["git", "-C", str(tmp_path / "repository"), "config", key, value], check=True)
    (found,) = read_additions("skill", f"{folder}@HEAD", tmp_path)
    assert "upper case" in Path(found.path, "SKILL.md").read_text()
    assert not (tmp_path / "started").exists()


def _config(folder: Path, text: str) -> Path:
    path = folder / "arms.toml"
    path.write_text(text)
    return path


_TASKS = f"""
[[tasks]]
prepared_dir = "{SAMPLE}/median"
[[tasks]]
prepared_dir = "{SAMPLE}/slugs"
rollouts = 3
"""


def test_arms_have_an_entry_each_for_every_task(tmp_path: Path) -> None:
    _skill(tmp_path)
    arms = '[[arms]]\nname = "plain"\n[[arms]]\nname = "with sql-style"\nskills = ["sql-style"]\n'
    path = _config(tmp_path, f'model = "m"\n{arms}{_TASKS}')
    matrix = matrix_of(read_config(path), agent=None, model=None, rollouts=None)
    cells = [
        (cell.task, cell.arm, cell.samples) for cell in matrix.cells_of(["sample/median", "sample/slugs"], 1) or []
    ]
    assert cells == [
        ("sample/median", "koderz · m · plain", 1),
        ("sample/median", "koderz · m · with sql-style", 1),
        ("sample/slugs", "koderz · m · plain", 3),
        ("sample/slugs", "koderz · m · with sql-style", 3),
    ]
    found = [[each.name for each in task.additions] for task in read_config(path).tasks]
    assert found == [[], ["sql-style"], [], ["sql-style"]]


def test_long_names_of_arms_stay_whole(tmp_path: Path) -> None:
    names = [f"with the very first revision of all {number}" for number in (1, 2)]
    arms = "".join(f'[[arms]]\nname = "{name}"\n' for name in names)
    matrix = matrix_of(
        read_config(_config(tmp_path, f'model = "m"\n{arms}{_TASKS}')), agent=None, model=None, rollouts=None
    )
    assert [arm.settings for arm in matrix.arms] == [{"arm": name} for name in names]


def test_arms_that_give_the_same_stay_two(tmp_path: Path) -> None:
    path = _config(tmp_path, f'model = "m"\n[[arms]]\nname = "a"\n[[arms]]\nname = "b"\n{_TASKS}')
    matrix = matrix_of(read_config(path), agent=None, model=None, rollouts=None)
    assert [arm.settings for arm in matrix.arms] == [{"arm": "a"}, {"arm": "b"}]


def test_keys_of_entries_tell_them_apart_without_arms(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        _skill(tmp_path / folder, text=folder)
    median = _TASKS.split("[[tasks]]")[1]
    entries = (f'{median}skills = ["one/sql-style"]\n', f'{median}skills = ["two/sql-style"]\n')
    path = _config(tmp_path, 'model = "m"\n' + "".join(f"[[tasks]]{each}" for each in (median, *entries)))
    matrix = matrix_of(read_config(path), agent=None, model=None, rollouts=None)
    names = [arm.name.removeprefix("koderz · m") for arm in matrix.arms]
    assert names == ["", " · skills=sql-style", " · skills=sql-style#2"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[[arms]]\nskills = ["a"]\n', "line 1: each of [[arms]] needs a name of its own"),
        ('[[arms]]\nname = "a"\n[[arms]]\nname = "a"\n', "line 4: each of [[arms]] needs a name of its own"),
        ('[[arms]]\nname = "a"\nskill = ["a"]\n', "line 3: unknown key 'skill'; did you mean skills?"),
        ('[[arms]]\nname = "a"\nskills = "a"\n', "line 3: skills has to be a list of texts, not 'a'"),
        ('[[arms]]\nname = "a"\nskills = ["a"]\n', "skills: there is no file or folder a"),
        ('[[arms]]\nname = "a"\ncontext = ["big.md", "more.md"]\n', "the texts of one arm have more than 96 KB"),
        ('[[arms]]\nname = "a"\nskills = ["s", "t/s"]\n', "skills: one arm can't have two that are called s"),
    ],
)
def test_arms_that_cannot_be_are_told(tmp_path: Path, text: str, why: str) -> None:
    _skill(tmp_path, "s")
    _skill(tmp_path / "t", "s")
    for name in ("big", "more"):
        (tmp_path / f"{name}.md").write_text("x" * 60_000)
    with pytest.raises(KoderzError) as told:
        read_config(_config(tmp_path, f"{text}{_TASKS}"))
    assert why in str(told.value)


def test_configuration_needs_trust_to_show_what_lies_elsewhere(tmp_path: Path) -> None:
    _skill(tmp_path / "elsewhere")
    (tmp_path / "own").mkdir()
    arm = '[[arms]]\nname = "a"\nskills = ["../elsewhere/sql-style"]\n'
    config = read_config(_config(tmp_path / "own", f"{arm}{_TASKS}"))
    assert set(risks_of(config).values()) == {READS}
    _skill(tmp_path / "own")
    assert not risks_of(
        read_config(_config(tmp_path / "own", f'[[arms]]\nname = "a"\nskills = ["sql-style"]\n{_TASKS}'))
    )


def test_memory_may_be_a_store_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("Parcels have codes.")
    (tmp_path / "memory.db").write_bytes(b"SQLite format 3\0")
    notes, store = (read_additions("memory", name, tmp_path)[0] for name in ("notes.md", "memory.db"))
    assert (notes.text, store.text) == ("Parcels have codes.", "")
    assert Path(store.path).read_bytes() == b"SQLite format 3\0"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_head_of_a_skill_is_what_agents_without_skills_are_told(tmp_path: Path, end: str) -> None:
    folder = _skill(tmp_path)
    file = folder / "SKILL.md"
    file.write_bytes(file.read_text().replace("\n", end).encode())
    (found,) = read_additions("skill", str(folder), tmp_path)
    told = told_of([found.mounted])
    assert "description: How SQL is written." in told
    assert f"{found.mounted.path}/SKILL.md" in told
    assert "upper case" not in told  # which has to be opened
