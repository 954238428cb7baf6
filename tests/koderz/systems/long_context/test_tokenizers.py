"""Lengths in tokens of a tokenizer.json, trained here or published."""

from __future__ import annotations

import os
import re
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer

from koderz.errors import KoderzError, Unreachable
from koderz.settings.installation import extra_command
from koderz.suites.suite import SuiteSource
from koderz.suites.tokens import load_tokenizer
from koderz.systems.long_context.ruler.options import RulerOptions
from koderz.systems.long_context.ruler.suite import Ruler, rows_of
from koderz.systems.long_context.ruler.tasks import prose

TO_GENERATE = {"niah_single_1": 128, "niah_multikey_2": 128, "niah_multikey_3": 128, "vt": 30, "cwe": 120, "fwe": 50}
PUBLISHED = Path(os.environ.get("KODERZ_TEST_DATA", "nowhere")) / "tokenizer.json"


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer that puts a special token before each text, as many published ones do."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel()
    trainer = BpeTrainer(
        vocab_size=600, special_tokens=["<s>"], initial_alphabet=ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(islice(prose(0).split(". "), 300), trainer)
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def tokenizer_files(trained: Path) -> list[Path]:
    return [trained, *([PUBLISHED] if PUBLISHED.exists() else [])]


@pytest.mark.parametrize("task", TO_GENERATE)
def test_rows_are_as_long_as_the_tokenizer_counts_them(trained: Path, task: str) -> None:
    for file in tokenizer_files(trained):
        counted = Tokenizer.from_file(str(file))
        (rows,) = rows_of(RulerOptions(ruler_tasks=(task,), context_lengths=("2048",), tokenizer=str(file)), 42)
        made: list[dict[str, Any]] = [rows.row(index) for index in range(2)]

        assert rows.generator == "official"
        for row in made:
            prompt = f"{row['input']}{row['answer_prefix']}"
            tokens = len(counted.encode(prompt, add_special_tokens=False).ids) + TO_GENERATE[task]
            assert row["length"] == tokens
            assert 1500 < tokens <= 2048
            if "token_position_answer" in row:
                before = row["input"][: row["index"]]
                assert row["token_position_answer"] == len(counted.encode(before, add_special_tokens=False).ids)


def test_tokenizer_is_named_and_part_of_the_digest(trained: Path) -> None:
    options = [RulerOptions(("vt",), ("2048",), tokenizer=name) for name in ("chars/4", str(trained))]
    one, other = (Ruler.load(SuiteSource(None, each)) for each in options)

    assert "in tokens of tokenizer.json" in other.source
    assert other.tasks[0].payload.make()[0].tokenizer == "tokenizer.json"
    assert one.tasks[0].digest != other.tasks[0].digest


def test_tokenizer_file_that_is_invalid_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = tmp_path / "tokenizer.json"
    wrong.write_text("{}")
    with pytest.raises(KoderzError, match=r"not a tokenizer\.json"):
        load_tokenizer(str(wrong))
    wrong.write_bytes(b"\xff\xfe")
    with pytest.raises(KoderzError, match=r"not a tokenizer\.json"):
        load_tokenizer(str(wrong))
    with pytest.raises(KoderzError, match="there is no such file"):
        load_tokenizer(str(tmp_path / "none.json"))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(Unreachable, match=f"tokenizers; run: {re.escape(extra_command('data'))}"):
        load_tokenizer(str(wrong))
