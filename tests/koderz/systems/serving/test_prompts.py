"""What a server is sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import KoderzError
from koderz.systems.serving.options import ServingOptions
from koderz.systems.serving.prompts import load_prompts


def test_random_prompts_have_their_length_and_repeat() -> None:
    options = ServingOptions(num_prompts=5, random_input_len=40, random_output_len=7)
    found = load_prompts(options, 1)
    assert [(len(each.text.split()), each.tokens, each.output_tokens) for each in found] == [(40, 40, 7)] * 5
    assert found == load_prompts(options, 1)
    assert found != load_prompts(options, 2)
    assert len({each.text for each in found}) == 5


def test_random_prompts_have_exactly_so_many_tokens_of_a_tokenizer(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    texts = ["the of and to in is was he for it with as his on be at by had not are but from"] * 4
    made.train_from_iterator(
        texts, tokenizers.trainers.BpeTrainer(vocab_size=300, special_tokens=["?"], show_progress=False)
    )
    made.save(str(tmp_path / "tokenizer.json"))
    name = str(tmp_path / "tokenizer.json")
    found = load_prompts(ServingOptions(num_prompts=4, random_input_len=33, tokenizer=name), 1)
    assert [len(made.encode(each.text).ids) for each in found] == [33] * 4
    assert {each.tokens for each in found} == {33}


def _written(path: Path, rows: Any) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)) if path.suffix == ".jsonl" else json.dumps(rows))
    return path


def test_sharegpt_gives_the_first_question_and_its_answers_length(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "one two three four"}, {"from": "gpt", "value": "a b c d e"}]
    long = [{"value": "word " * 1025}, {"value": "a b c d"}]
    rows = [
        {"conversations": each} for each in ([*turns, {"value": "more"}], turns[:1], [{"value": "hi"}, turns[1]], long)
    ]
    options = ServingOptions(
        dataset_name="sharegpt", dataset_path=_written(tmp_path / "sharegpt.json", rows), num_prompts=3
    )
    assert load_prompts(options, 0) == [("one two three four", 4, 5)] * 3


def test_custom_prompts_say_how_much_is_asked_for(tmp_path: Path) -> None:
    path = _written(tmp_path / "own.jsonl", [{"prompt": "a b", "output_tokens": 9}, {"prompt": "c"}])
    options = ServingOptions(dataset_name="custom", dataset_path=path, num_prompts=3, random_output_len=4)
    assert load_prompts(options, 0) == [("a b", 2, 9), ("c", 1, 4), ("a b", 2, 9)]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"text": "a"}], "line 1"),
        ([{"prompt": ""}], "a text"),
        ([{"prompt": "a", "output_tokens": 0}], "at least one"),
    ],
)
def test_row_that_cannot_be_sent_is_named(tmp_path: Path, rows: Any, said: str) -> None:
    path = _written(tmp_path / "own.jsonl", rows)
    with pytest.raises(KoderzError, match=said):
        load_prompts(ServingOptions(dataset_name="custom", dataset_path=path), 0)


def test_dataset_without_a_path_says_what_to_give() -> None:
    with pytest.raises(KoderzError, match="needs --dataset-path"):
        load_prompts(ServingOptions(dataset_name="sharegpt"), 0)
