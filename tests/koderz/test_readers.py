"""Each reader of a file reads its sample, and answers whatever else lies there with one line that names it."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from koderz.engines.sources import REGISTRIES
from koderz.errors import KoderzError
from koderz.settings.options import fields_of
from koderz.settings.systems import own_systems
from koderz_tracker.registry import find
from tests.koderz.cli.test_options import ALL
from tests.koderz.readers import READERS, Reader
from tests.koderz.systems.long_context.encrypted import CANARY

TOPS = (b"[]", b"{}", b"null", b"3", b'"x"', b"true", b"NaN", b"[1]", b"[{}]", b"[[]]", b'{"a": 1}')
NEVER = (b"null", b"3", b'"x"', b"true", b"[[]]", b"\0" * 200, b"9" * 5000)
"""What no file is, but for one of free text."""
MAY_BE_EMPTY = {
    f"rows of {name}, jsonl" for name in ("livecodebench", "predictions", "predictions of opt-at-k", "ruler")
}
DEPTH = {".yaml": 500, ".toml": 2_000}  # of levels, where more of them are only slower


def damaged(sound: bytes, suffix: str) -> Iterator[bytes]:
    """What may lie in place of a sound file: parts of it, other files, and what overwhelms parsers."""
    middle, depth = len(sound) // 2, DEPTH.get(suffix, 100_000)
    yield from (b"", b" \n\n", b"\0" * 200, *TOPS)
    yield from (sound[: len(sound) * part // 100] for part in (2, 30, 60, 90))
    yield sound[:-2]
    for odd in (b"\xe9", b"\xed\xa0\x80", b"\0"):  # of a code page, half a character, none
        yield sound[:middle] + odd + sound[middle:]
    for odd in (b"\xff" * 8, b"\0" * 8):
        yield sound[:middle] + odd + sound[middle + 8 :]
    yield b"\xff\xfe" + sound.decode("latin-1").encode("utf-16-le")
    packed = gzip.compress(sound)
    yield from (packed, packed[:-9], packed[: len(packed) // 2])
    yield from (magic + sound for magic in (b"\x1f\x8b\x08\0", b"PK\x03\x04", b"\x28\xb5\x2f\xfd", b"PAR1"))
    yield from (b"[" * depth, b'{"a":' * depth, b"a = " + b"[" * depth, b"a: " + b"[" * depth)
    yield from (b"9" * 5000, b"a = " + b"9" * 5000, b"a: " + b"9" * 5000, b"a: 2024-99-99")
    for digit in (b"1", b"3"):
        yield from (sound.replace(digit, b"9" * 5000, 1), sound.replace(digit, b"1e999"))
    for word in (b'"a"', b'"x"'):
        yield from (sound.replace(word, other) for other in (b"7", b"null", b"[]", b"{}", b'"\\ud800"', b'"\\u0000"'))


def files_in(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if "kept" not in path.parts}  # which readers of archives have


def answer(reader: Reader, path: Path) -> str:
    """The line that a reader says of a file, which has to name it or its folder; empty where it reads the file."""
    try:
        reader.read(path)
    except KoderzError as error:
        said = str(error)
    else:
        said = ""
    is_named = path.name in said or path.parent.name in said or "the split train is empty" in said
    assert not said or is_named, said
    assert "\n" not in said
    assert len(said) < 1000, f"{said[:200]} …"
    return said


@pytest.mark.parametrize("name", READERS)
def test_reader_answers_what_it_can_not_read_in_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KODERZ_BROWSECOMP_CANARY", CANARY)
    reader = READERS[name]
    path = reader.write(tmp_path)
    assert not answer(reader, path)
    sound, left = path.read_bytes(), files_in(tmp_path)
    has_content = path.suffix in (".json", ".jsonl", ".yaml") and name not in MAY_BE_EMPTY
    never = (*NEVER, b"") if has_content else NEVER
    for data in damaged(sound, path.suffix):
        path.write_bytes(data)
        try:
            assert answer(reader, path) or reader.is_of_text or data not in never
        except Exception as error:
            raise AssertionError(f"{data[:60]!r}… of {len(data)} bytes") from error
    assert files_in(tmp_path) <= left, "a reader has written something"
    path.unlink()
    assert answer(reader, path) or reader.may_lack
    for target in (path, "/nowhere/at-all"):  # round in a circle, and to nothing
        path.symlink_to(target)
        assert answer(reader, path) or reader.may_lack
        path.unlink()
    path.mkdir()
    assert answer(reader, path) or reader.may_lack


WRITTEN = {
    *("--output", "--output-dir", "--result-dir", "--junit", "--json", "-o", "--checkpoint-dir"),
    "rollouts sample folder",
}
"""Options of what commands write."""
OF_COMMANDS = ("--extra-body", "--optimizer-params", "--template", "--rubric", "memory import file", "suites add path")
ELSEWHERE = {
    "--also": "read as --dataset of rollouts",
    "--corpus": "tests/koderz/systems/long_context/test_research.py",
    "--dataset-dir": "a folder of files of --dataset",
    "--endpoint": "a part of an address",
    "--held-out": "read as --dataset",
    "--packages": "tests/koderz/systems/rollouts/test_dockerfiles.py",
    "--patches": "a folder of files of --predictions",
    "--python": "a program",
    "--reuse-from": "a run, or a folder of runs: tests/koderz/cli/test_odd_records.py",
    "--script": "bash reads it",
    "--wheels": "tests/koderz/systems/rollouts/workspaces/test_machines.py",
    "verify run": "tests/koderz/cli/test_odd_records.py",
    **dict.fromkeys(OF_COMMANDS, "tests/koderz/cli/test_bad_input.py"),
}


def options() -> set[str]:
    """The options and arguments of all commands, suites, solvers, sandboxes and engines that name files."""
    found = set()
    for name, command in ALL.items():
        for param in command.params:
            is_file = type(param.type).__name__ == "TyperPath" or re.search("FILE|DIR|PATH", str(param.metavar))
            if is_file:
                found.add(param.opts[0] if param.param_type_name == "option" else f"{name} {param.name}")
    structs = [
        find("options", key, {key: each}, "") for system in own_systems() for key, each in system.options.items()
    ]
    structs += [struct for each in REGISTRIES.values() for name in each.options if (struct := each.options_of(name))]
    for struct in structs:
        for field in fields_of(struct).values():
            about = field.about
            if (
                about.names_files
                or field.type in (Path, Path | None)
                or re.search("FILE|DIR|PATH", about.metavar or "")
            ):
                found.add(field.flag)
    return found


def test_option_that_names_a_file_has_a_reader_here() -> None:
    read = {option for reader in READERS.values() for option in reader.options}

    assert options() == {*read} | WRITTEN | {*ELSEWHERE}
