"""Bad input gets one clear line and exit code 2, and nothing is created; in processes of their own: tests/e2e."""

from __future__ import annotations

import pytest

from koderz_tracker.files import MB
from tests.conftest import Shell
from tests.koderz.cli.conftest import Command

WRONG = {
    "an end below the start": ((5, 3), "END has to be above START"),
    "an empty range": ((3, 3), "END has to be above START"),
    "a range beyond the suite": ((0, 200), "the suite has 164 tasks"),
    "half a range": ((0,), "START and END"),
    "nothing to do": (("--quiet",), "say which tasks"),
    "an unknown mode": (
        (0, 2, "--mode", "nope"),
        "invalid value 'nope'; choose from zero-shot, iterative, comparative",
    ),
    "an unknown suite": ((0, 2, "--suite", "nope"), "there is no suite 'nope'"),
    "an unknown problem": (("--problems", "HumanEval/777"), "no task 'HumanEval/777'"),
    "a problem outside the range": ((0, 2, "--problems", "HumanEval/77"), "none of the tasks"),
    "a negative limit": ((0, 2, "--limit", "-3"), "--limit: invalid value -3"),
    "no concurrency": ((0, 2, "--concurrency", "0"), "--concurrency: invalid value 0; it must be between 1 and"),
    "a temperature that is no number": ((0, 2, "--temperature", "warm"), "--temperature"),
    "a negative cap": ((0, 2, "--max-cost", "-1"), "--max-cost: invalid value -1.0"),
    "a solver that isn't there": ((0, 2, "--solver", "x.py:y"), "there is no file x.py"),
    "a solver argument without a value": ((0, 2, "--solver-arg", "x"), "write name=value"),
    "an empty model name": ((0, 2, "--model", ""), "not a model's name"),
    "a prompt folder that isn't there": ((0, 2, "--prompt-dir", "nowhere"), "there is no such folder"),
    "a misspelt suite": ((0, 2, "--suite", "humanevl"), "there is no suite 'humanevl'; did you mean humaneval?"),
    "a misspelt solver": ((0, 2, "--solver", "zeroshot"), "there is no solver 'zeroshot'; did you mean zero-shot?"),
    "a dataset that isn't there": ((0, 2, "--dataset", "nowhere.jsonl"), "there is no dataset nowhere.jsonl"),
    "a sandbox that isn't there": ((0, 2, "--sandbox", "nope"), "there is no sandbox 'nope'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_usage_is_one_line_and_creates_nothing(command: Command, koderz: Shell, case: str) -> None:
    arguments, said = WRONG[case]

    done = command("benchmark", *arguments, code=2)

    assert said in done.err
    assert not done.out
    assert len([line for line in done.err.splitlines() if not line.startswith("note:")]) == 1
    assert not koderz.results.exists()


def test_file_without_a_name_in_it_is_answered_with_what_it_has(command: Command, koderz: Shell) -> None:
    (koderz.folder / "sc.py").write_text("raise SystemExit  # it isn't run\n\nasync def mine(task, ask, judge): ...\n")

    assert command("benchmark", 0, 1, "--solver", "sc.py", code=2).err == (
        "koderz: --solver sc.py: say which of the file's, too: sc.py:mine\n"
    )
    assert "nowhere.py:NAME" in command("benchmark", 0, 1, "--suite", "nowhere.py", code=2).err


def test_table_of_questions_is_answered_with_the_options_that_read_it(command: Command, koderz: Shell) -> None:
    (koderz.folder / "q.csv").write_text("question,answer\n1 + 1?,2\n")

    assert "no task of code, but question, answer; rows of your own questions are those of --suite qa\n" in (
        command("benchmark", "--dataset", "q.csv", "--model", "simulated", code=2).err
    )
    columns = ("--input", "question", "--target", "answer")
    of_table = ("benchmark", "--suite", "qa", "--dataset", "q.csv", "--model", "simulated", "--dry-run")
    assert f"the field 'input' is missing; to read others: {' '.join(columns)}\n" in command(*of_table, code=2).err
    assert "Tasks: 1" in command(*of_table, *columns).out


def test_dataset_of_ones_own_is_run_whole_without_a_range(command: Command, koderz: Shell) -> None:
    task = '{"task_id": "a/%d", "prompt": "def f():\\n", "entry_point": "f", "test": "def check(f): pass"}\n'
    (koderz.folder / "mine.jsonl").write_text("".join(task % number for number in range(3)))

    said = command("benchmark", "--dataset", "mine.jsonl", "--model", "simulated", "--dry-run")
    assert "Tasks: 3" in said.out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = [\n", "koderz.toml"),
        ('\nconcurrency = "x"\n', "line 2, concurrency"),
        ("\n\nfoo = 3\n", "line 3, foo: there is no such setting"),
        ('mode = "fast"\n', "line 1, mode"),
        ("max-cost = -2\n", "line 1, max-cost"),
        ("prices = 3\n", "line 1, prices"),
        ('[prices."m"]\ninput = 1\n', "line 1, prices.m"),
        ("\ufeff\x00", "koderz.toml"),
    ],
)
def test_configuration_error_names_file_line_and_key(command: Command, koderz: Shell, text: str, said: str) -> None:
    (koderz.folder / "koderz.toml").write_text(text)

    done = command("benchmark", 0, 2, code=2)

    assert said in done.err
    assert "Traceback" not in done.err
    assert not koderz.results.exists()


@pytest.mark.parametrize(
    "text",
    [
        'base-url = "http://127.0.0.1:1/"',
        'solver = "evil.py:solve"',
        'prompt-dir = "prompts"',
        'api-key-env = "HOME"',
        'engine = "modal"',
        'docker-image = "someone/image"',
        'dataset = "evil.jsonl"',
        'frontier-spec-model = "openai/gpt-4o"',
    ],
)
def test_configuration_that_could_be_misused_needs_trust_once(command: Command, koderz: Shell, text: str) -> None:
    (koderz.folder / "koderz.toml").write_text(f'local-model = "simulated"\n{text}\n')

    done = command("benchmark", 0, 1, code=2)

    assert "--trust-config" in done.err
    assert "line 2" in done.err


@pytest.mark.parametrize("name", ["program.py", "program.txt"])
def test_program_without_its_task_is_one_line(command: Command, koderz: Shell, name: str) -> None:
    (koderz.folder / name).write_text("# a comment\n\ndef f(x):\n    return [x]\n" * 20)

    done = command("judge", name, code=2)

    assert done.err == (f"koderz: {name} is no samples file; if it is a program, name its task: --task HumanEval/3\n")
    assert done.out == ""


def test_reading_commands_work_in_an_untrusted_folder(command: Command, koderz: Shell) -> None:
    command("benchmark", 0, 1, "-m", "simulated", "-q")
    (koderz.folder / "koderz.toml").write_text('engine = "modal"\ndocker-image = "someone/image"\n')

    for words in ("benchmark list", "benchmark show latest", "benchmark problems", "sync", "memory stats"):
        assert "--trust-config" not in command(*words.split(), code=4 if words == "memory stats" else 0).err


@pytest.mark.parametrize(
    "words",
    [
        "memory import /dev/zero",
        "judge /dev/zero --task HumanEval/3",
        "judge /dev/zero",
        "benchmark 0 1 -m simulated --problems-file /dev/zero",
        "benchmark 0 1 -m simulated --dataset /dev/zero",
        "benchmark import /dev/zero --model m",
    ],
)
def test_endless_file_is_one_line(command: Command, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koderz.systems.memory.commands._LARGEST", MB)
    monkeypatch.setattr("koderz.suites.dataset.LONGEST", MB)

    done = command(*words.split(), code=2)

    assert "MB" in done.err
    assert done.err.startswith("koderz: /dev/zero")
    assert len(done.err.splitlines()) == 1


READING = (
    "benchmark 0 1 -m simulated --dry-run --extra-body @FILE",
    "benchmark 0 1 -m simulated --dry-run --solver FILE:solve",
    "benchmark 0 1 -m simulated --dry-run --suite FILE:Own",
    "benchmark --suite qa --dataset q.jsonl -m simulated --dry-run --template FILE",
    "benchmark --suite qa --dataset q.jsonl -m simulated --dry-run --scorer judge --role judge=simulated --rubric FILE",
    "optimize run --optimizers few_shot -m simulated --dry-run --optimizer-params FILE",
    "memory import FILE",
    "suites add humaneval FILE",
    "judge FILE --task HumanEval/3",
    "benchmark show FILE",
    "leaderboard FILE",
)


@pytest.mark.parametrize("words", READING)
def test_file_that_is_none_of_its_kind_is_one_line(command: Command, koderz: Shell, words: str) -> None:
    """Of readers that are no functions of their own; the others: tests/koderz/test_readers.py."""
    (koderz.folder / "q.jsonl").write_text('{"input": "1 + 1?", "target": "2"}\n')
    file = koderz.folder / "given.json"
    arguments = words.replace("FILE", "given.json").split()
    for content in (b"", b"\xff\xfe\xfa", b"\0" * 50, b"[" * 100_000, b"9" * 5000, "a folder", "a circle"):
        if isinstance(content, bytes):
            file.write_bytes(content)
        elif content == "a folder":
            file.mkdir()
        else:
            file.symlink_to(file)
        said = command(*arguments, code=(0, 1, 2)).err
        lines = [line for line in said.splitlines() if not line.startswith("note:")]
        assert len(lines) <= 1
        assert "given.json" in said or not lines
        assert len(said) < 1000
        file.rmdir() if file.is_dir() else file.unlink()
    assert "given.json" in command(*arguments, code=2).err
    assert not koderz.results.exists()


def test_configuration_without_an_end_is_one_line(command: Command, koderz: Shell) -> None:
    (koderz.folder / "koderz.toml").symlink_to("/dev/zero")

    assert "koderz.toml holds more than 1 MB" in command("benchmark", "list", code=2).err


def test_configuration_overridden_by_flag_or_variable_needs_no_trust(command: Command, koderz: Shell) -> None:
    (koderz.folder / "koderz.toml").write_text('engine = "modal"\nmodels = ["openai/gpt-4o"]\n')

    command("benchmark", 0, 1, "--engine", "local", "--dry-run", env={"KODERZ_LOCAL_MODEL": "simulated"})
