"""Three formats of tasks, one loader; what can't be honoured is refused by name."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import Fault, KoderzError
from koderz.sandbox.workspace import Backend, Command, Image
from koderz.suites.suite import SuiteSource
from koderz.systems.rollouts.environments.trees import prepared, shown_below
from koderz.systems.rollouts.grading.scores import rewarded, scored
from koderz.systems.rollouts.options import RolloutsOptions
from koderz.systems.rollouts.suite import SAMPLE, RolloutsSuite
from koderz.systems.rollouts.tasks.config import read_config
from koderz.systems.rollouts.tasks.formats import load_task, require_work
from koderz.systems.rollouts.tasks.runnable import placed, unmet
from koderz.systems.rollouts.workspaces.workspace import Stores
from koderz.systems.workspaces.images import ImageStore
from koderz.systems.workspaces.local import Local
from koderz.systems.workspaces.scripts import ScriptResult
from koderz.systems.workspaces.userland import environment


def _repository(folder: Path) -> str:
    files = {"pkg/code.py": "one\n", "pkg/secret.txt": "s", "build/out": "o", "notes.md": "n", "deep/build/x": "x"}
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    own = ["git", "-c", "user.name=A", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run([*own, *words], cwd=folder, check=True, capture_output=True)
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _meta(folder: Path, **more: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "tb_meta.json").write_text(json.dumps({"task_id": "t", "lm": {"instructions": "Do it."}, **more}))
    return folder


def _tree(task: Any, folder: Path, backend: Backend | None = None) -> dict[str, str]:
    async def listed() -> str:
        store = await prepared(task, folder / "store", backend or Local())
        await store.checkout(folder / "checkout")
        return store.commit

    asyncio.run(listed())
    checkout = folder / "checkout"
    paths = [path for path in checkout.rglob("*") if path.is_file() and ".git" not in path.parts]
    return {path.relative_to(checkout).as_posix(): path.read_text() for path in paths}


def test_repository_is_overlaid_thinned_out_and_added_to_in_order(tmp_path: Path) -> None:
    commit = _repository(tmp_path / "source")
    task = _meta(tmp_path / "task", repo={"git_url": "../source", "start_commit_sha": commit})
    (task / "overlay_repo_files").mkdir()
    (task / "overlay_repo_files/notes.md").write_text("laid over")
    (task / "overlay_repo_files/build").write_text("a file, and no folder")
    overrides = {
        "remove_repo_paths": ["secret.txt", "deep/", "*.none"],
        "inject_files": [{"path": "pkg/secret.txt", "content": "injected"}],
        "lm_instructions": "Do that.",
        "environment_variables": {"MODE": "x"},
    }
    (task / "overrides.json").write_text(json.dumps(overrides))
    loaded = load_task(task)
    assert (loaded.instructions, loaded.environment) == ("Do that.", {"MODE": "x"})
    assert load_task(task, apply_overrides=False).instructions == "Do it."
    assert _tree(loaded, tmp_path) == {
        "pkg/code.py": "one\n",
        "pkg/secret.txt": "injected",
        "notes.md": "laid over",
        "build": "a file, and no folder",
    }


def test_overlay_instructions_win_over_the_files(tmp_path: Path) -> None:
    task = _meta(tmp_path / "task")
    (task / "overlay_files").mkdir()
    (task / "overlay_files/LM_INSTRUCTIONS.md").write_text("Do this.")
    assert load_task(task).instructions == "Do this."
    before = load_task(task).digest
    (task / "overlay_files/notes.md").write_text("more")
    assert load_task(task).digest != before


@pytest.mark.parametrize("path", ["../out", "/etc/x", ".git/hooks/pre-commit"])
def test_file_of_a_task_cannot_leave_the_repository(tmp_path: Path, path: str) -> None:
    task = _meta(tmp_path / "task")
    (task / "overrides.json").write_text(json.dumps({"inject_files": [{"path": path, "content": "x"}]}))
    with pytest.raises(Fault, match="leads out"):
        _tree(load_task(task), tmp_path)
    assert not (tmp_path / "out").exists()


def test_links_that_leave_the_folder_are_refused(tmp_path: Path) -> None:
    task = _meta(tmp_path / "task")
    (task / "overlay_repo_files").mkdir()
    (task / "overlay_repo_files/passwd").symlink_to("/etc/passwd")
    with pytest.raises(KoderzError, match="leaves its folder"):
        load_task(task)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"evaluation": {"test_scripts": [{"path": "t.py", "rubric_id": "none", "content": ""}]}}, "'none'"),
        ({"evaluation": {"rubrics": [{"id": "a"}, {"id": "a"}]}}, "ids of their own"),
        ({"evaluation": {"rubrics": [{"id": "a", "weight": -1}]}}, "weights"),
        ({"evaluation": {"rubrics": [{"id": 3}]}}, "rubrics|expected"),
        ({"repo": ["x"]}, "tb_meta.json"),
    ],
)
def test_task_file_errors_are_told(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    task = _meta(tmp_path / "task", **change)
    with pytest.raises(KoderzError, match=named):
        load_task(task)


def test_unknown_override_is_told(tmp_path: Path) -> None:
    task = _meta(tmp_path / "task")
    (task / "overrides.json").write_text('{"remove": []}')
    with pytest.raises(KoderzError, match="unknown key 'remove'"):
        load_task(task)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"llm": {"instructions": "x"}}, "unknown key 'llm'; did you mean 'lm'"),
        ({"evaluaton": {}}, "unknown key 'evaluaton'; did you mean 'evaluation'"),
        ({"lm": {"instruction": "x"}}, "lm: unknown key 'instruction'; did you mean 'instructions'"),
        ({"repo": {"start_commit": "x"}}, "repo: unknown key 'start_commit'; did you mean 'start_commit_sha'"),
        ({"evaluation": {"test_script": []}}, "evaluation: unknown key 'test_script'; did you mean 'test_scripts'"),
        (
            {"evaluation": {"rubrics": [{"id": "a", "weigth": 2}]}},
            "rubrics: unknown key 'weigth'; did you mean 'weight'",
        ),
        (
            {"evaluation": {"test_scripts": [{"path": "t.py", "rubric_id": "a", "content": "", "timeout": 3}]}},
            "test_scripts: unknown key 'timeout'; did you mean 'timeout_sec'",
        ),
        ({"x1": 3}, "unknown key 'x1'; there are evaluation, lm"),
    ],
)
def test_unknown_key_is_named_with_the_nearest(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(KoderzError, match=said):
        load_task(_meta(tmp_path / "task", **change))


def test_known_keys_are_those_of_published_files(tmp_path: Path) -> None:
    """Those that OneShot's scripts write, older ones too."""
    repo = {
        **dict.fromkeys(("git_url", "branch", "start_commit_sha", "end_commit_sha", "subdir"), ""),
        "sparse_checkout": [],
    }
    old: dict[str, Any] = {"content_rubric": [], "location_rubric": [], "clarity_rubric": []}
    metadata = {"title": "T", "tags": ["a"], "difficulty": "easy"}
    task = _meta(tmp_path / "task", repo=repo, evaluation=old, metadata=metadata, sensitivity={"level": "safe"})
    assert load_task(task).title == "T"


def test_test_script_may_lie_in_a_file_that_no_agent_sees(tmp_path: Path) -> None:
    row = {"path": "tests/t.py", "rubric_id": "a"}
    task = _meta(
        tmp_path / "task", evaluation={"rubrics": [{"id": "a"}], "test_scripts": [row | {"content_file": "./t.py"}]}
    )
    (task / "t.py").write_text("def test_one():\n    pass\n")
    (task / "Dockerfile").write_text("FROM scratch\n")
    found = load_task(task)
    assert [(script.path, script.content) for script in found.scripts] == [
        ("tests/t.py", "def test_one():\n    pass\n")
    ]
    assert "t.py" not in shown_below(found)
    assert isinstance(found.image, Image)
    assert "t.py" in found.image.hidden
    (task / "t.py").write_text("def test_two():\n    pass\n")
    assert load_task(task).digest != found.digest


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({}, "the test script t.py needs one of content and content_file"),
        ({"content": "", "content_file": "t.py"}, "needs one of content and content_file"),
        ({"content_file": "gone.py"}, "content_file: there is no gone.py in"),
        ({"content_file": "../t.py"}, r"content_file: there is no \.\./t\.py in"),
        ({"content_files": "t.py"}, "unknown key 'content_files'; did you mean 'content_file'"),
    ],
)
def test_test_script_without_one_text_is_refused(tmp_path: Path, row: dict[str, str], said: str) -> None:
    (tmp_path / "t.py").touch()
    scripts = [{"path": "t.py", "rubric_id": "a"} | row]
    with pytest.raises(KoderzError, match=said):
        load_task(_meta(tmp_path / "task", evaluation={"rubrics": [{"id": "a"}], "test_scripts": scripts}))


def test_missing_repository_is_told_before_a_run(tmp_path: Path) -> None:
    task = load_task(_meta(tmp_path / "task", repo={"git_url": "../gone"}, evaluation=_TESTS))
    with pytest.raises(KoderzError, match=r"task: there is no repository \.\./gone; git_url names a folder"):
        require_work(task, judged=False)
    (tmp_path / "gone").mkdir()
    require_work(task, judged=False)


_TESTS = {"rubrics": [{"id": "a"}], "test_scripts": [{"path": "t.py", "rubric_id": "a", "content": ""}]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lm": {"instructions": " "}, "evaluation": _TESTS}, "has no instructions"),
        ({"lm": {}, "evaluation": _TESTS}, "has no instructions"),
        ({}, "has no tests; add evaluation.test_scripts"),
        ({"evaluation": {"rubrics": [{"id": "a"}]}}, "has no tests"),
    ],
)
def test_task_without_work_or_tests_is_refused_before_a_run(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    task = _meta(tmp_path / "task", **change)
    with pytest.raises(KoderzError, match=said):
        RolloutsSuite.load(SuiteSource(task, RolloutsOptions()))
    (tmp_path / "c.toml").write_text(f'[[tasks]]\nprepared_dir = "{task}"\nagent = "nop"\n')
    with pytest.raises(KoderzError, match=said):
        RolloutsSuite.load(SuiteSource(tmp_path / "c.toml", RolloutsOptions()))


def test_task_without_tests_may_be_judged_by_a_model(tmp_path: Path) -> None:
    task = _meta(tmp_path / "task", evaluation={"content_rubric": "It is good."})
    entry = f'[[tasks]]\nprepared_dir = "{task}"\nagent = "nop"\n'
    (tmp_path / "c.toml").write_text(entry + 'judge_model = "simulated"\n')
    assert len(RolloutsSuite.load(SuiteSource(tmp_path / "c.toml", RolloutsOptions())).tasks) == 1
    assert len(RolloutsSuite.load(SuiteSource(task, RolloutsOptions(judge_model="simulated"))).tasks) == 1


@pytest.mark.parametrize("name", ["task.toml", "task.yaml"])
def test_task_whose_own_tests_are_missing_is_refused(tmp_path: Path, name: str) -> None:
    folder = _harbor(tmp_path / "task")
    if name == "task.yaml":
        (folder / "task.toml").unlink()
        (folder / "task.yaml").write_text("instruction: Do it.\n")
        (folder / "Dockerfile").write_text("FROM x\n")
    with pytest.raises(KoderzError, match="has no tests; add"):
        RolloutsSuite.load(SuiteSource(folder, RolloutsOptions()))


_HARBOR = '[task]\nname = "org/x"\n[agent]\ntimeout_sec = 9\n'


def _harbor(folder: Path, toml: str = _HARBOR, dockerfile: str = "FROM x\nWORKDIR /app\n") -> Path:
    (folder / "environment").mkdir(parents=True)
    (folder / "task.toml").write_text(toml)
    (folder / "instruction.md").write_text("Do it.")
    (folder / "environment/Dockerfile").write_text(dockerfile)
    (folder / "environment/data.txt").write_text("data")
    return folder


def test_dockerfile_is_carried_out_over_the_host(tmp_path: Path) -> None:
    lines = "# base\nFROM x\nWORKDIR /srv/app\nENV MODE=on OTHER='two words'\nCOPY data.txt ./in/\n"
    lines += "RUN mkdir made && \\\n    echo $MODE > made/file\n"
    task = load_task(_harbor(tmp_path / "task", dockerfile=lines))
    assert (task.workdir, task.stated, task.agent_seconds) == ("/srv/app", {"MODE": "on", "OTHER": "two words"}, 9)
    assert task.environment == {}
    assert _tree(task, tmp_path) == {"in/data.txt": "data", "made/file": "on\n"}


def test_variables_of_a_dockerfile_are_its_images_own(tmp_path: Path) -> None:
    lines = 'FROM x\nENV PATH="/opt/venv/bin:$PATH" MODE=${MODE:-on}\nWORKDIR /app\n'
    lines += "RUN echo $MODE > mode && printenv PATH > path\n"
    task = load_task(_harbor(tmp_path / "task", dockerfile=lines))
    command = Command(["true"], {"OWN": "1"}, image=task.image)
    assert command.environment == {"OWN": "1"}  # an image has the others already
    assert {**command.variables} == {"OWN": "1", **task.stated}
    path = task.stated["PATH"]
    assert path == f"/opt/venv/bin:{environment()['PATH']}"
    assert _tree(task, tmp_path) == {"mode": "on\n", "path": f"{path}\n"}
    named = load_task(_harbor(tmp_path / "named", f'{_HARBOR}[environment]\ndocker_image = "y"\n', lines))
    assert (named.image, named.stated, named.environment) == ("y", {}, {})


def test_copy_before_workdir_is_laid_into_it(tmp_path: Path) -> None:
    lines = "FROM x\nCOPY data.txt /work/in/data.txt\nCOPY *.txt /work/\nWORKDIR /\nWORKDIR work\n"
    lines += "RUN cp in/data.txt b\n"
    task = load_task(_harbor(tmp_path / "task", dockerfile=lines))
    assert (task.workdir, task.refused) == ("/work", "")
    assert _tree(task, tmp_path) == dict.fromkeys(("in/data.txt", "data.txt", "b"), "data")


def test_folder_of_a_dockerfile_without_workdir_is_its_images(tmp_path: Path) -> None:
    (tmp_path / "images/root/bin").mkdir(parents=True)
    (tmp_path / "images/images.json").write_text('{"placed:1": {"path": "root", "workdir": "/testbed"}}')
    images = ImageStore(tmp_path / "images", tmp_path / "cache")
    task = load_task(_harbor(tmp_path / "task", dockerfile="FROM placed:1\nCOPY data.txt in/\n"))
    assert placed(task, images).workdir == "/testbed"
    assert _tree(task, tmp_path) == {"in/data.txt": "data"}
    other = load_task(_harbor(tmp_path / "other", dockerfile="FROM placed:1\nWORKDIR /own\n"))
    assert placed(other, images).workdir == "/own"


@pytest.mark.parametrize("line", ["USER x", "COPY data.txt /etc/x", "COPY --from=a b c", "WORKDIR /etc"])
def test_dockerfile_lines_unsupported_are_a_fault_naming_docker(tmp_path: Path, line: str) -> None:
    task = load_task(_harbor(tmp_path / "task", dockerfile=f"FROM x\nWORKDIR /app\n{line}\n"))
    with pytest.raises(Fault, match=r"line 3.*docker"):
        _tree(task, tmp_path)


class _Images(Local):
    """A backend with images; what one has is laid into it by hand."""

    has_images = True
    guards_channels = False

    async def copy_out(self, image: Image | str, folder: str, target: Path) -> None:
        assert isinstance(image, Image)
        (target / "from-image").write_text(f"{image.context.name} {folder}")


def test_image_gives_the_checkout(tmp_path: Path) -> None:
    task = load_task(_harbor(tmp_path / "task", dockerfile="FROM x\nUSER y\nWORKDIR /srv\nRUN false\n"))
    assert _tree(task, tmp_path, _Images()) == {"from-image": "environment /srv"}


def test_image_changes_with_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "task"
    shutil.copytree(SAMPLE / "greeting", folder)
    before = load_task(folder)
    (folder / "instruction.md").write_text("Something else.")
    (folder / "tests/test.sh").write_text("true\n")
    asked = load_task(folder)
    assert asked.digest != before.digest
    assert asked.image == before.image
    (folder / "environment/more").write_text("more")
    assert asked.image != load_task(folder).image


def test_sandbox_may_be_named_by_a_task(tmp_path: Path) -> None:
    stores = Stores({"": Local(), "docker": _Images()})
    task = load_task(_harbor(tmp_path / "task"))
    assert isinstance(stores.backend_of(replace(task, sandbox="docker")), _Images)
    assert not isinstance(stores.backend_of(task), _Images)


def test_dockerfile_line_that_fails_names_docker(tmp_path: Path) -> None:
    task = load_task(_harbor(tmp_path / "task", dockerfile="FROM x\nWORKDIR /app\nRUN apt-get install -y nothing\n"))
    with pytest.raises(Fault, match=r"RUN .*docker"):
        _tree(task, tmp_path)


def test_terminal_bench(tmp_path: Path) -> None:
    folder = tmp_path / "hello"
    folder.mkdir()
    (folder / "task.yaml").write_text("instruction: |-\n  Do it.\nmax_agent_timeout_sec: 12\n")
    (folder / "Dockerfile").write_text("FROM x\nWORKDIR /app\n")
    task = load_task(folder)
    assert (task.id, task.instructions, task.agent_seconds, task.test_seconds) == ("hello", "Do it.", 12, 60)
    (folder / "docker-compose.yaml").write_text("")
    with pytest.raises(KoderzError, match=r"docker-compose\.yaml: no compose file"):
        load_task(folder)
    (folder / "docker-compose.yaml").write_text("services: {client: {image: x}, db: {image: y}}")
    assert unmet(load_task(folder), "local").endswith(
        "docker-compose.yaml: services.db needs --sandbox docker or podman with compose"
    )


def test_tests_and_solution_of_terminal_bench_are_in_no_checkout(tmp_path: Path) -> None:
    folder = tmp_path / "hello"
    (folder / "tests").mkdir(parents=True)
    (folder / "task.yaml").write_text("instruction: Do it.\n")
    (folder / "Dockerfile").write_text("FROM x\nWORKDIR /app\nCOPY . .\n")
    for name in ("tests/test_outputs.py", "run-tests.sh", "solution.sh", "data.txt"):
        (folder / name).write_text("x")
    task = load_task(folder)
    assert {*_tree(task, tmp_path)} == {"Dockerfile", "data.txt", "task.yaml"}
    assert isinstance(task.image, Image)
    assert {"tests", "run-tests.sh", "solution.sh"} <= {*task.image.hidden}


def test_scores_are_weighted_with_untested_rubrics_counted(tmp_path: Path) -> None:
    rubrics = [{"id": "a", "weight": 0.6}, {"id": "b", "weight": 0.2}, {"id": "c", "weight": 0.2}]
    scripts = [{"path": f"{n}.py", "rubric_id": rubric, "content": ""} for n, rubric in enumerate("aab")]
    task = load_task(_meta(tmp_path / "t", evaluation={"rubrics": rubrics, "test_scripts": scripts}))
    found = scored(task, [ScriptResult(f"{n}.py", n > 0, "") for n in range(3)])
    assert found.total_score == pytest.approx(0.5)
    assert found.score_of_graded == pytest.approx(0.625)
    assert found.success is False
    assert found.evaluation["rubrics"]["a"] == {
        "criterion": "",
        "weight": 0.6,
        "score": 0.5,
        "max_score": 1.0,
        "weighted_score": 0.3,
        "test_count": 2,
        "tests_passed": 1,
    }
    assert found.evaluation["rubrics"]["c"]["weighted_score"] is None
    assert scored(task, [ScriptResult(f"{n}.py", True, "") for n in range(3)]).success


def test_score_without_rubrics_is_0_and_nothing_passes(tmp_path: Path) -> None:
    found = scored(load_task(_meta(tmp_path / "t")), [])
    assert (found.total_score, found.score_of_graded, found.success) == (0.0, None, False)
    assert found.evaluation == {"rubrics": {}, "total_score": 0.0, "max_score": 1.0}


def test_rewards_pass_where_all_are_1(tmp_path: Path) -> None:
    task = load_task(_harbor(tmp_path / "task"))
    assert rewarded(task, {"a": 1.0, "b": 0.5}).total_score == 0.75
    assert not rewarded(task, {"a": 1.0, "b": 0.5}).success
    assert rewarded(task, {"a": 1.0}).success


def test_tasks_folder_is_a_dataset_and_the_sample_is_default(tmp_path: Path) -> None:
    assert [task.id for task in RolloutsSuite.load(SuiteSource(None, RolloutsOptions())).tasks] == [
        *("sample/greeting", "sample/median", "sample/slugs")
    ]
    assert [task.id for task in RolloutsSuite.load(SuiteSource(SAMPLE / "median", RolloutsOptions())).tasks] == [
        "sample/median"
    ]
    with pytest.raises(KoderzError, match="is no task"):
        RolloutsSuite.load(SuiteSource(tmp_path, RolloutsOptions()))


def test_task_digests_are_those_of_earlier_versions(tmp_path: Path) -> None:
    rubrics = [{"id": "r", "weight": 1}]
    scripts = [{"path": "test_x.py", "content": "def test(): pass", "rubric_id": "r"}]
    _meta(tmp_path / "task", evaluation={"rubrics": rubrics, "test_scripts": scripts})
    config = tmp_path / "config.toml"
    config.write_text('[[tasks]]\nprepared_dir = "task"\ntimeout_sec = 90\n')

    assert load_task(tmp_path / "task").digest == "c6b85a29432ff24e"
    assert [task.digest for task in read_config(config).tasks] == ["e2f029cc3dadd227"]
