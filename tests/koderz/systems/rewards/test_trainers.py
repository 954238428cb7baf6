"""Adapters for trainers, with the trainers' own code from PyPI in environments of their own.

KODERZ_TRAINERS names a folder that holds such environments by name (`trl`, `verl`, `verifiers`, `nemo-gym`); without
it those of verifiers and NeMo Gym's models are made, and what needs torch is skipped.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from koderz.errors import Fault
from koderz.systems.rewards import AsyncClient, trl
from koderz.systems.rewards.verl import compute_score
from tests.conftest import Shell
from tests.koderz.systems.rewards.conftest import RIGHT, TOKEN, WRONG, Served

ROOT = Path(__file__).resolve().parents[3]
CLIENT = ("filelock", "httpx", "httpx-aiohttp", "msgspec", "orjson")  # what koderz.systems.rewards needs there

VERIFIERS = """
import asyncio, json, sys
from verifiers.v1.configs.taskset import TasksetConfig
from verifiers.v1.utils.loaders import load_taskset
class Trace:
    def __init__(self, reply):
        self.last_reply, self.rewards, self.metrics = reply, {}, {}
    def record_reward(self, name, value, weight=1.0):
        self.rewards[name] = float(value)
sys.path.insert(0, sys.argv[1])
tasks = [*load_taskset(TasksetConfig(id="koderz_humaneval"))]
async def scored(task, reply):
    trace = Trace(reply)
    try:
        await task.score(trace)
    except Exception as error:
        return [type(error).__name__, trace.rewards]
    return ["", trace.rewards]
async def main():
    return [await scored(tasks[0], sys.argv[2]), await scored(tasks[0], "no"), await scored(tasks[1], sys.argv[2])]
print(json.dumps([[task.data.id for task in tasks], asyncio.run(main())]))
"""
TRL = """
import json, sys
import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer
from koderz.systems.rewards import trl
words = ["<pad>", "<eos>", "\\n", *map(chr, range(32, 127))]
fast = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<pad>"))
fast.pre_tokenizer, fast.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=fast, pad_token="<pad>", eos_token="<eos>")
torch.manual_seed(0)
sizes = {"vocab_size": len(words), "n_positions": 256, "n_embd": 32, "n_layer": 1, "n_head": 2}
model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=1, eos_token_id=1, pad_token_id=0))
data = Dataset.from_list([{"prompt": "add", "task_id": task} for task in ("T/add", "T/broken") * 2])
options = GRPOConfig(
    output_dir=sys.argv[1], per_device_train_batch_size=4, num_generations=2, max_steps=2, max_completion_length=8,
    report_to=[], use_cpu=True, logging_steps=1, bf16=False, save_strategy="no", disable_tqdm=True,
)
trainer = GRPOTrainer(
    model=model, processing_class=tokenizer, reward_funcs=trl(graded=True), args=options, train_dataset=data
)
messages = [
    {"role": "assistant", "content": "I call a tool."},
    {"role": "tool", "content": "done"},
    {"role": "assistant", "content": [{"type": "text", "text": sys.argv[2]}]},
]
inputs = [{"prompt": "p", "task_id": task} for task in ("T/add", "T/add", "T/add", "T/broken")]
completions = [sys.argv[2], messages, sys.argv[3], sys.argv[2]]
rewards = trainer._calculate_rewards(inputs, ["p"] * 4, completions, [[1]] * 4)[:, 0]
found = [None if torch.isnan(reward) else float(reward) for reward in rewards]
trainer.train()
print(json.dumps([found, trainer.state.global_step, [entry.get("fault_rate") for entry in trainer.state.log_history]]))
"""
VERL = """
import asyncio, json, sys
import numpy, torch
from omegaconf import OmegaConf
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.dapo import DAPORewardManager
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
from koderz.systems.rewards.verl import compute_score
class Tokenizer:
    def decode(self, ids, skip_special_tokens=True):
        return "".join(map(chr, ids.tolist()))
def objects(value):
    return numpy.array([value], dtype=object)
def sample(text, task):
    ids = torch.tensor([[ord(letter) for letter in text]])
    mask = torch.ones(1, 1 + ids.shape[1], dtype=torch.long)
    tensors = {"responses": ids, "prompts": torch.tensor([[1]]), "attention_mask": mask}
    others = {"data_source": objects("koderz"), "reward_model": objects({"ground_truth": ""})}
    return DataProto.from_dict(tensors, non_tensors={**others, "extra_info": objects({"task_id": task})})
async def main():
    told = {}
    for kind in (NaiveRewardManager, DAPORewardManager):
        manager = kind(OmegaConf.create({"reward": {"reward_kwargs": {}}}), Tokenizer(), compute_score)
        found = [await manager.run_single(sample(text, "T/add")) for text in (sys.argv[1], "no")]
        try:
            await manager.run_single(sample(sys.argv[1], "T/broken"))
        except Exception as error:
            fault = type(error).__name__
        keys = {tuple(each["reward_extra_info"]) for each in found}
        told[kind.__name__] = [[each["reward_score"] for each in found], len(keys), fault]
    print(json.dumps(told))
asyncio.run(main())
"""
NEMO_GYM = """
import json, os, sys, urllib.error, urllib.request
from nemo_gym.base_resources_server import BaseVerifyRequest, BaseVerifyResponse
from nemo_gym.openai_utils import NeMoGymResponse
class Row(BaseVerifyRequest):
    verifier_metadata: dict
def asked(text, task):
    part = {"type": "output_text", "text": text, "annotations": []}
    message = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    response = NeMoGymResponse(
        id="r", created_at=0, model="m", object="response", parallel_tool_calls=False, tool_choice="auto", tools=[],
        output=[message],
    )
    row = Row(responses_create_params={"input": "add"}, response=response, verifier_metadata={"task_id": task})
    headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["KODERZ_JUDGE_TOKEN"]}
    request = urllib.request.Request(
        os.environ["KODERZ_JUDGE_URL"] + "/verify", row.model_dump_json().encode(), headers
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return BaseVerifyResponse.model_validate_json(answer.read()).reward
    except urllib.error.HTTPError as error:
        return error.code
print(json.dumps([asked(sys.argv[1], "T/add"), asked("no", "T/add"), asked(sys.argv[1], "T/broken")]))
"""


def environment_of(name: str) -> Path:
    """The interpreter of the environment of a trainer; skips the test where there is none."""
    folder = os.environ.get("KODERZ_TRAINERS")
    python = Path(folder or "", name, "bin", "python")
    if not folder or not python.exists():
        pytest.skip(f"no environment of {name}: KODERZ_TRAINERS names a folder of such")
    return python


def made(folder: Path, *packages: str) -> Path:
    """The interpreter of a new environment with these packages; skips the test where they can't be had."""
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        pytest.skip("uv isn't installed, which makes the environment")
    python = folder / "bin" / "python"
    for words in (["venv", "-q", str(folder)], ["pip", "install", "-q", "--python", str(python), *packages]):
        if (done := subprocess.run([str(uv), *words], capture_output=True, text=True, check=False)).returncode:
            pytest.skip(f"{packages[0]} can't be had here: {done.stderr.strip()[-300:]}")
    return python


def run(python: Path, script: str, served: Served, *arguments: object) -> Any:
    """The last line that a script prints, as JSON."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "KODERZ_JUDGE_URL": served.url, "KODERZ_JUDGE_TOKEN": TOKEN}
    done = subprocess.run(
        [python, "-c", script, *map(str, arguments)], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_verifiers_loads_an_exported_suite_and_scores_with_it(served: Served, koderz: Shell, tmp_path: Path) -> None:
    koderz(
        "suites", "export", "humaneval", "--dataset", served.folder / "tasks.jsonl", "--format", "verifiers", "-o", "p"
    )
    python = made(tmp_path / "verifiers", "verifiers==0.4.0", *CLIENT)

    tasks, scores = run(python, VERIFIERS, served, koderz.folder / "p", RIGHT)

    assert tasks == ["T/add", "T/broken"]
    assert scores == [["", {"koderz": 1.0}], ["", {"koderz": 0.0}], ["TaskError", {"koderz": None}]]


@pytest.mark.slow
def test_trl_leaves_faults_out_and_trains_with_the_rewards(served: Served, tmp_path: Path) -> None:
    found, steps, fault_rates = run(environment_of("trl"), TRL, served, tmp_path / "out", RIGHT, WRONG)

    assert found == [1.0, 1.0, 0.5, None]
    assert steps == 2
    assert fault_rates[1] == 0.5


@pytest.mark.slow
def test_verl_managers_take_scores_of_the_same_keys_and_end_at_faults(served: Served) -> None:
    told = run(environment_of("verl"), VERL, served, RIGHT)

    assert told == {name: [[1.0, 0.0], 1, "Fault"] for name in ("NaiveRewardManager", "DAPORewardManager")}


@pytest.mark.slow
def test_nemo_gym_models_make_the_request_and_take_the_answer(served: Served) -> None:
    assert run(environment_of("nemo-gym"), NEMO_GYM, served, RIGHT) == [1.0, 0.0, 503]


def test_trl_function_takes_texts_and_messages_and_logs(served: Served) -> None:
    logged: dict[str, object] = {}
    messages = [{"role": "assistant", "content": [{"type": "text", "text": RIGHT}]}]
    reward = trl(column="task", client=AsyncClient(served.url, TOKEN), graded=True)
    given = {"log_metric": logged.__setitem__, "log_extra": logged.__setitem__, "new_argument": 1}

    found = asyncio.run(
        reward(
            prompts=["p"] * 4,
            completions=[RIGHT, messages, WRONG, RIGHT],
            task=["T/add", "T/add", "T/add", "T/broken"],
            trainer_state=SimpleNamespace(global_step=7),
            **given,
        )
    )

    assert found == [1.0, 1.0, 0.5, None]
    assert logged == {"tamper_rate": 0.0, "fault_rate": 0.25, "verdict": ["passed", "passed", "assertion", "reference"]}
    assert served.client().metrics(step=7)["scored"] == 3


def test_verl_score_has_the_same_keys_and_a_number_for_a_fault_only_if_asked(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KODERZ_JUDGE_URL", served.url)
    monkeypatch.setenv("KODERZ_JUDGE_TOKEN", TOKEN)
    more: Any = {"reward_router_address": None, "graded": True, "timeout": 60.0}

    found = [
        compute_score(data_source="d", solution_str=WRONG, ground_truth="x", extra_info={"task_id": "T/add"}, **more),
        compute_score(data_source="d", solution_str=RIGHT, ground_truth="T/broken", on_fault=-1.0, **more),
    ]

    assert [(each["score"], each["fault"], each["verdict"]) for each in found] == [
        (0.5, 0.0, "assertion"),
        (-1.0, 1.0, "reference"),
    ]
    assert found[0].keys() == found[1].keys()
    with pytest.raises(Fault, match="no reward for T/broken"):
        compute_score(data_source="d", solution_str=RIGHT, ground_truth="T/broken", **more)
