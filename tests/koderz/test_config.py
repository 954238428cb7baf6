"""koderz.toml: what it may say, how it is told what is wrong, and what it needs to be trusted for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from koderz.config import Config, load_config
from koderz.errors import KoderzError


def loaded(folder: Path, text: str | bytes, *, trust: bool = False) -> Config:
    (folder / "koderz.toml").write_bytes(text.encode() if isinstance(text, str) else text)
    return load_config(folder, trust=trust, environ=state(folder))


def state(folder: Path) -> Mapping[str, str]:
    return {"XDG_STATE_HOME": str(folder / "state")}


def test_no_file_says_nothing(tmp_path: Path) -> None:
    assert load_config(tmp_path, environ={}) == Config()


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    assert loaded(tmp_path, "") == Config(tmp_path / "koderz.toml")


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("concurrency = 4", {"concurrency": 4}),
        ('local-model = "m"', {"local_model": "m"}),
        ('model = "m"', {"local_model": "m"}),
        ("max_cost = 3", {"max_cost": 3.0}),
        ("max-cost = 2.5\ntemperature = 0", {"max_cost": 2.5, "temperature": 0.0}),
        ('problems = ["HumanEval/1", "HumanEval/2"]', {"problems": ("HumanEval/1", "HumanEval/2")}),
        ("cot = false\nshuffle = true", {"cot": False, "shuffle": True}),
        ('results = "runs"', {"results": Path("runs")}),
    ],
)
def test_keys_are_the_options_of_the_command(tmp_path: Path, text: str, settings: dict[str, Any]) -> None:
    assert loaded(tmp_path, text).settings == settings


def test_prices_are_dollars_a_million_tokens_in_and_out(tmp_path: Path) -> None:
    text = '[prices."openai/gpt-4o"]\ninput = 2.5\noutput = 10\n\n[prices.mine]\ninput = 0\noutput = 0.5\n'

    assert loaded(tmp_path, text).prices == {"openai/gpt-4o": (2.5, 10.0), "mine": (0.0, 0.5)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\n\nconcurrency = 0", "line 3, concurrency: invalid value 0; it must be between 1 and 4,096"),
        ("seed = 1\nmax-cost = -1", "line 2, max-cost: invalid value -1"),
        ("seed = 1\nmax_cost = -1", "line 2, max-cost: invalid value -1"),
        ("\n  model = 3", "line 2, local-model: invalid value 3"),
        ('"mode" = "fast"', "line 1, mode: invalid value 'fast'; choose from"),
        ("colour = 1", "line 1, colour: there is no such setting; see koderz benchmark --help"),
        ("[benchmark]\nseed = 1", "line 1, benchmark: there is no such setting"),
        ("no-cot = true", "line 1, no-cot: there is no such setting"),
        ("prices = 3", 'line 1, prices: write [prices."MODEL"]'),
        ("[prices.m]\ninput = 1", "prices.m: give input and output"),
        ("[prices.m]\ninput = -1\noutput = 1", "prices.m: give input and output"),
        ("[prices.m]\ninput = inf\noutput = 1", "prices.m: give input and output"),
        ("[prices.m]\ninput = nan\noutput = 1", "prices.m: give input and output"),
        ('[prices.m]\ninput = "1"\noutput = 1', "prices.m: give input and output"),
        ("[prices]\nm = 3", "prices.m: give input and output"),
        ("a = [", "at end of document"),
        ("seed = 1\nseed = 2\n", "(at line 2"),
        ("temperature = nan", "line 1, temperature: invalid value nan"),
    ],
)
def test_what_is_wrong_is_named_by_file_line_and_key(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(KoderzError) as raised:
        loaded(tmp_path, text)

    assert str(tmp_path / "koderz.toml") in str(raised.value)
    assert said in str(raised.value)


@pytest.mark.parametrize("data", [b"\xff\xfe", b"\x00", "\ufeffseed = 1".encode(), b"a" * 10_000, b"[" * 100_000])
def test_what_is_no_toml_is_said_so(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(KoderzError, match=r"koderz\.toml: "):
        loaded(tmp_path, data)


@pytest.mark.parametrize("text", ["seed = " + "1" * 5000, 'prompt-dir = "a\\u0000b"', 'results = "\\u0000"'])
def test_a_value_that_nothing_can_hold_is_said_so(tmp_path: Path, text: str) -> None:
    with pytest.raises(KoderzError, match=r"koderz\.toml"):
        loaded(tmp_path, text)


@pytest.mark.parametrize("text", ["results = 3", "dataset = true", "prompt-dir = []"])
def test_a_path_that_is_no_text_is_named_by_its_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(KoderzError, match="line 1, "):
        loaded(tmp_path, text)


def test_a_folder_in_place_of_the_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "koderz.toml").mkdir()

    with pytest.raises(KoderzError, match="can't be read"):
        load_config(tmp_path, environ={})


# Trust


@pytest.mark.parametrize(
    "text",
    [
        'base-url = "http://127.0.0.1:1"',
        'solver = "own.py:solve"',
        'sandbox = "uncontained"',
        'solver = "zero-shot"',
        'api-key-env = "HOME"',
        'prompt-dir = "/etc"',
        'prompt-dir = "../elsewhere"',
        'prompt-dir = "prompts/../../elsewhere"',
        'dataset = "/etc/passwd"',
        'results = "/tmp"',
        'results = "~/../.."\nprompt_dir = ".."',
    ],
)
def test_what_could_send_data_elsewhere_or_run_code_needs_trust(tmp_path: Path, text: str) -> None:
    with pytest.raises(KoderzError, match=r"line \d, .* say so once with --trust-config"):
        loaded(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    ['prompt-dir = "prompts"', 'prompt-dir = "./a/../b"', 'dataset = "d.jsonl"', 'results = "."', "max-cost = 1"],
)
def test_what_stays_in_the_folder_needs_none(tmp_path: Path, text: str) -> None:
    assert loaded(tmp_path, text).settings


def test_a_link_that_leads_out_of_the_folder_needs_trust(tmp_path: Path) -> None:
    inner = tmp_path / "repository"
    inner.mkdir()
    (inner / "prompts").symlink_to(tmp_path)

    with pytest.raises(KoderzError, match="--trust-config"):
        loaded(inner, 'prompt-dir = "prompts"')


def test_a_link_out_of_the_folder_among_its_prompts_needs_trust(tmp_path: Path) -> None:
    inner = tmp_path / "repository"
    (inner / "prompts").mkdir(parents=True)
    (tmp_path / "secret").write_text("the private key")
    (inner / "prompts" / "system.md").symlink_to(tmp_path / "secret")

    with pytest.raises(KoderzError, match="--trust-config"):
        loaded(inner, 'prompt-dir = "prompts"')


def test_trust_is_given_once_and_holds_until_the_file_changes(tmp_path: Path) -> None:
    risky = 'solver = "own.py:solve"\n'
    assert loaded(tmp_path, risky, trust=True).settings == {"solver": "own.py:solve"}

    assert loaded(tmp_path, risky).settings == {"solver": "own.py:solve"}
    with pytest.raises(KoderzError, match="--trust-config"):
        loaded(tmp_path, risky + "# changed")
    assert loaded(tmp_path, risky).settings  # as it was


def test_what_is_wrong_is_said_before_trust_is_asked_for_or_given(tmp_path: Path) -> None:
    with pytest.raises(KoderzError, match="line 2, seed"):
        loaded(tmp_path, 'solver = "own.py:solve"\nseed = -1', trust=True)
    assert not (tmp_path / "state").exists()
