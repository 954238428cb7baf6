"""Settings: flags over environment over koderz.toml over defaults, each checked where it is said."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koderz.engines.sources import schema_of
from koderz.errors import KoderzError
from koderz.settings.layers import as_config
from koderz.settings.schema import Settings
from koderz.solvers.iterative import IterativeOptions
from tests.koderz.world import settings_of

SCHEMA = schema_of()
FIELDS = SCHEMA.fields
BOUNDS = {name: field.about.bounds for name, field in FIELDS.items() if field.about.bounds}
from_environment, layered, misspelt, from_config = (
    SCHEMA.from_environment,
    SCHEMA.layered,
    SCHEMA.misspelt,
    SCHEMA.from_config,
)

SOME: dict[str, Any] = {
    "local_model": "qwen2.5-coder:32b",
    "temperature": 0.5,
    "problems": ("HumanEval/3", "HumanEval/7"),
    "dataset": Path("own.jsonl"),
    "mode": "comparative",
    "samples": 3,
    "shuffle": True,
    "cot": False,
    "max_cost": 2.5,
    "feedback": "none",
    "results": Path("elsewhere"),
}


def test_settings_have_defaults() -> None:
    found = layered({}, {}, {})

    assert (found.mode, found.samples, found.concurrency) == ("iterative", 1, 8)
    assert found.of(IterativeOptions).max_iterations == 10
    assert (found.local_model, found.max_cost, found.results) == (None, None, Path("benchmark_results"))


def test_layers_are_read_in_order() -> None:
    flags, environment, file = {"seed": 1}, {"seed": 2, "samples": 2}, {"seed": 3, "samples": 3, "limit": 3}

    found = layered(flags, environment, file)

    assert (found.seed, found.samples, found.limit) == (1, 2, 3)


def test_value_of_none_counts_as_given() -> None:
    assert layered({"max_cost": None}, {"max_cost": 3.0}).max_cost is None


# The environment


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("KODERZ_LOCAL_MODEL", "m", "local_model", "m"),
        ("KODERZ_SAMPLES", "5", "samples", 5),
        ("KODERZ_TEMPERATURE", "0.5", "temperature", 0.5),
        ("KODERZ_MAX_COST", "3", "max_cost", 3.0),
        ("KODERZ_SHUFFLE", "1", "shuffle", True),
        ("KODERZ_SHUFFLE", "Yes", "shuffle", True),
        ("KODERZ_COT", "false", "cot", False),
        ("KODERZ_COT", "0", "cot", False),
        ("KODERZ_MODE", "zero-shot", "mode", "zero-shot"),
        ("KODERZ_RESULTS", "/tmp/r", "results", Path("/tmp/r")),
        ("KODERZ_PROBLEMS", "T/1, T/2 T/3", "problems", ("T/1", "T/2", "T/3")),
        ("KODERZ_SEED", "0", "seed", 0),
        ("KODERZ_SINKS", "json,memory", "sinks", ("json", "memory")),
        ("KODERZ_SINKS", "none", "sinks", ()),
        ("KODERZ_SINKS", "", "sinks", ()),
        ("KODERZ_NO_SINKS", "mlflow", "no_sinks", ("mlflow",)),
        ("KODERZ_MLFLOW_DETAIL", "runs", "mlflow_detail", "runs"),
    ],
)
def test_variable_is_read_as_its_settings_type(variable: str, text: str, name: str, value: Any) -> None:
    assert from_environment({variable: text}) == {name: value}


def test_variables_that_are_unknown_or_empty_are_ignored() -> None:
    assert from_environment({"KODERZ_COLOUR": "red", "KODERZ_SEED": "", "SEED": "3"}) == {}


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("KODERZ_SINK", "KODERZ_SINKS"),
        ("KODERZ_MAXCOST", "KODERZ_MAX_COST"),
        ("KODERZ_TEMPRATURE", "KODERZ_TEMPERATURE"),
        ("KODERZ_LIMTI", "KODERZ_LIMIT"),
        ("KODERZ_SEEDS", "KODERZ_SEED"),
        ("KODERZ_MODAL_AP", "KODERZ_MODAL_APP"),
        ("KODERZ-SEED", "KODERZ_SEED"),
        ("KODERZMODEL", "KODERZ_MODEL"),
    ],
)
def test_variable_within_one_edit_of_a_known_one_is_misspelt(variable: str, meant: str) -> None:
    assert misspelt({variable: "1", "PATH": "/bin"}) == {variable: meant}


@pytest.mark.parametrize(
    "variable",
    ["KODERZ_SETUP", "KODERZ_DEBUG", "KODERZ_MODEL", "KODERZ_MODE", "KODERZ_TEST_DATA", "KODERZ_SERVE_GPU", "KODERZ_A"],
)
def test_variables_of_ours_or_far_from_them_are_not_misspelt(variable: str) -> None:
    assert misspelt({variable: "1", "_KODERZ_COMPLETE": "x"}) == {}


def test_no_variable_of_the_checks_is_taken_for_a_misspelt_option() -> None:
    text = (Path(__file__).parents[3] / ".ci" / "run").read_text(encoding="utf-8")
    named = set(re.findall(r"\b(KODERZ_\w+)=", text))
    assert len(named) > 3
    assert misspelt(dict.fromkeys(named, "1")) == {}


def test_model_has_two_option_names() -> None:
    assert from_environment({"KODERZ_MODEL": "qwen2.5-coder:32b"}) == {"local_model": "qwen2.5-coder:32b"}


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("KODERZ_SAMPLES", "many"),
        ("KODERZ_SAMPLES", "1.5"),
        ("KODERZ_SAMPLES", "0"),
        ("KODERZ_SHUFFLE", "maybe"),
        ("KODERZ_TEMPERATURE", "nan"),
        ("KODERZ_MAX_COST", "inf"),
        ("KODERZ_MAX_COST", "-0.01"),
        ("KODERZ_MODE", "fast"),
        ("KODERZ_SEED", "9" * 5000),
    ],
)
def test_variable_with_a_wrong_value_is_named(variable: str, text: str) -> None:
    with pytest.raises(KoderzError, match=f"^{variable}: "):
        from_environment({variable: text})


# Checks


@pytest.mark.parametrize("name", BOUNDS)
def test_number_may_be_either_of_its_bounds(name: str) -> None:
    low, high = BOUNDS[name]
    whole = FIELDS[name].plain_type is int
    for value in (low, high):
        assert FIELDS[name].read(int(value) if whole else float(value), "--x") == value
    for value in (low - 1, high + 1, high * 2 + 1):
        with pytest.raises(KoderzError, match=r"invalid value .*; it must be between"):
            FIELDS[name].read(int(value) if whole else float(value), "--x")


@pytest.mark.parametrize("name", [name for name in BOUNDS if FIELDS[name].plain_type is not int])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_number_must_be_finite(name: str, value: float) -> None:
    with pytest.raises(KoderzError, match="invalid value"):
        FIELDS[name].read(value, "--x")


def test_numbers_all_have_bounds() -> None:
    numbers = {name for name, field in FIELDS.items() if field.plain_type in (int, float)}

    assert numbers == set(BOUNDS)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("mode", "fast", "--mode: invalid value 'fast'; choose from zero-shot, iterative, comparative"),
        ("feedback", "all", "choose from tests, examples, none"),
        ("samples", "5", "expected `int`, got `str`"),
        ("samples", True, "expected `int`, got `bool`"),
        ("samples", 2.0, "expected `int`, got `float`"),
        ("shuffle", 1, "expected `bool`, got `int`"),
        ("problems", "HumanEval/1", "expected `array`, got `str`"),
        ("local_model", 3, "got `int`"),
    ],
)
def test_value_of_another_type_is_refused_with_advice(name: str, value: Any, said: str) -> None:
    with pytest.raises(KoderzError) as raised:
        FIELDS[name].read(value, f"--{name}")

    assert said in str(raised.value)


@pytest.mark.parametrize("value", [3, True, [], {"a": 1}, 1.5])
@pytest.mark.parametrize("name", ["results", "dataset", "prompt_dir"])
def test_path_that_is_no_text_is_refused(name: str, value: Any) -> None:
    with pytest.raises(KoderzError):
        FIELDS[name].read(value, f"--{name}")


# In and out of a plan


def test_settings_come_back_from_a_plan_as_they_were() -> None:
    settings = settings_of(**SOME)

    assert from_config(orjson.loads(orjson.dumps(as_config(settings)))) == settings


@given(st.fixed_dictionaries({}, optional={name: st.just(value) for name, value in SOME.items()}))
def test_settings_round_trip(given_values: dict[str, Any]) -> None:
    settings = settings_of(**given_values)

    assert from_config(orjson.loads(orjson.dumps(as_config(settings)))) == settings


def test_settings_that_a_later_version_wrote_are_left_out() -> None:
    assert from_config({"seed": 3, "colour": "red"}) == settings_of(seed=3)


def test_plan_with_an_impossible_setting_is_refused() -> None:
    with pytest.raises(KoderzError, match=r"^config\.concurrency: invalid value 0"):
        from_config({"concurrency": 0})


def test_config_has_every_setting_as_in_json() -> None:
    config = as_config(settings_of(**SOME))

    assert list(config) == list(FIELDS)
    assert (config["dataset"], config["results"]) == ("own.jsonl", "elsewhere")
    assert orjson.dumps(config)


# What follows from others


@pytest.mark.parametrize(
    ("given_values", "temperature"),
    [({}, 0.0), ({"samples": 2}, 0.8), ({"samples": 2, "temperature": 0.0}, 0.0), ({"temperature": 1.5}, 1.5)],
)
def test_temperature_default_depends_on_samples(given_values: dict[str, Any], temperature: float) -> None:
    assert settings_of(**given_values).sampling_temperature == temperature


def test_judges_default_above_the_number_of_cores() -> None:
    assert Settings().judge_count > (os.cpu_count() or 1)
    assert Settings(judges=3).judge_count == 3
