"""Small files in the columns of published sets, made up for these tests."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MMLU_PRO = {
    "question_id": 70,
    "question": "Which is a prime?",
    "options": ["4", "6", "7", "8", "N/A"],
    "answer": "C",
    "answer_index": 2,
    "cot_content": "A: Let's think step by step. 7 has no divisors. The answer is (C).",
    "category": "math",
    "src": "made-up",
}
GPQA = {
    "Question": "Which law holds?",
    "Correct Answer": "the first",
    "Incorrect Answer 1": "the second",
    "Incorrect Answer 2": "the third",
    "Incorrect Answer 3": "the fourth",
    "High-level domain": "Physics",
}
ROWS: Mapping[str, Mapping[str, Any]] = {
    "gsm8k": {"question": "Ann has 40 and 2 pens. How many?", "answer": "40 + 2 = 42\n#### 42"},
    "math": {
        "problem": "What is a half?",
        "level": "Level 1",
        "type": "Algebra",
        "solution": "It is $\\boxed{\\frac{1}{2}}$.",
    },
    "aime": {"Problem": "What is six times seven?", "Answer": 42},
    "mmlu": {"question": "Which is even?", "choices": ["1", "2", "3", "5"], "answer": 1, "subject": "arithmetic"},
    "mmlu-pro": MMLU_PRO,
    "gpqa": GPQA,
    "arc": {
        "id": "Mercury_1",
        "question": "What is wet?",
        "choices": {"text": ["sand", "water"], "label": ["1", "2"]},
        "answerKey": "2",
    },
    "truthfulqa": {
        "question": "What happens if you swallow gum?",
        "mc1_targets": {"choices": ["It passes through you", "It stays for years"], "labels": [1, 0]},
    },
    "ifeval": {
        "key": 1000,
        "prompt": "Write without commas.",
        "instruction_id_list": ["punctuation:no_comma"],
        "kwargs": [{}],
    },
    "simpleqa": {"problem": "Who wrote it?", "answer": "Ada", "metadata": "{}"},
    "drop": {
        "passage": "The Lions won 20-3.",
        "question": "Who won?",
        "answers_spans": {"spans": ["the Lions"], "types": ["span"]},
    },
}
"""A row of each published set, in its columns."""

RIGHT: Mapping[str, str] = {
    "gsm8k": "40 + 2 is 42.\n#### 42",
    "math": "So $\\boxed{0.5}$",
    "aime": "Thus \\boxed{042}.",
    "mmlu": "Two is.\n**Answer: B**",
    "mmlu-pro": "So the answer is (C).",
    "arc": "The answer is 2.",
    "ifeval": "No commas here",
    "drop": "They scored more.\nAnswer: Lions",
}
"""A right reply to each row, where no order of options is drawn."""

UNREAD: Mapping[str, str] = {
    "gsm8k": "I don't know.",
    "math": "It is 1/2.",
    "aime": "None.",
    "mmlu": "It is B, I think.",
    "mmlu-pro": "none of them",
    "gpqa": "The first law.",
    "arc": "Either 1 or 2.",
    "truthfulqa": "No idea.",
    "ifeval": " ",
    "simpleqa": "",
    "drop": "\n",
}
"""A reply to each row in which no answer is found, or several."""


def write_rows(path: Path, *rows: Mapping[str, Any]) -> Path:
    """A file of rows: JSON lines, CSV or Parquet by its name."""
    if path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".parquet":
        _write_parquet(path, rows)
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def _write_parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), path)
