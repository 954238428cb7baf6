"""koderz.toml: what it may say, how it is told what is wrong, and what it needs to be trusted for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from koderz.engines.sources import REGISTRIES, schema_of
from koderz.errors import KoderzError
from koderz.models.prices import could_spend
from koderz.sandbox import DockerOptions
from koderz.settings.layers import CORE, Config, load_config, read_file, results_folder
from koderz.settings.options import Field, fields_of, plain
from koderz.settings.schema import Settings
from koderz.settings.trust import risks_of, risks_of_plan
from koderz.systems.long_context.ruler.options import RulerOptions


def loaded(folder: Path, text: str | bytes, *, trust: bool = False) -> Config:
    (folder / "koderz.toml").write_bytes(text.encode() if isinstance(text, str) else text)
    schema = schema_of()
    every = (*schema.fields, "prices")
    return load_config(
        read_file(folder), trust=trust, environ=state(folder), names=every, schema=schema, spends=could_spend
    )


def state(folder: Path) -> Mapping[str, str]:
    return {"XDG_STATE_HOME": str(folder / "state")}


def test_toml_may_be_absent(tmp_path: Path) -> None:
    assert load_config(read_file(tmp_path), environ={}, names=()) == Config()


def test_toml_may_be_empty(tmp_path: Path) -> None:
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

    assert loaded(tmp_path, text, trust=True).prices == {"openai/gpt-4o": (2.5, 10.0), "mine": (0.0, 0.5)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\n\nconcurrency = 0", "line 3, concurrency: invalid value 0; it must be between 1 and 100,000"),
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
        ('suite = "humaneval"\n[suite.humaneval]\n', 'the choice is [suite] name = "NAME"'),
        ("temperature = nan", "line 1, temperature: invalid value nan"),
    ],
)
def test_toml_error_names_file_line_and_key(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(KoderzError) as raised:
        loaded(tmp_path, text)

    assert str(tmp_path / "koderz.toml") in str(raised.value)
    assert said in str(raised.value)


@pytest.mark.parametrize("data", [b"\xff\xfe", b"\x00", "\ufeffseed = 1".encode(), b"a" * 10_000, b"[" * 100_000])
def test_toml_syntax_error_is_told(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(KoderzError, match=r"koderz\.toml: "):
        loaded(tmp_path, data)


@pytest.mark.parametrize("text", ["seed = " + "1" * 5000, 'prompt-dir = "a\\u0000b"', 'results = "\\u0000"'])
def test_toml_value_that_is_unusable_is_told(tmp_path: Path, text: str) -> None:
    with pytest.raises(KoderzError, match=r"koderz\.toml"):
        loaded(tmp_path, text)


@pytest.mark.parametrize("text", ["results = 3", "dataset = true", "prompt-dir = []"])
def test_toml_path_that_is_no_text_is_named_by_its_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(KoderzError, match="line 1, "):
        loaded(tmp_path, text)


def test_toml_folder_in_place_of_the_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "koderz.toml").mkdir()

    with pytest.raises(KoderzError, match="can't be read"):
        load_config(read_file(tmp_path), environ={}, names=())


# Trust


RISKY = {
    "solver": ("own.py:solve", "zero-shot"),
    "solvers": (["own.py:solve"], ["direct", "rlm"]),
    "suite": ("own.py:words",),
    "matrix": ("arms.toml",),
    "dataset": ("d.jsonl", "/etc/passwd"),
    "docker_image": ("someone/image",),
    "sandbox": ("uncontained", "modal", "another"),
    "base_url": ("http://127.0.0.1:1",),
    "api_key_env": ("HOME",),
    "prompt_dir": ("prompts", "/etc", "../elsewhere"),
    "use_memory": ("other-tasks", "same-task"),
    "sinks": (["json", "elsewhere"],),
    "local_model": ("openai/gpt-4o-mini", "gpt-4o-mini", "anthropic/claude-sonnet-4-5", "claude-opus-4-1"),
    "models": (["simulated", "openai/gpt-4o"],),
    "roles": (["judge=openai/gpt-4o"],),
    "frontier_spec_model": ("openai/o3",),
    "frontier_checkpoint_model": ("anthropic/claude-opus-4-1",),
    "engine": ("modal", "ray"),
    "gpu": ("H100:8",),
    "max_containers": (100,),
    "results": ("/tmp", "..", "~/../.."),
    "stop": (["END"],),
    "reuse_from": (["../elsewhere"],),
    "extra_body": ('{"user": "me"}', "@body.json"),
    "extra_headers": (["X-Team=seven"], ["X-Team=$HOME"]),
    "model_options": [["a.base-url=http://me"], ["a.api-key-env=KEY"], ['a.extra-body={"a":1}']],
    "role_options": (["judge.base-url=http://127.0.0.1:1"], ['judge.extra-body={"a": 1}']),
}
HARMLESS = {
    "docker_image": (DockerOptions().docker_image,),
    "sandbox": ("contained", "docker"),
    "use_memory": ("off",),
    "sinks": (["json"], ["json", "mlflow", "memory"], []),
    "local_model": ("qwen2.5-coder:7b", "simulated", "hf.co/someone/model"),
    "models": (["simulated", "llama3.2:3b"],),
    "roles": (["judge=llama3.2:3b"],),
    "frontier_spec_model": ("qwen2.5-coder:32b",),
    "frontier_checkpoint_model": ("simulated",),
    "engine": ("local",),
    "results": (".", "runs", "runs/../a"),
    "model_options": [["a.wire=chat"], ["a.context=512"]],
    "role_options": (["judge.max-tokens=7", "judge.reasoning-effort=low"],),
}
CHOICES_OF_THE_BENCHMARK = (  # tasks and numbers: they change what a run says and how long it takes, nothing else
    *("batch", "batch_roles", "batch_wait", "batch_fallback", "poll"),
    *(
        "suite",
        "problems",
        "cluster_column",
        "limit",
        "shuffle",
        "seed",
        "samples",
        "mode",
        "max_iterations",
        "history",
        "feedback",
    ),
    *("until_decided", "alpha", "margin", "min_tasks"),
    *("reasoning_effort", "reasoning_tokens", "wire", "api_version"),
    *("temperature", "top_p", "max_tokens", "context", "keep_alive", "request_timeout", "timeout_is", "max_retries"),
    *("simulated_skill", "simulated_latency", "simulated_fault_rate", "checkpoint_interval", "baseline_model"),
    *("reuse", "reuse_spec", "spec", "checkpoints", "cot", "memory_live", "test_timeout", "test_memory", "judges"),
    *(
        "concurrency",
        "max_connections",
        *("rpm", "tpm", "rates"),
        "max_cost",
        "max_experiment_cost",
        "grace",
        "tags",
        "no_sinks",
        "sink_patience",
        *("mlflow_detail", "mlflow_experiment"),
    ),
)


def test_rates_table_gives_limits_to_a_provider(tmp_path: Path) -> None:
    (tmp_path / "koderz.toml").write_text('tpm = 9\n[rates."openai"]\nrpm = 60\ninput-tpm = 5000\ntpm = 7000\n')
    config = load_config(read_file(tmp_path), names={"rates", "tpm"})
    settings = CORE.layered(config.settings)
    assert settings.rates == ("openai.rpm=60", "openai.input-tpm=5000", "openai.tpm=7000")
    assert settings.rates_of("openai") == {"rpm": 60, "input-tpm": 5000, "tpm": 9}
    assert settings.rates_of("anthropic") == {"tpm": 9}


@pytest.mark.parametrize(
    "table",
    ["[rates.openai]\nrpm = 0", "[rates.openai]\nrpm = true", "[rates.openai]\nrps = 9", "[rates]\nopenai = 60"],
)
def test_rates_table_that_can_not_be_is_refused_by_line_and_key(tmp_path: Path, table: str) -> None:
    (tmp_path / "koderz.toml").write_text(f"{table}\n")
    with pytest.raises(KoderzError, match=r"koderz\.toml, line 1, rates.*(rpm|write)"):
        load_config(read_file(tmp_path), names={"rates"})


def as_toml(name: str, value: Any) -> str:
    return f"seed = 1\n{name.replace('_', '-')} = {json.dumps(value)}\n"


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in RISKY.items() for value in values])
def test_toml_key_that_could_cost_run_or_send_needs_trust(tmp_path: Path, name: str, value: Any) -> None:
    what = "(run code|send data elsewhere|spend money|write outside of this folder)"
    with pytest.raises(KoderzError, match=rf"line 2, [a-z-]+: this could {what}\. .* say so once with --trust-config"):
        loaded(tmp_path, as_toml(name, value))


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in HARMLESS.items() for value in values])
def test_toml_key_that_is_harmless_needs_no_trust(tmp_path: Path, name: str, value: Any) -> None:
    assert name in loaded(tmp_path, as_toml(name, value)).settings


def as_price(model: str, dollars: float) -> str:
    return f'[prices."{model}"]\ninput = {dollars}\noutput = {dollars}\n'


@pytest.mark.parametrize("model", ["openai/gpt-4o", "gpt-4o", "anthropic/claude-sonnet-4-5"])
def test_price_below_the_published_one_needs_trust(tmp_path: Path, model: str) -> None:
    with pytest.raises(KoderzError, match="line 1, prices: this could spend money"):
        loaded(tmp_path, as_price(model, 0))


@pytest.mark.parametrize(("model", "dollars"), [("openai/gpt-4o", 1000), ("openai/my-finetune", 0), ("own:7b", 0)])
def test_price_at_or_above_the_published_one_needs_no_trust(tmp_path: Path, model: str, dollars: float) -> None:
    assert loaded(tmp_path, as_price(model, dollars)).prices == {model: (dollars, dollars)}


def test_trust_rule_covers_every_setting() -> None:
    assert sorted({*RISKY, *CHOICES_OF_THE_BENCHMARK}) == sorted(schema_of().fields)


def test_misspelt_key_is_refused_by_every_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "koderz.toml").write_text("toy-words = 3\nmax-iterations = 3\n")
    assert results_folder(environ={}) == Path("benchmark_results")  # whose options those are is a matter of the run

    (tmp_path / "koderz.toml").write_text('reslts = "runs"\n')
    with pytest.raises(KoderzError, match=r"reslts: there is no such setting; did you mean results\?"):
        results_folder(environ={})


def test_results_folder_of_a_variable_needs_no_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "koderz.toml").write_text('results = "/elsewhere"\n')

    with pytest.raises(KoderzError, match="write outside of this folder"):
        results_folder(None, state(tmp_path))
    assert results_folder(None, {**state(tmp_path), "KODERZ_RESULTS": "here"}) == Path("here")


def test_unused_key_needs_no_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KoderzError, match="--trust-config"):
        loaded(tmp_path, 'engine = "modal"\nresults = "runs"\n')

    assert results_folder(environ=state(tmp_path)) == Path("runs")


def test_link_that_leads_out_of_the_folder_needs_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "repository"
    inner.mkdir()
    (inner / "runs").symlink_to(tmp_path)
    monkeypatch.chdir(inner)

    with pytest.raises(KoderzError, match="--trust-config"):
        loaded(inner, 'results = "runs"')


NOT_SENT = {"endpoint", "tokenizer", "results"}  # the path of an address; a vocabulary; where koderz writes


def file_options() -> list[tuple[str, str, Field]]:
    """Each option that names files or folders: its table in koderz.toml, its name, and the field."""
    found = [("", name, field) for name, field in fields_of(Settings).items()]
    for kind, registry in REGISTRIES.items():
        for owner in registry:
            struct = registry.options_of(owner)
            found += [(f"{kind}.{owner}", *item) for item in fields_of(struct).items()] if struct else []
    named = {"FILE", "DIR", "PATH", "NAME=PATH", "FOLDER"}
    return [each for each in found if each[2].about.metavar in named and each[1] not in NOT_SENT]


def test_files_outside_of_the_folder_need_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "repository"
    inner.mkdir()
    (inner / "folder").mkdir()
    (inner / "link").symlink_to("/etc/passwd")
    (inner / "folder" / "link").symlink_to(tmp_path)
    monkeypatch.chdir(inner)

    options = file_options()
    assert {"haystack", "qa_data", "corpus", "dataset", "dataset_path", "predictions", "patches"} <= {
        name for _, name, _ in options
    }
    for table, name, field in options:
        for path in ("/etc/passwd", "../passwd", "link", "folder", "folder/link/x"):
            word = f"new={path}" if field.about.metavar == "NAME=PATH" else path
            value = field.read([word] if field.item_type else word, name)
            risks = risks_of({name: field}, {name: value}, could_spend)
            assert risks, f"{table} {name} = {value}"
            assert risks == risks_of_plan({name: field}, {name: plain(value)}), name
    inside = fields_of(RulerOptions)["haystack"]
    assert not risks_of({"haystack": inside}, {"haystack": Path("text.txt")}, could_spend)


def test_haystack_outside_of_the_folder_is_refused_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "koderz.toml").write_text('[suite]\nname = "ruler"\n[suite.ruler]\nhaystack = "/etc/passwd"\n')

    schema = schema_of(("suite", "ruler"))
    with pytest.raises(KoderzError, match=r"line 4, haystack: this could send a file from outside of this folder"):
        load_config(
            read_file(tmp_path), environ=state(tmp_path), names=(*schema.fields,), schema=schema, spends=could_spend
        )


@pytest.mark.parametrize(
    ("text", "file"),
    [('solver = "own.py:solve"', "own.py"), ('suite = "own.py:words"', "own.py"), ('dataset = "d.jsonl"', "d.jsonl")],
)
def test_trust_holds_for_the_code_that_was_read_and_no_other(tmp_path: Path, text: str, file: str) -> None:
    (tmp_path / file).write_text("one")
    assert loaded(tmp_path, text, trust=True).settings
    assert loaded(tmp_path, text).settings

    (tmp_path / file).write_text("two")
    with pytest.raises(KoderzError, match="--trust-config"):
        loaded(tmp_path, text)


def test_trust_is_given_once_and_holds_until_the_file_changes(tmp_path: Path) -> None:
    risky = 'solver = "own.py:solve"\n'
    assert loaded(tmp_path, risky, trust=True).settings == {"solver": "own.py:solve"}

    assert loaded(tmp_path, risky).settings == {"solver": "own.py:solve"}
    with pytest.raises(KoderzError, match="--trust-config"):
        loaded(tmp_path, risky + "# changed")
    assert loaded(tmp_path, risky).settings  # as it was


def test_toml_errors_come_before_the_question_of_trust(tmp_path: Path) -> None:
    with pytest.raises(KoderzError, match="line 2, seed"):
        loaded(tmp_path, 'solver = "own.py:solve"\nseed = -1', trust=True)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(("suite", "timeout"), [("humaneval", 20.0), ("mbpp", None)])
def test_table_of_a_suite_counts_where_that_suite_is_chosen(tmp_path: Path, suite: str, timeout: float | None) -> None:
    (tmp_path / "koderz.toml").write_text("[suite.humaneval]\ntest-timeout = 20\n")
    schema = schema_of(("suite", suite))

    config = load_config(read_file(tmp_path), names=schema.fields, schema=schema)

    assert config.settings.get("test_timeout") == timeout
    assert "test_timeout" in schema.fields  # which may be given whatever the suite
