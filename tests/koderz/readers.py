"""Readers of files that users and other programs write, each with a sound sample and the options that lead to it."""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from koderz.analysis.catalogue import load_catalogue
from koderz.analysis.runs import load_summary
from koderz.plans.selection import read_problems
from koderz.prompts import load_prompts
from koderz.settings.layers import load_config, read_file
from koderz.suites.matrix import read_matrix
from koderz.suites.tokens import Characters, load_tokenizer
from koderz.systems.long_context.ruler.questions import read_hotpot, read_squad
from koderz.systems.long_context.ruler.tasks import Material
from koderz.systems.optimizers.analysis.runs import foreign_document
from koderz.systems.optimizers.datasets.loading import read_prompt
from koderz.systems.optimizers.manifests import read_manifest
from koderz.systems.patches.machines import read_rules
from koderz.systems.patches.tasks import read_commits, read_tasks
from koderz.systems.rollouts.additions import read_additions
from koderz.systems.rollouts.results import load_benchmark
from koderz.systems.rollouts.swebench import read_instances
from koderz.systems.rollouts.swebench.judging import read_log
from koderz.systems.rollouts.tasks.config import read_config
from koderz.systems.rollouts.tasks.datasets import find_dataset
from koderz.systems.rollouts.tasks.formats import load_task
from koderz.systems.workspaces.environments import read_environments
from koderz.systems.workspaces.images.archives import images_in, read_folders
from tests.koderz.suites.test_tables import PLACES, Place, json_lines
from tests.koderz.systems.rollouts.swebench.test_regrade import ROW


@dataclass(frozen=True)
class Reader:
    """A reader of a file, which lies with all that belongs to it below a folder."""

    file: str
    read: Callable[[Path], object]
    sample: str | bytes | Mapping[str, str] | Callable[[Path], object]  # a sound file, or what writes it
    options: tuple[str, ...] = ()  # of commands, that lead to it
    may_lack: bool = False  # whether all is well without it
    takes_text: bool = False  # whether any text is a file of its kind, as the name may say, too

    @property
    def is_of_text(self) -> bool:
        return self.takes_text or Path(self.file).suffix in ("", ".md", ".patch", ".sh", ".txt")

    def write(self, root: Path) -> Path:
        """Writes the sound file, with what belongs to it."""
        path = root / self.file
        path.parent.mkdir(parents=True, exist_ok=True)
        if callable(self.sample):
            self.sample(path)
        else:
            sample = self.sample if isinstance(self.sample, Mapping) else {self.file: self.sample}
            for name, content in sample.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return path


META = json.dumps({"task_id": "a", "metadata": {"title": "a"}, "lm": {"instructions": "Do it."}})
DOCKERFILE = "FROM ubuntu:24.04\nWORKDIR /app\n"
COMPOSE = "services:\n  main:\n    build: .\n"
HARBOR = {
    "task.toml": 'version = "1.0"\n[agent]\ntimeout_sec = 60.0\n[environment]\ncpus = 1\n',
    "instruction.md": "Do it.\n",
    "tests/test.sh": "true\n",
    "environment/Dockerfile": DOCKERFILE,
    "environment/docker-compose.yaml": COMPOSE,
}
TERMINAL_BENCH = {
    "task.yaml": "instruction: Do it.\nmax_agent_timeout_sec: 60\n",
    "run-tests.sh": "true\n",
    "Dockerfile": DOCKERFILE,
    "docker-compose.yaml": COMPOSE,
}
TESTS = {name: ROW.get(name, "[]") for name in ("FAIL_TO_PASS", "PASS_TO_PASS")}
INSTANCE = {
    "task.yaml": yaml.safe_dump({name: value for name, value in ROW.items() if name not in TESTS}),
    "tests.json": json.dumps(TESTS),
} | dict.fromkeys(("gold.patch", "test.patch", "eval.sh", "problem_statement.md"), "x\n")
CONFIG = 'name = "a"\n[[tasks]]\nprepared_dir = "task"\nagent = "koderz"\nmodel = "simulated"\n'
WORKLOAD = "def inputs(rng, i):\n    return i\n\n\ndef call(x):\n    return x\n"
TASKS = '[[tasks]]\nid = "a"\nbase_commit = "a"\nhuman_commit = "b"\nrepo = "r"\nworkloads = ["w.py"]\n'
PROMPT = ({"role": "system", "content": "s"}, {"role": "user", "content": "{q}"})
SQUAD = {"context": "c", "qas": [{"question": "q", "answers": [{"text": "a"}], "is_impossible": False}]}
RUN = "bench_00000000_20260101_000000"
SUMMARY = {"schema_version": 1, "mode": "iterative", "results": [], "summary": {}}


def layout(path: Path) -> None:
    """A folder of OCI's layout with one image, by its index.json."""
    folder = path.parent / "blobs/sha256"
    folder.mkdir(parents=True, exist_ok=True)

    def blob(value: Any, **more: Any) -> Mapping[str, Any]:
        data = json.dumps(value).encode()
        digest = hashlib.sha256(data).hexdigest()
        (folder / digest).write_bytes(data)
        return {"digest": f"sha256:{digest}", "size": len(data), **more}

    config = blob({"config": {}, "rootfs": {"type": "layers", "diff_ids": []}})
    named = {"org.opencontainers.image.ref.name": "a:1"}
    kind = "application/vnd.oci.image.manifest.v1+json"
    manifest = blob({"schemaVersion": 2, "config": config, "layers": []}, annotations=named, mediaType=kind)
    path.write_text(json.dumps({"manifests": [manifest]}))


def archive(path: Path) -> None:
    layout(path.parent / "made/index.json")
    with tarfile.open(path, "w:gz") as made:
        made.add(path.parent / "made", ".")


def parquet(place: Place, path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([dict(place.row(number)) for number in range(3)]), path)


def tokenizer(path: Path) -> None:
    Tokenizer(WordLevel({"a": 0}, unk_token="a")).save(str(path))


OF_PLACES = {
    "few-shot examples": ("--few-shot-from",),
    "serving": ("--dataset-path",),
    "ids of opt-at-k": ("--dataset",),
    "predictions": ("--predictions",),
    "predictions of opt-at-k": ("--prediction-paths",),
    "samples": ("judge run file", "benchmark import sources"),
    "labels": ("--labels",),
}
REGISTRY = {"name": "a", "version": "1", "description": "", "tasks": [{"name": "t", "git_url": "", "path": "t"}]}
EVALUATED = {"results": [{"run_id": "x", "run_dir": "/none", "task_dir": "a"}]}
CHECKED = ("rollouts check places", "rollouts audit places", "rollouts needs places")


def below(folder: str, contents: Mapping[str, str]) -> Mapping[str, str]:
    return {f"{folder}/{name}": content for name, content in contents.items()}


def addition(kind: Any) -> Callable[[Path], object]:
    return lambda path: read_additions(kind, str(path), path.parent)


def of_place(name: str, place: Place, kind: str) -> Reader:
    lines = json_lines(map(place.row, range(3))).encode()
    samples: Mapping[str, Any] = {"jsonl": lines, "jsonl.gz": gzip.compress(lines), "parquet": partial(parquet, place)}
    options = OF_PLACES.get(name, ("--dataset",))
    return Reader(f"a.{kind}", lambda path: [*place.load(path)], samples[kind], options, takes_text=name == "samples")


def read_folder(path: Path) -> object:
    """The runs of a results folder. One that can't be read is a note beside the others."""
    return load_catalogue(path.parent)


READERS = {
    "matrix": Reader("m.toml", read_matrix, '[[arms]]\nname = "a"\nsolver = "zero-shot"\n', ("--matrix",)),
    "problems": Reader("p.txt", read_problems, "HumanEval/0\n", ("--problems-file",)),
    "environments": Reader(
        "e.toml",
        lambda path: read_environments(path, "--environments"),
        '[[environments]]\nrepo = "a/b"\ninstall = ["x"]\n',
        ("--environments",),
    ),
    "overrides": Reader("o.toml", read_rules, '[[images]]\nrepo = "a/b"\nbase = "x"\n', ("--overrides",)),
    "manifest": Reader(
        "m.json",
        read_manifest,
        '{"seed": 3, "tasks": [{"dataset": "gsm8k", "optimizer": "few_shot", "model": "simulated"}]}',
        ("--config",),
    ),
    "configuration of rollouts": Reader(
        "c.toml", read_config, {"c.toml": CONFIG, "task/tb_meta.json": META}, ("rollouts run config",)
    ),
    **{
        f"task of Harbor, {name}": Reader(
            f"t/{name}",
            lambda path: load_task(next(each for each in path.parents if each.name == "t")),
            below("t", HARBOR),
            CHECKED,
            may_lack=name.startswith("environment/"),
        )
        for name in HARBOR
        if name != "tests/test.sh"
    },
    **{
        f"task of terminal-bench, {name}": Reader(
            f"t/{name}", lambda path: load_task(path.parent), below("t", TERMINAL_BENCH), may_lack="compose" in name
        )
        for name in TERMINAL_BENCH
        if name != "run-tests.sh"
    },
    **{
        f"prepared task, {name}": Reader(
            f"t/{name}",
            lambda path: load_task(path.parent),
            {"t/tb_meta.json": META, "t/overrides.json": "{}"},
            may_lack=name == "overrides.json",
        )
        for name in ("tb_meta.json", "overrides.json")
    },
    **{
        f"task of SWE-bench, {name}": Reader(
            f"r/tasks/a/{name}",
            lambda path: read_instances(path.parents[2]),
            below("r/tasks/a", INSTANCE),
            ("rollouts regrade rows",),
        )
        for name in INSTANCE
    },
    "registry": Reader(
        "r.json",
        lambda path: find_dataset("a", str(path)),
        {"r.json": json.dumps([REGISTRY]), "t/task.toml": "", "t/instruction.md": "Do it."},
        ("--registry",),
    ),
    "servers": Reader(
        "m.json",
        lambda path: path.exists() and read_additions("mcp", str(path), path.parent),
        '{"mcpServers": {"a": {"command": "x", "args": ["y"]}}}',
        ("--mcp",),
        may_lack=True,  # it is a command then
    ),
    "context": Reader("a.md", addition("context"), "# A\n", ("--context",)),
    "system prompt": Reader("a.md", addition("system_prompt"), "# A\n", ("--system-prompt",)),
    "memory": Reader("a.md", addition("memory"), "# A\n", may_lack=True),  # which may be a folder
    "skill": Reader(
        "s/SKILL.md",
        lambda path: read_additions("skill", str(path.parent), path.parents[1]),
        "---\nname: a\n---\nDo it.\n",
        ("--skill",),
    ),
    "log of tests": Reader("l.txt", read_log, "PASSED t.py\n", ("--logs",)),
    "images in folders": Reader(
        "i/images.json",
        lambda path: read_folders(path.parent),
        {"i/images.json": '{"a:1": {"path": "root"}}', "i/root/bin/sh": ""},
        ("--images",),
        may_lack=True,
    ),
    "layout of images": Reader(
        "l/index.json", lambda path: images_in(path.parent, path.parents[1]), layout, may_lack=True
    ),
    "archive of images": Reader("a.tar.gz", lambda path: images_in(path, path.parent / "kept"), archive, may_lack=True),
    "commits": Reader("c.txt", read_commits, "abcdef0 x\n", ("--commits-file",)),
    "tasks of patches": Reader("tasks.toml", read_tasks, {"tasks.toml": TASKS, "w.py": WORKLOAD}),
    "SQuAD": Reader("s.json", read_squad, json.dumps({"data": [{"paragraphs": [SQUAD]}]}), ("--qa-data",)),
    "HotpotQA": Reader("h.json", read_hotpot, '[{"question": "q", "answer": "a", "context": [["t", ["s"]]]}]'),
    "haystack": Reader(
        "h.json", lambda path: Material(0, Characters(), haystack=path).essay, '{"text": "a b"}', ("--haystack",)
    ),
    "tokenizer": Reader("t.json", lambda path: load_tokenizer(str(path)), tokenizer, ("--tokenizer",)),
    "initial prompt": Reader(
        "i.json",
        lambda path: read_prompt(path, PROMPT, ["q"]),
        json.dumps(PROMPT),
        ("--initial-prompt",),
        takes_text=True,
    ),
    "koderz.toml": Reader(
        "koderz.toml",
        lambda path: load_config(read_file(path.parent), trust=True, environ={}, names={"seed"}),
        "seed = 3\n",
        may_lack=True,
    ),
    "prompts": Reader(
        "p/system.md", lambda path: load_prompts(path.parent), "Be brief.", ("--prompt-dir",), may_lack=True
    ),
    "checkpoint": Reader("r/checkpoint.json", lambda path: foreign_document(path.parent), '{"task_results": []}'),
    "manifest of rollouts": Reader(
        "r/manifest.json", lambda path: load_benchmark(path.parent), '{"results": []}', ("--data",)
    ),
    "evaluation of a rollout": Reader(
        "r/task_results/x.json",
        lambda path: load_benchmark(path.parents[1]),
        {"r/manifest.json": json.dumps(EVALUATED), "r/task_results/x.json": '{"total_score": 1}'},
        may_lack=True,
    ),
    "summary": Reader(f"{RUN}.json", load_summary, json.dumps(SUMMARY), ("benchmark leaderboard runs",)),
    "summary in a folder": Reader(
        f"{RUN}.json", read_folder, json.dumps(SUMMARY), ("--results",), may_lack=True, takes_text=True
    ),
    **{
        f"rows of {name}, {kind}": of_place(name, place, kind)
        for name, place in PLACES.items()
        for kind in ("jsonl", "jsonl.gz", "parquet")
        if place.is_table or kind != "parquet"
    },
}
