"""Datasets as people have them: published files in every format, their own columns, and what is wrong with them."""

from __future__ import annotations

import csv
import gzip
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import KoderzError
from koderz.settings.schema import Settings
from koderz.suites import add_dataset, load_suite
from koderz.suites.suite import SuiteSource
from koderz.suites.tables import fill
from koderz.systems.optimizers.datasets.generated import GENERATED, _drawn
from koderz.systems.optimizers.datasets.options import DatasetOptions
from koderz.systems.optimizers.datasets.payload import SPLITS, Dataset
from koderz.systems.optimizers.datasets.published import PUBLISHED
from koderz.systems.optimizers.datasets.suite import DatasetSuite
from koderz.types import Task
from tests.koderz.systems.optimizers.datasets.published import DATA

SMALL = DatasetOptions(train_items=3, validation_items=3, test_items=3)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def rows_of(name: str, count: int = 12) -> list[dict[str, Any]]:
    """Made-up rows in the published columns."""
    made: Mapping[str, Any] = {
        "gsm8k": lambda n: {"question": f"How many are {n} and {n}?", "answer": f"{n}+{n}\n#### {2 * n}"},
        "hotpot_300": lambda n: {
            "id": str(n),
            "question": f"Who was number {n}?",
            "answer": f"King {n}",
            "context": {"title": ["Kings", "Towns"], "sentences": [[f"King {n} ", "was old."], ["Towns are."]]},
        },
        "ai2_arc": lambda n: {
            "id": str(n),
            "question": f"What is {n}?",
            "choices": {"text": ["a stone", "a number"], "label": ["1", "2"] if n % 2 else ["A", "B"]},
            "answerKey": "2" if n % 2 else "B",
        },
        "ragbench_sentence_relevance": lambda n: {"question": f"Why {n}?", "sentence": f"Since {n}.", "label": n % 2},
        "election_questions": lambda n: {
            "question": f"Where do I vote in ward {n}?",
            "label": "Harmless - vote" if n % 2 else "Harmful - fraud",
        },
        "medhallu": lambda n: {
            "Question": f"Does drug {n} help?",
            "Knowledge": [f"Trial {n}.", "It did."],
            "Ground Truth": f"Yes, {n} does.",
            "Difficulty Level": "easy",
            "Hallucinated Answer": f"No, {n} harms.",
            "Category of Hallucination": "x",
        },
        "rag_hallucinations": lambda n: {
            "context": f"{n} is red.",
            "question": f"Which colour has {n}?",
            "answer": "red",
            "is_hallucination": n % 2 == 0,
        },
        "truthful_qa": lambda n: {
            "question": f"Is {n} lucky?",
            "best_answer": "No",
            "correct_answers": ["No"],
            "incorrect_answers": [f"Yes, {n} is", "Always"],
        },
        "cnn_dailymail": lambda n: {"article": f"In town {n} it rained.", "highlights": f"Rain in {n}.", "id": str(n)},
        "hover": lambda n: {"claim": f"Town {n} is old.", "label": n % 2, "supporting_facts": [], "num_hops": 2},
        "ifbench": lambda n: {
            "key": str(n),
            "messages": [{"role": "user", "content": f"Tell of town {n}. Use no comma."}],
            "constraint": "Use no comma.",
        },
        "pupa": lambda n: {
            "user_query": f"Write to Ann {n}.",
            "target_response": f"Dear {n}",
            "pii_units": f"Ann {n}||Bo",
        },
    }
    made = {**made, "hotpot": made["hotpot_300"]}
    return [made[name](n) for n in range(count)]


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    suffix = path.name.removesuffix(".gz").rpartition(".")[2]
    if suffix == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist([*rows]), path)
        return path
    if suffix == "csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [*rows[0]])
            writer.writeheader()
            writer.writerows(rows)
        return path
    text = json.dumps([*rows]) if suffix == "json" else "".join(f"{json.dumps(row)}\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def load(*places: str, options: DatasetOptions = SMALL) -> Dataset:
    """The only dataset of these places."""
    suite = DatasetSuite.load(SuiteSource(None, replace(options, dataset=places)))
    (task,) = suite.tasks
    found: Task[Dataset] = task
    return found.payload


def complaint(*places: str, options: DatasetOptions = SMALL) -> str:
    with pytest.raises(KoderzError) as raised:
        load(*places, options=options)
    return str(raised.value)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_datasets_are_read_in_their_columns(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "rows.jsonl", rows_of(name))

    dataset = load(f"{name}={path}")

    assert [len(dataset.splits[split]) for split in ("train", "validation", "test")] == [3, 3, 3]
    for item in (*dataset.train, *dataset.validation, *dataset.test):
        asked = fill(dataset.messages[-1]["content"], item.columns)
        assert all(value in asked for value in item.columns.values())
        assert not any(f"{{{column}}}" in asked for column in item.columns)
        assert item.id.startswith(f"{name}/")
    assert dataset.licence == PUBLISHED[name].licence
    assert PUBLISHED[name].place in dataset.source


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "parquet", "jsonl.gz"])
def test_file_format_makes_no_difference(tmp_path: Path, suffix: str) -> None:
    name = "gsm8k"
    path, plain = write(tmp_path / f"train.{suffix}", rows_of(name)), write(tmp_path / "a/train.jsonl", rows_of(name))

    assert load(f"{name}={path}").digests == load(f"{name}={plain}").digests


def test_nested_columns_come_out_of_parquet_as_out_of_json(tmp_path: Path) -> None:
    for name in ("hotpot_300", "ai2_arc", "medhallu", "truthful_qa"):
        table, plain = (write(tmp_path / name / f"train.{suffix}", rows_of(name)) for suffix in ("parquet", "jsonl"))

        assert load(f"{name}={table}").digests == load(f"{name}={plain}").digests


def test_folder_has_its_splits_by_name_in_files_or_shards(tmp_path: Path) -> None:
    rows = rows_of("cnn_dailymail", 30)
    write(tmp_path / "3.0.0/train-00000-of-00002.parquet", rows[:5])
    write(tmp_path / "3.0.0/train-00001-of-00002.parquet", rows[5:10])
    write(tmp_path / "3.0.0/dev.json", rows[10:20])
    write(tmp_path / "3.0.0/test.jsonl.gz", rows[20:])

    dataset = load(f"cnn_dailymail={tmp_path}", options=replace(SMALL, train_items=10))

    assert {item.id for item in dataset.train} == {f"cnn_dailymail/train/{row}" for row in range(10)}
    assert {item.id.split("/")[1] for item in dataset.validation} == {"validation"}
    assert {item.id.split("/")[1] for item in dataset.test} == {"test"}
    assert dict(zip(range(10), rows, strict=False))[7]["article"] in {item.columns["article"] for item in dataset.train}


def test_missing_validation_is_cut_from_train(tmp_path: Path) -> None:
    rows = rows_of("ai2_arc", 20)
    write(tmp_path / "train.jsonl", rows[:14])
    write(tmp_path / "test.jsonl", rows[14:])

    dataset = load(f"ai2_arc={tmp_path}")

    assert {item.id.split("/")[1] for item in dataset.validation} == {"train"}
    assert not {item.id for item in dataset.validation} & {item.id for item in dataset.train}


def test_truthful_qa_columns_go_by_configuration_or_csv(tmp_path: Path) -> None:
    plain = rows_of("truthful_qa")
    choices = [
        {
            "question": row["question"],
            "mc1_targets": {"choices": [*row["incorrect_answers"], "No"], "labels": [0, 0, 1]},
        }
        for row in plain
    ]
    sheet = [
        {
            "Type": "Adversarial",
            "Question": row["question"],
            "Best Answer": "No",
            "Correct Answers": "No; Of course not",
            "Incorrect Answers": f"{'; '.join(row['incorrect_answers'])};",
        }
        for row in plain
    ]
    files = [
        write(tmp_path / "a/validation.jsonl", plain),
        write(tmp_path / "b/validation.parquet", choices),
        write(tmp_path / "c/validation.csv", sheet),
    ]

    found = [load(f"truthful_qa={file}") for file in files]

    assert found[0].digests == found[1].digests == found[2].digests
    assert all(item.options[item.gold] == "No" for item in found[0].test)
    assert {item.gold for each in found[0].splits.values() for item in each} > {"A"}, "the order is drawn"


def test_hotpot_prompt_has_its_passages_unless_closed_book(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", rows_of("hotpot_300"))

    whole, closed = (load(f"hotpot_300={path}", options=replace(SMALL, closed_book=on)) for on in (False, True))

    item = whole.test[0]
    assert f"{item.gold} was old." in fill(whole.messages[-1]["content"], item.columns)
    assert fill(closed.messages[-1]["content"], item.columns) == f"Question: {item.columns['question']}"


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("gsm8k", {"answer": None}, "line 3: the field 'answer' is missing"),
        ("gsm8k", {"question": 7}, "line 3: the field 'question' has to be text"),
        ("hotpot_300", {"context": "x"}, "line 3: the field 'context' has to hold a list of texts 'title'"),
        ("hotpot_300", {"context": {"title": ["a"], "sentences": []}}, "holds 1 titles, but sentences of 0"),
        ("ai2_arc", {"answerKey": "Z"}, "line 3: the field 'answerKey' has to be one of A, B, not 'Z'"),
        (
            "ai2_arc",
            {"choices": {"text": ["a"], "label": ["A", "B"]}},
            "line 3: the field 'choices' has to hold as many",
        ),
        ("ragbench_sentence_relevance", {"label": 2}, "line 3: the field 'label' has to be one of"),
        ("medhallu", {"Knowledge": None}, "line 3: the field 'Knowledge' is missing"),
        ("truthful_qa", {"incorrect_answers": []}, "line 3: there have to be 1 to 25 incorrect answers, not 0"),
        ("truthful_qa", {"mc1_targets": {"choices": ["a", "b"], "labels": [1, 1]}}, "line 3: the field 'mc1_targets'"),
        ("rag_hallucinations", {"is_hallucination": []}, "line 3: the field 'is_hallucination' has to be text"),
        ("cnn_dailymail", {"article": "long " * 300_000}, "line 3: an item of more than 1,000,000 characters"),
    ],
)
def test_malformed_row_is_told_by_file_line_and_column(
    tmp_path: Path, name: str, change: dict[str, Any], said: str
) -> None:
    rows = rows_of(name)
    rows[2] |= change

    told = complaint(f"{name}={write(tmp_path / 'train.jsonl', rows)}")

    assert str(tmp_path / "train.jsonl") in told
    assert said in told


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"question,answer\na,b\nc\n", "line 3: 1 columns, but the header has 2"),
        (b'question,answer\n"a\nb",#### 1\n"c"d,e\n', "line 4: not CSV"),
        (b"question,question\na,b\n", "line 1: the columns need a name each"),
        (b"question,answer\na,\xff\n", "not UTF-8 text"),
        (b"question\na\n", "line 2: the field 'answer' is missing"),
        (b"", "line 1: the columns need a name each"),
    ],
)
def test_malformed_sheet_is_told_by_its_line(tmp_path: Path, text: bytes, said: str) -> None:
    path = tmp_path / "train.csv"
    path.write_bytes(text)

    assert said in complaint(f"gsm8k={path}")


@pytest.mark.parametrize("name", PUBLISHED)
def test_absent_dataset_is_one_line_with_licence_and_download(name: str) -> None:
    told = complaint(options=replace(SMALL, demo_datasets=(name,)))

    assert "\n" not in told
    for part in (
        f"(licence: {PUBLISHED[name].licence})",
        f"hf download {PUBLISHED[name].place} --repo-type dataset --include '",
        f"--local-dir {name}",
        f"koderz suites add {name} PATH (",
        f"--dataset {name}=PATH",
    ):
        assert part in told
    docs = Path(__file__).parents[5] / "docs" / "optimizers" / "reference.md"
    assert f"| `{name}` | `{PUBLISHED[name].publication(name).command}` | `" in docs.read_text(encoding="utf-8")


FILES: Mapping[str, Mapping[str, str]] = {
    "gsm8k": {"main/train-00000-of-00001.parquet": "train", "main/test-00000-of-00001.parquet": "test"},
    "hotpot_300": {
        "fullwiki/train-00000-of-00002.parquet": "train",
        "fullwiki/train-00001-of-00002.parquet": "train",
        "fullwiki/validation-00000-of-00001.parquet": "validation",
        "fullwiki/test-00000-of-00001.parquet": "",
    },
    "ai2_arc": {f"ARC-Challenge/{split}-00000-of-00001.parquet": split for split in SPLITS},
    "ragbench_sentence_relevance": {f"data/{split}-00000-of-00001.parquet": split for split in SPLITS},
    "election_questions": {"harmlessness_eval.csv": "test", "persuasion_targeting_eval.csv": "test"},
    "medhallu": {"pqa_labeled/train-00000-of-00001.parquet": "train"},
    "rag_hallucinations": {"rag_hallucinations_dataset.json": "train"},
    "truthful_qa": {"generation/validation-00000-of-00001.parquet": "validation"},
    "cnn_dailymail": {
        **{f"3.0.0/train-0000{n}-of-00003.parquet": "train" for n in range(3)},
        "3.0.0/validation-00000-of-00001.parquet": "validation",
        "3.0.0/test-00000-of-00001.parquet": "test",
    },
    "hover": {
        "data/train-00000-of-00001.parquet": "train",
        "data/validation-00000-of-00001.parquet": "validation",
        "data/test-00000-of-00001.parquet": "",
    },
    "ifbench": {"data/train-00000-of-00001.parquet": "train", "test/data/train-00000-of-00001.parquet": "test"},
    "pupa": {"PUPA_New.csv": "train"},
}
FILES = {**FILES, "hotpot": FILES["hotpot_300"]}
"""By dataset, the files in its repository that are wanted, and the source split that each is of."""

OTHERS: Mapping[str, Sequence[str]] = {
    "gsm8k": ["socratic/train-00000-of-00001.parquet", "socratic/test-00000-of-00001.parquet"],
    "election_questions": ["eu_accuracy_questions.csv"],
    "medhallu": ["pqa_artificial/train-00000-of-00001.parquet"],
    "truthful_qa": ["multiple_choice/validation-00000-of-00001.parquet"],
    "pupa": ["PUPA_TNB.csv"],
}
"""By dataset, other files in its repository."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_downloaded_files_are_read_unchanged(tmp_path: Path, name: str) -> None:
    words = shlex.split(PUBLISHED[name].publication("here").command)
    pattern = words[words.index("--include") + 1]
    for number, file in enumerate(FILES[name]):
        rows = rows_of(name, 12 * (number + 1))[12 * number :]
        write(tmp_path / file, rows if FILES[name][file] else [{"question": "?"}])
    for file in (*OTHERS.get(name, ()), "README.md"):
        write(tmp_path / file, [{"no": "columns of its own"}])

    dataset = load(f"{name}={tmp_path}")

    found = {item.id.split("/")[1] for items in dataset.splits.values() for item in items}
    assert found == {*FILES[name].values()} - {""}
    assert not dataset.notes
    assert all(fnmatch(file.removeprefix("test/"), pattern) for file in FILES[name])
    assert not any(fnmatch(file, pattern) for file in (*OTHERS.get(name, ()), "README.md"))


@pytest.mark.parametrize("name", ["gsm8k", "medhallu", "rag_hallucinations"])
def test_files_for_each_split_replace_the_preset(tmp_path: Path, name: str) -> None:
    rows = rows_of(name, 36)
    for number, split in enumerate(SPLITS):
        write(tmp_path / f"{split}.jsonl", rows[12 * number : 12 * number + 12])

    dataset = load(f"{name}={tmp_path}")

    assert {split: {item.id.split("/")[1] for item in dataset.splits[split]} for split in SPLITS} == {
        split: {split} for split in SPLITS
    }


def test_added_dataset_is_the_default(tmp_path: Path) -> None:
    add_dataset("gsm8k", write(tmp_path / "train.jsonl", rows_of("gsm8k")))

    suite = DatasetSuite.load(SuiteSource(None, SMALL))

    assert [task.id for task in suite.tasks] == ["gsm8k"]
    assert not suite.notices


def test_generated_datasets_are_said_to_be_so() -> None:
    suite = load_suite("datasets")

    assert isinstance(suite, DatasetSuite)
    assert [task.id for task in suite.tasks] == ["arithmetic", "labels"]
    assert "GENERATED" in suite.notices[0]
    assert all("generated" in task.payload.source for task in suite.tasks)


@pytest.mark.parametrize("seed", [42, 1, 2])
def test_generated_items_are_three_hundred_a_split_and_nothing_leaks(seed: int) -> None:
    suite = DatasetSuite.load(SuiteSource(None, DatasetOptions(data_seed=seed, on_leak="refuse")))

    for task in suite.tasks:
        assert [len(items) for items in task.payload.splits.values()] == [300, 300, 300]
        assert len({item.kind.partition(" ")[0] for item in task.payload.test}) == 4


@pytest.mark.slow
def test_data_seed_alone_changes_the_items() -> None:
    def digests(seed: int) -> list[str]:
        _drawn.cache_clear()
        return [task.digest for task in DatasetSuite.load(SuiteSource(None, DatasetOptions(data_seed=seed))).tasks]

    one, other, again = map(digests, (42, 43, 42))

    assert one == again
    assert not {*one} & {*other}


def test_generated_items_are_drawn_once_a_process() -> None:
    assert GENERATED["labels"].items("labels", 42) is GENERATED["labels"].items("labels", 42)


def test_test_mode_has_five_items_a_split() -> None:
    suite = DatasetSuite.load(SuiteSource(None, DatasetOptions(test_mode=True)))

    assert {len(items) for task in suite.tasks for items in task.payload.splits.values()} == {5}


def own(tmp_path: Path, **options: Any) -> Dataset:
    rows = [{"text": f"Message {n}", "topic": "x {text}", "label": ("good", "bad")[n % 2]} for n in range(12)]
    path = write(tmp_path / "own.csv", rows)
    given = {"input_columns": ("topic", "text"), "output_column": "label", **options}
    return load(f"mine={path}", options=replace(SMALL, **given))


def test_users_dataset_has_its_own_columns(tmp_path: Path) -> None:
    dataset = own(tmp_path, metric="label")

    assert fill(dataset.messages[-1]["content"], dataset.test[0].columns).startswith(
        "topic: x {text}\n\ntext: Message "
    )
    assert dataset.format_line == "Answer with the label alone: bad, good."
    assert own(tmp_path, format_line=False).format_line == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"input_columns": ()}, "name its columns with --input-column and --output-column"),
        ({"output_column": "text"}, "--output-column text"),
        ({"output_column": "none"}, "line 2: the field 'none' is missing"),
        ({"metric": "opik"}, "the published datasets alone"),
        ({"output_column": "id"}, "the field 'id' is missing"),
        ({"metric": "none.py:f"}, "--metric none.py:f: there is no file none.py"),
        ({"initial_prompt": Path("none.txt")}, "--initial-prompt none.txt can't be read"),
    ],
)
def test_users_dataset_errors_are_told(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(KoderzError) as raised:
        own(tmp_path, **options)

    assert said in str(raised.value)


def test_initial_prompt_is_a_text_or_messages(tmp_path: Path) -> None:
    text, messages, none = tmp_path / "a.txt", tmp_path / "b.json", tmp_path / "c.json"
    text.write_text("Sort it {well}.\n")
    messages.write_text(json.dumps([{"role": "user", "content": "About {topic}: {text}"}]))
    none.write_text(json.dumps([{"role": "user", "content": "Hello"}]))

    assert own(tmp_path, initial_prompt=text).messages[0]["content"] == "Sort it {well}."
    assert [each["content"] for each in own(tmp_path, initial_prompt=messages).messages] == [
        "",
        "About {topic}: {text}",
    ]
    with pytest.raises(KoderzError, match=r"shows nothing of an item; there are \{topic\}, \{text\}"):
        own(tmp_path, initial_prompt=none)


def test_users_metric_is_a_function_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def same(item, reply):\n    return item.gold == reply\n")

    assert own(tmp_path, metric=f"{tmp_path / 'own.py'}:same").metric.name == "same"


def test_datasets_are_the_same_out_of_one_packed_file(tmp_path: Path) -> None:
    rows = write(tmp_path / "own.csv", [{"text": f"Message {n}", "label": ("good", "bad")[n % 2]} for n in range(12)])
    metric = tmp_path / "own.py"
    metric.write_text("def same(item, reply):\n    return item.gold == reply\n")
    options = replace(
        SMALL,
        dataset=(f"mine={rows}",),
        demo_datasets=("mine", "labels"),
        input_columns=("text",),
        output_column="label",
        metric=f"{metric}:same",
    )
    here = DatasetSuite.load(SuiteSource(None, options))
    (tmp_path / "packed").write_bytes(here.packed())
    rows.unlink()
    metric.unlink()

    there = DatasetSuite.load(SuiteSource(tmp_path / "packed", options))

    assert [(task.id, task.digest) for task in there.tasks] == [(task.id, task.digest) for task in here.tasks]
    assert there.details(there.tasks, Settings(own=(options,))) == here.details(here.tasks, Settings(own=(options,)))
    with pytest.raises(KoderzError, match="holds no packed datasets"):
        DatasetSuite.load(SuiteSource(write(tmp_path / "rows.csv", [{"a": "b"}]), options))


def test_placeholder_in_an_item_is_never_filled() -> None:
    assert fill("{a} {b} {c} {{a}} {}", {"a": "{b}", "b": "{a}"}) == "{b} {a} {c} {{b}} {}"


def test_generated_name_is_taken(tmp_path: Path) -> None:
    assert "is generated; give your own another name" in complaint(f"labels={tmp_path}")


def test_published_rows_that_are_at_hand_are_read() -> None:
    if not (DATA / "truthful_qa_sample.csv").is_file():
        pytest.skip(f"the published rows are not in {DATA}")
    options = DatasetOptions(train_items=30, validation_items=30, test_items=40, on_leak="refuse")

    sums = load(f"gsm8k={DATA / 'gsm8k'}", options=options)
    asked = load(f"truthful_qa={DATA / 'truthful_qa_sample.csv'}", options=options)

    assert sums.test[0].id.startswith("gsm8k/test/")
    assert [len(items) for items in asked.splits.values()] == [30, 30, 40]
