"""Images, GPUs and models of published tasks, by rules."""

from __future__ import annotations

import asyncio
import venv
from dataclasses import replace
from pathlib import Path

import pytest

from koderz.errors import Fault, KoderzError
from koderz.sandbox.scratch import scratch
from koderz.sandbox.workspace import Command, Ended
from koderz.systems.modal.workspace import Modal
from koderz.systems.patches.machines import Machine, idle_rules, read_rules
from koderz.systems.patches.tasks import PerfTask, service_of
from koderz.systems.patches.trees import Fitted, fetched, put_beside
from koderz.systems.workspaces.docker import Docker
from tests.conftest import Shell
from tests.koderz.systems.workspaces.test_docker import asked, stand_in
from tests.loopback_modal import ModalServer
from tests.loopback_modal.processes import rooted

ROW = PerfTask("vllm-project__vllm-abc", "b" * 40, "a" * 40, repo="https://github.com/vllm-project/vllm", format="iso")


def _serving(model: str) -> PerfTask:
    return replace(ROW, kind="serving", service=service_of(f"vllm bench serve --model {model} --num-prompts 9"))


def test_published_tasks_have_their_images_by_full_hash() -> None:
    rules = read_rules(None)
    machine = rules.machine(_serving("deepseek-ai/DeepSeek-V3"))
    assert machine.base == f"anonymous/vllm-baseline:{'b' * 40}"
    assert machine.human == f"anonymous/vllm-bench:{'a' * 40}"
    assert (machine.gpu, machine.model) == ("H100:8", "deepseek-ai/DeepSeek-V3")
    assert machine.line_of("x").startswith("x runs in anonymous/vllm-baseline:bbb")
    gso = replace(ROW, id="numpy__numpy-ABC", format="gso")
    assert rules.machine(gso).base.startswith("slimshetty/gso:gso.eval.")
    assert rules.machine(gso).base.endswith(".numpy__numpy-abc")
    assert rules.machine(replace(ROW, format="own")) == Machine()


@pytest.mark.parametrize(
    ("command", "gpu"),
    [
        ("vllm serve --model x -tp 4", "H100:4"),
        ("vllm serve --model x --tensor-parallel-size=2", "H100:2"),
        ("sglang --model-path meta-llama/Llama-3.1-70B-Instruct", "H100:4"),
        ("vllm serve --model x", "H100:1"),
    ],
)
def test_gpus_are_those_of_the_command_else_of_the_model(command: str, gpu: str) -> None:
    assert read_rules(None).gpu(command) == gpu


def test_models_that_old_engines_don_t_know_are_replaced() -> None:
    rules = read_rules(None)
    assert rules.model("meta-llama/Llama-3.1-8B-Instruct") == "meta-llama/Meta-Llama-3-8B-Instruct"
    assert rules.model("ibm-ai-platform/Bamba-9B-v2") == "meta-llama/Meta-Llama-3-8B-Instruct"
    assert rules.model("facebook/opt-125m") == "facebook/opt-125m"
    service = rules.served(_serving("meta-llama/Llama-3-8B")).service
    assert service
    assert "meta-llama/Meta-Llama-3-8B" in service.argv
    assert "--model meta-llama/Llama-3-8B → meta-llama/Meta-Llama-3-8B" in service.notes


def test_users_rules_go_first(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(
        '[[images]]\nbase = "me/mine:{base_commit}"\nrepo = "*vllm"\nbuild = "docker"\n'
        '[[models]]\nmodel = "facebook/*"\ninstead = "me/small"\n[[gpus]]\nmodel = "*"\ntype = "L4"\n'
    )
    rules = read_rules(own)
    machine = rules.machine(_serving("x"))
    assert (machine.base, machine.human, machine.gpu) == (f"me/mine:{'b' * 40}", "", "L4:1")
    assert machine.build == str(tmp_path / "docker")
    assert rules.model("facebook/opt-125m") == "me/small"
    assert read_rules(own, "one:1").machine(ROW).base == "one:1"
    assert read_rules(None, "one:1").machine(ROW).package == "vllm"


def test_rows_have_environments_that_are_prepared_here(tmp_path: Path) -> None:
    venv.create(tmp_path / "env")
    own = tmp_path / "own.toml"
    own.write_text(
        '[[environments]]\nrepo = "*/vllm"\nsource = "vllm.git"\npath = "src"\npython = "env/bin/python"\n'
        'install = ["make"]\n'
        'downloads = "kept"\n[[environments]]\nsource = "other.git"\n'
    )
    rules, row = read_rules(own), replace(ROW, install=("uv pip install .",))
    assert (rules.served(row).path, rules.served(replace(row, repo="x")).path) == ("src", ".")
    machine = rules.machine(row, has_images=False)
    assert machine.path == str(tmp_path / "env/bin")
    assert str(tmp_path / "env") in machine.prefixes
    assert (machine.source, machine.downloads) == (str(tmp_path / "vllm.git"), str(tmp_path / "kept"))
    assert machine.install(row) == ("make",)
    assert machine.line_of("x") == f"x runs on {tmp_path}/env/bin/python"
    in_image = rules.machine(row)
    assert in_image.base.startswith("anonymous/vllm-baseline:")
    assert (in_image.python, in_image.downloads) == ("", str(tmp_path / "kept"))
    other = rules.machine(replace(row, repo="https://github.com/me/mine"), has_images=False)
    assert (other.source, other.install(row)) == (str(tmp_path / "other.git"), ("uv pip install .",))


@pytest.mark.parametrize("pattern", ["vllm-project/vllm", "*/vllm", "https://github.com/vllm-project/vllm", "VLLM"])
def test_rule_names_a_repository_as_its_row_does(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "own.toml").write_text(f'[[environments]]\nrepo = "{pattern}"\nsource = "here.git"\n')
    rules = read_rules(tmp_path / "own.toml")
    assert rules.repository(ROW) == str(tmp_path / "here.git")
    assert rules.repository(replace(ROW, repo="https://github.com/me/not-vllm")).startswith("https://")
    assert idle_rules(tmp_path / "own.toml", [ROW]) == ()


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ('repo = "vllm-project/vlm"', "repo = 'vllm-project/vlm' fits none; did you mean 'vllm-project/vllm'?"),
        ('repo = "x"', "repo = 'x' fits none; there are me/mine, vllm-project/vllm"),
        ('format = "gsoo"', "format = 'gsoo' fits none; did you mean 'gso'?"),
        ('format = "gso"\nrepo = "*vllm"', "none fits by all of format, repo, id"),
        ('repo = "*/mine"', "an earlier one applies to each that it fits"),
    ],
)
def test_rule_that_applies_to_nothing_is_told(tmp_path: Path, rule: str, said: str) -> None:
    own = tmp_path / "own.toml"
    own.write_text(f'[[environments]]\nid = "mine"\n[[environments]]\n{rule}\n')
    tasks = (ROW, replace(ROW, id="mine", repo="https://github.com/me/mine", format="gso"))
    assert idle_rules(own, tasks) == (f"--overrides {own}: [[environments]] number 2 applies to no task: {said}",)


def test_rules_that_apply_to_nothing_are_told_by_a_dry_run_too(koderz: Shell) -> None:
    (koderz.folder / "own.toml").write_text('[[images]]\nid = "koderz-mini_dedupe"\nbase = "x"\n')
    done = koderz("perf", "run", "--dry-run", "--overrides", "own.toml", "--trust-config")
    assert done.err == (
        "note: --overrides own.toml: [[images]] number 1 applies to no task: id = 'koderz-mini_dedupe' fits none; "
        "did you mean 'koderz-mini__dedupe'?\n"
    )


def test_environment_without_an_interpreter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('[[environments]]\npython = "nowhere/python"\n')
    with pytest.raises(KoderzError, match="nowhere/python is no Python that runs"):
        read_rules(tmp_path / "own.toml").machine(ROW, has_images=False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[images]]\nbase = "x:{commit}"\n', "there is no {commit}"),
        ("[[images]]\n", "base"),
        ('[[images]]\nbase = "x"\ncolour = 1\n', "[[images]] number 1: unknown key 'colour'; there are base"),
        ('[[environments]]\nrepos = "x"\n', "[[environments]] number 1: unknown key 'repos'; did you mean 'repo'?"),
        ("[[environment]]\n", "unknown key 'environment'; did you mean 'environments'?"),
        ("[", "Invalid"),
    ],
)
def test_rules_file_without_rules_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "own.toml").write_text(text)
    with pytest.raises(KoderzError, match="--overrides") as refused:
        read_rules(tmp_path / "own.toml")
    assert said in str(refused.value)


def test_image_files_are_added_except_those_a_patch_removed(tmp_path: Path) -> None:
    for path in (
        "image/fast.so",
        "image/a.py",
        "image/gone.py",
        "image/.git/x",
        "base/a.py",
        "base/gone.py",
        "tree/a.py",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    put_beside(tmp_path / "image", tmp_path / "tree", tmp_path / "base")
    assert sorted(path.name for path in (tmp_path / "tree").iterdir()) == ["a.py", "fast.so"]
    assert (tmp_path / "tree/a.py").read_text() == "tree/a.py"


def test_model_is_fetched_with_a_token_that_legs_do_not_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = stand_in(tmp_path, monkeypatch)
    (state / "me-vllm-1").touch()
    monkeypatch.setenv("HF_HOME", str(tmp_path / "models"))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    machine = Machine("me/vllm:1", model="me/model", gpu="H100:2")

    async def run() -> Ended:
        async with Docker("python:3.12-slim") as docker:
            with pytest.raises(Fault, match="the model me/model can't be fetched"):
                await fetched(machine, docker)
            with scratch() as place:
                leg = Command(["sh", "-c", 'ls "$HF_HOME"; echo "$HF_HUB_OFFLINE $HF_TOKEN"'])
                return await Fitted(docker, machine).run(leg, place)

    assert asyncio.run(run()).output == "1 \n"
    fetch, leg = asked(state, "run")
    assert fetch[fetch.index("HF_TOKEN") - 1] == "--env"
    assert ["--network", "none"] not in [fetch[at : at + 2] for at in range(len(fetch))]
    assert "HF_TOKEN" not in leg
    assert ["--network", "none"] in [leg[at : at + 2] for at in range(len(leg))]
    assert "hf_secret" not in (state / "log").read_text()


@pytest.mark.slow
@pytest.mark.skipif(not rooted(), reason="needs user namespaces")
def test_models_on_modal_are_in_a_volume_and_legs_have_a_gpu(
    cloud: ModalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "models"))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    machine, known = Machine("me/vllm:1", model="me/model", gpu="H100:2"), len(cloud.sandboxes)

    async def run() -> Ended:
        async with Modal() as modal:
            with pytest.raises(Fault, match="the model me/model can't be fetched"):
                await fetched(machine, modal)
            with scratch() as place:
                leg = Command(["sh", "-c", 'ls "$HF_HOME"; echo "$HF_HUB_OFFLINE $HF_TOKEN"'])
                return await Fitted(modal, machine).run(leg, place)

    assert asyncio.run(run()).output == "1 \n"
    fetch, leg = cloud.sandboxes[known:]
    assert (fetch.variables, fetch.blocks_network, leg.variables, leg.blocks_network) == (
        ("HF_TOKEN",),
        False,
        (),
        True,
    )
    assert [each.asked.volume_mounts[0].read_only for each in (fetch, leg)] == [False, True]
    gpus, memory = leg.asked.resources.gpu_config, leg.asked.resources.memory_mb_max
    assert (gpus.gpu_type, gpus.count, memory > 200_000) == ("H100", 2, True)
