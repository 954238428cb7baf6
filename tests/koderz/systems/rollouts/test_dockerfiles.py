"""Dockerfiles as they are read: instructions, variables, stages, and the files that they copy."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import stat
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import KoderzError
from koderz.systems.rollouts.dockerfiles import Build, BuildStage, RunCommand, follow
from koderz.systems.rollouts.dockerfiles.context import Copy, Folder, copy_into, make_folder
from koderz.systems.rollouts.dockerfiles.syntax import SyntaxFault, parse, replaced

_CASES = [json.loads(line) for line in Path(__file__).with_name("dockerfiles.jsonl").read_text().splitlines()]
_LINES = [folder / "shared/data/cases/dockerfile_lines.tsv.gz" for folder in Path(__file__).parents]
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass
class _Image:
    workdir: str = "/"
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": _PATH})
    user: str = ""


_IMAGES = {
    "tools:1": _Image(),
    "extra:1": _Image(),
    "placed:1": _Image("/testbed", {"PATH": _PATH, "LANG": "C.UTF-8"}),
}


def _laid(context: dict[str, Any], folder: Path) -> Path:
    """Files of a build's context: a text, {text, mode}, or {archive: {name: text}} for a .tar.gz."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in context.items():
        about = value if isinstance(value, dict) else {"text": value}
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_packed(about["archive"]) if "archive" in about else about["text"].encode())
        path.chmod(int(about.get("mode", "644"), 8))
    return folder


def _packed(files: dict[str, str], *more: tarfile.TarInfo, how: str = "w:gz") -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=how) as archive:  # type: ignore[call-overload]
        for name, text in files.items():
            about = tarfile.TarInfo(name)
            about.size, about.mode, about.mtime = len(text), 0o640, 978307200
            archive.addfile(about, io.BytesIO(text.encode()))
        for about in more:
            archive.addfile(about)
    return packed.getvalue()


def _followed(text: str, folder: Path, arguments: dict[str, str] | None = None, **options: Any) -> Build:
    return follow(text, folder / "Dockerfile", _IMAGES.get, arguments, **options)


def _copied(stage: BuildStage, root: Path, image: Path | None = None) -> Path:
    root.mkdir(exist_ok=True)
    for step in stage.steps:
        if isinstance(step, Copy):
            copy_into(root, step, image)
        elif isinstance(step, Folder):
            make_folder(root, step)
    return root


def _commands(build: Build) -> list[RunCommand]:
    return [step for stage in build.stages for step in stage.steps if isinstance(step, RunCommand)]


def _files(root: Path) -> dict[str, str]:
    return {path.relative_to(root).as_posix(): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("case", _CASES, ids=[case["name"] for case in _CASES])
def test_published_kinds_have_their_environment_folder_and_files(tmp_path: Path, case: dict[str, Any]) -> None:
    wanted = case["wanted"]
    build = _followed(case["dockerfile"], _laid(case["context"], tmp_path / "context"))
    target = build.target
    assert target.workdir == wanted["workdir"]
    assert {name: target.environment.get(name) for name in wanted["environment"]} == wanted["environment"]
    assert not {*wanted["unset"]} & {*target.environment}
    if _commands(build):
        return
    programs = {f"opt/extra/bin/{name}": {"text": "x", "mode": "755"} for name in ("say", "more")}
    root = tmp_path / "root"
    _copied(target, root, _laid(programs, tmp_path / "image"))
    for path, about in wanted["files"].items():
        found = root / path.lstrip("/")
        assert found.is_file()
        assert about.get("text") in (None, found.read_bytes().decode("utf-8", "replace"))
        assert about.get("mode") in (None, f"{stat.S_IMODE(found.stat().st_mode):o}")
    assert not [path for path in wanted["absent"] if os.path.lexists(root / path.lstrip("/"))]


def _filled(skeleton: str) -> str:
    """A Dockerfile with the instructions of a row of lines, of which only their kinds are known."""
    lines = []
    for each in skeleton.split(" | "):
        name, _, rest = each.removesuffix("+").partition(" ")
        usual = {"ENV": "A=1", "ENV$": 'A="$A:1"', "WORKDIR": "/work", "ARG": "B", "LABEL": "c=d", "COPY": "x.txt /y/"}
        lines.append(f"{name.rstrip('$')} {usual.get(name, rest or 'word')}")
        lines += ["EOF"] if "<<EOF" in rest else []
    return "\n".join(lines)


def test_lines_of_all_published_dockerfiles_are_followed(tmp_path: Path) -> None:
    if not (found := [path for path in _LINES if path.is_file()]):
        pytest.skip("the lines of published Dockerfiles aren't beside this checkout")
    rows = [line.split("\t") for line in gzip.decompress(found[0].read_bytes()).decode().splitlines()]
    skeletons = [row[1] for row in rows if row[0] == "skeleton" and row[1]]
    assert len(skeletons) == 778  # one file is empty, which docker refuses, too
    _laid({"x.txt": "1"}, tmp_path)
    for skeleton in skeletons:
        text = _filled(skeleton)
        assert [each.name for each in parse(text)] == [each.split()[0].rstrip("$+") for each in skeleton.split(" | ")]
        assert _followed(text, tmp_path).fault is None


_COMMANDS = """\
# syntax=docker/dockerfile:1
FROM tools:1
ARG WHO=me
ENV A=1
RUN echo $A
WORKDIR /lab
USER app:staff
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
RUN --mount=type=cache,target=/root/.cache --network=none a | b
RUN ["touch", "$A"]
RUN <<EOF
one
  two
EOF
RUN cat <<-'X' > c <<Y
\tkept
\tX
second
Y
RUN [ -e x ] && echo "#no comment" \\
    # a comment

    tail
CMD sleep 1
ENTRYPOINT ["init"]"""


def test_commands_are_those_that_docker_runs(tmp_path: Path) -> None:
    build = _followed(_COMMANDS, tmp_path)
    runs, bash = _commands(build), ("/bin/bash", "-o", "pipefail", "-c")
    assert [run.command for run in runs] == [
        ("/bin/sh", "-c", "echo $A"),
        (*bash, "a | b"),
        ("touch", "$A"),
        (*bash, "one\n  two\n"),
        (*bash, "cat <<-'X' > c <<Y\n\tkept\nX\nsecond\nY"),
        (*bash, '[ -e x ] && echo "#no comment"     tail'),
    ]
    assert [(run.workdir, run.user, run.is_offline) for run in runs[:2]] == [
        ("/", "", False),
        ("/lab", "app:staff", True),
    ]
    assert runs[0].environment == {"PATH": _PATH, "A": "1", "WHO": "me"}
    assert (build.target.cmd, build.target.entrypoint) == ((*bash, "sleep 1"), ("init",))
    assert build.target.stated == {"A": "1"}
    assert build.notes == (
        "line 9: --mount=type=cache,target=/root/.cache is left out: the command sees the usual folders and network",
    )


def test_script_with_a_program_of_its_own_is_run_by_it(tmp_path: Path) -> None:
    text = "FROM tools:1\nRUN <<EOF\n#!/usr/bin/env python3\nprint('KODERZ_END')\nEOF\n"
    shell, flag, script = _commands(_followed(text, tmp_path))[0].command
    assert (shell, flag) == ("/bin/sh", "-c")
    assert "<<'KODERZ_END_'\n#!/usr/bin/env python3\nprint('KODERZ_END')\nKODERZ_END_\n" in script


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("$A-${A}_$A.b", "1-1_1.b"),
        ("${A:-x}${NONE:-x}${EMPTY:-x}${EMPTY-x}", "1xx"),
        ("${A:+x}${NONE:+x}${EMPTY:+x}${EMPTY+x}", "xx"),
        ("${NONE:-${EMPTY:-$A/b}}", "1/b"),
        ("\"$A '$A'\" '$A \"'", "1 '1' $A \""),
        (r"\$A \\$A \a \"", '$A \\1 a "'),
        (r'"\$A \\ \a \""', '$A \\ \\a "'),
        ("$ $, $$A ${A}}", "$ $, A 1}"),
        ("${A:?has one}", "1"),
    ],
)
def test_variables_are_replaced(word: str, value: str) -> None:
    assert replaced(word, {"A": "1", "EMPTY": ""}) == value


@pytest.mark.parametrize(
    "word", ["${A", "${", "${}", "${A:}", "${A#x}", "'x", '"x', "${NONE:?is needed}", "${A:-" * 60 + "}" * 60]
)
def test_variable_that_is_none_is_an_error(word: str) -> None:
    with pytest.raises(SyntaxFault):
        replaced(word, {"A": "1"})


def test_arguments_that_are_given_win(tmp_path: Path) -> None:
    text = "ARG TAG=9\nFROM tools:${TAG}\nARG TAG\nARG OWN=${TAG}x NONE\nENV SEEN=$TAG.$OWN.$NONE\n"
    assert _followed(text, tmp_path, {"TAG": "1"}).target.environment["SEEN"] == "1.1x."
    assert _followed(text, tmp_path, {"TAG": "1", "NONE": "n"}).target.environment["SEEN"] == "1.1x.n"


def test_stages_are_those_that_the_last_one_needs(tmp_path: Path) -> None:
    text = """FROM tools:1 AS Base
ARG KEPT=1
ENV A=1
WORKDIR /base
FROM nowhere AS unused
COPY missing /
FROM base AS other
FROM scratch
COPY --from=OTHER /a /b
COPY --from=extra:1 --chown=me /c* /d/
"""
    build = _followed(text, tmp_path)
    assert [(stage.number, stage.image, stage.parent) for stage in build.stages] == [
        (0, "tools:1", None),
        (2, "", 0),
        (3, "scratch", None),
    ]
    other = build.stages[1]
    assert (other.environment["A"], other.workdir, other.arguments) == ("1", "/base", {"KEPT": "1"})
    copies = [step for step in build.target.steps if isinstance(step, Copy)]
    assert [(step.stage, step.image, step.sources, step.target) for step in copies] == [
        (2, "", ("/a",), "/b"),
        (None, "extra:1", ("/c*",), "/d/"),
    ]
    assert build.notes == ("line 10: --chown=me is left out: there is one user",)
    assert build.target.workdir == "/"


def test_image_that_is_not_here_is_no_error(tmp_path: Path) -> None:
    target = _followed("FROM elsewhere:1\nENV PATH=/opt/bin:$PATH\n", tmp_path).target
    assert (target.is_known, target.has_workdir, target.stated) == (False, False, {"PATH": f"/opt/bin:{_PATH}"})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "has 0 instructions; it begins with FROM"),
        ("ARG A\n", "has no FROM"),
        ("RUN x\nFROM a", "line 1: RUN: it stands before FROM"),
        ("FROM\n", "line 1: FROM needs an argument"),
        ("FROM a b\n", "line 1: FROM: write FROM IMAGE"),
        ("FROM a AS 1\n", "line 1: FROM: '1' is no name of a stage"),
        ("FROM $NONE\n", "line 1: FROM: \\$NONE is empty; name an image"),
        ("FROM a\n\nCOPPY b c\n", "line 3: there is no instruction 'COPPY'; did you mean 'COPY'"),
        ("FROM a\nADD https://host/x /\n", "line 2: ADD: addresses need a network; put the file beside"),
        ("FROM a\nADD git@host:x.git /\n", "line 2: ADD: addresses need a network"),
        ("FROM a\nCOPY note.txt /\n", "line 2: there is no note.txt in .*; is 'notes.txt' meant"),
        ("FROM a\nCOPY ../../etc/hostname /\n", "line 2: there is no ../../etc/hostname in"),
        ("FROM a\nCOPY out /\n", "line 2: out is a link that leads out of"),
        ("FROM a\nCOPY round /\n", "line 2: round in .* can't be read: .*too many links"),
        ("FROM a\nCOPY secret.txt /\n", "line 2: .* has secret.txt, but .dockerignore leaves it out"),
        ("FROM a\nCOPY *.txt *.md /x\n", "line 2: COPY: several files go to /x, which has to end with /"),
        ("FROM a\nCOPY notes.txt\n", "line 2: COPY: write COPY SOURCE"),
        ("FROM a\nCOPY --parents notes.txt /\n", "line 2: COPY: --parents isn't followed; use --sandbox docker"),
        ("FROM a\nCOPY --chmod=rwx notes.txt /\n", "line 2: COPY: --chmod=rwx is no mode"),
        ("FROM a AS b\nCOPY --from=b x /\n", "line 2: COPY: --from=b isn't a stage before this one"),
        ("FROM a\nCOPY --from=1 x /\nFROM c\nCOPY --from=0 x /", "line 2: COPY: --from=1 isn't a stage before"),
        ("FROM a\nENV A\n", "line 2: ENV: A has no value"),
        ("FROM a\nENV A=1 B\n", "line 2: ENV: 'B' is no NAME=VALUE"),
        ("FROM a\nENV A='1\n", "line 2: ENV: a quote ' isn't closed"),
        ("FROM a\nSHELL bash -c\n", "line 2: SHELL: its words are in the JSON form"),
        ("FROM a\nRUN [1]\n", "line 2: in the JSON form every word is a text"),
        ("FROM a\nRUN []\n", "line 2: RUN: an empty list"),
        ("FROM a\nRUN --mount=target=/x true\n", "line 2: RUN: --mount=target=/x isn't followed"),
        ("FROM a\nRUN --mount=type=secret,id=k,required true\n", "isn't followed"),
        ("FROM a\nRUN cat <<END\nx\n", "line 2: the lines of <<END don't end"),
        ("FROM a\nCOPY <<a/.. /x/\na/..\n", "line 2: COPY: <<a/.. can't be the name of a file"),
        ("FROM a AS b\nENV A\nFROM b\nENV B\n", "line 2: ENV: A has no value"),
        ("# escape=x\nFROM a\n", "line 1: escape=x is none"),
        ("FROM a\nRUN a\0b\n", "line 2: a NUL character"),
        (f"FROM a\nRUN {'x' * 10_000_000}\n", "line 2: more than 65,535 characters; break it by"),
        ("FROM a\n" + "ENV A=1\n" * 20_000, "has 20,001 instructions; it begins with FROM, and has at most 2,000"),
        ("FROM a\nENV A=" + "$PATH" * 10_000 + "\n", "line 2: ENV: its variables have more than 131,071 characters"),
        ("FROM a\nENV A0=12345678\n" + "".join(f"ENV A{n + 1}=$A{n}$A{n}\n" for n in range(99)), "ENV: its variables"),
        ("FROM a\nENV A=" + "${A:-" * 5_000 + "\n", "line 2: ENV: more than 50 variables within each other"),
        ("FROM a\nRUN " + "[" * 50_000 + "\nENV A\n", "line 3: ENV"),
    ],
    ids=range(40),
)
def test_mistake_is_one_line_with_its_place(tmp_path: Path, text: str, why: str) -> None:
    _laid({"notes.txt": "n", "x.md": "x", "secret.txt": "s", ".dockerignore": "secret.*\n"}, tmp_path)
    (tmp_path / "out").symlink_to("/etc/hostname")
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(KoderzError, match=why) as found:
        _followed(text, tmp_path)
    assert str(found.value).startswith(f"{tmp_path}/Dockerfile")
    assert "\n" not in str(found.value)
    assert len(str(found.value)) < 600


def test_fault_can_be_read_beside_what_is_known(tmp_path: Path) -> None:
    build = _followed("FROM tools:1\nADD https://host/x /\nWORKDIR /app\nENV A=1\n", tmp_path, is_strict=False)
    assert "line 2" in str(build.fault)
    assert (build.target.workdir, build.target.environment["A"]) == ("/app", "1")


@pytest.mark.parametrize(
    ("patterns", "kept"),
    [
        ("", ["a/b/c.log", "a/d.txt", "e.log", "f[1]"]),
        ("*.log", ["a/b/c.log", "a/d.txt", "f[1]"]),
        ("**/*.log", ["a/d.txt", "f[1]"]),
        ("/a/", ["e.log", "f[1]"]),
        ("a/*\n!a/d.txt", ["a/d.txt", "e.log", "f[1]"]),
        ("**\n!a/b", ["a/b/c.log"]),
        ("a/**\n  # kept, as its blanks are before it", ["e.log", "f[1]"]),
        ("[e-f]*\n!e.*\n\n!", ["a/b/c.log", "a/d.txt", "e.log"]),
        ("*/b", ["a/d.txt", "e.log", "f[1]"]),
        ("a/?/../d.txt\nf\\[1\\]", ["a/b/c.log", "e.log"]),
    ],
)
def test_ignored_files_are_not_copied(tmp_path: Path, patterns: str, kept: list[str]) -> None:
    files = dict.fromkeys(("a/b/c.log", "a/d.txt", "e.log", "f[1]"), "x")
    context = _laid({**files, "Dockerfile.dockerignore": f"{patterns}\nDockerfile.*\n"}, tmp_path / "context")
    root = _copied(_followed("FROM tools:1\nCOPY . /x\n", context).target, tmp_path / "root")
    assert sorted(_files(root / "x")) == kept


def test_hidden_files_are_never_copied(tmp_path: Path) -> None:
    context = _laid({"tests/t.py": "t", "run*.sh": "r", "run1.sh": "1"}, tmp_path / "context")
    hidden = ("tests", "run*.sh")
    root = _copied(_followed("FROM a\nCOPY . /x/\n", context, hidden=hidden).target, tmp_path / "root")
    assert _files(root) == {"x/run1.sh": "1"}
    (context / "near").symlink_to("tests")
    for source in ("tests", "near", "near/t.py", "n*/*"):
        with pytest.raises(KoderzError, match=rf"line 2: .* has {re.escape(source)}, but"):
            _followed(f"FROM a\nCOPY {source} /tests/\n", context, hidden=hidden)


def test_copies_keep_modes_times_and_links(tmp_path: Path) -> None:
    context = _laid({"d/run.sh": {"text": "r", "mode": "750"}, "d/in/x": {"text": "x", "mode": "600"}}, tmp_path / "c")
    (context / "d/in/far").symlink_to("/etc/hostname")
    (context / "near").symlink_to("d/run.sh")
    os.utime(context / "d/in/x", (1, 978307200))
    (context / "d/in").chmod(0o700)
    os.utime(context / "d/in", (1, 1012615322))
    text = (
        "FROM a\nCOPY d /made/deep/e\nCOPY near /made/\nCOPY --chmod=u=rwX,go= near /m\nCOPY <<x /made/\nhi $HOME.\nx\n"
    )
    root = _copied(_followed(text, context).target, tmp_path / "root")
    made = root / "made/deep/e"

    def mode(path: Path) -> str:
        return f"{stat.S_IMODE(path.lstat().st_mode):o}"

    assert [mode(path) for path in (root / "made", made, made / "run.sh", made / "in", made / "in/x")] == [
        "755",
        "755",
        "750",
        "700",
        "600",
    ]
    assert (int((made / "in").stat().st_mtime), int((made / "in/x").stat().st_mtime)) == (1012615322, 978307200)
    assert str((made / "in/far").readlink()) == "/etc/hostname"
    assert not (root / "made/near").is_symlink()
    assert ((root / "made/near").read_text(), mode(root / "m")) == ("r", "700")
    assert ((root / "made/x").read_text(), mode(root / "made/x")) == ("hi .\n", "644")


def test_links_of_the_root_are_followed_inside_of_it(tmp_path: Path) -> None:
    context = _laid({"notes.txt": "n", "d/etc/x": "x", "d/f": "f"}, tmp_path / "context")
    real, root, outside = tmp_path / "real", tmp_path / "root", tmp_path / "outside"
    (real / "usr/bin").mkdir(parents=True)
    root.symlink_to(real)
    outside.mkdir()
    (outside / "f").write_text("outside")
    (root / "bin").symlink_to("usr/bin")
    (root / "etc").symlink_to(outside)
    (root / "f").symlink_to(outside / "f")
    text = "FROM a\nCOPY notes.txt /bin\nCOPY d /\nCOPY notes.txt /etc/../etc/deep/\nWORKDIR /etc/made\n"
    _copied(_followed(text, context).target, root)
    assert _files(outside) == {"f": "outside"}
    inside = str(outside).lstrip("/")
    assert (root / "usr/bin/notes.txt").read_text() == "n"
    assert (root / "f").read_text() == "f"
    assert not (root / "f").is_symlink()
    assert _files(root / inside) == {"deep/notes.txt": "n", "x": "x"}
    assert (root / inside / "made").is_dir()


def test_ignored_folder_over_a_link_stays_inside_of_the_root(tmp_path: Path) -> None:
    context = _laid({"d/cache/x": "x", ".dockerignore": "d/cache\n!d/cache/x\n"}, tmp_path / "context")
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "cache").symlink_to(outside)
    _copied(_followed("FROM a\nCOPY d /\n", context).target, root)
    assert _files(outside) == {}
    assert (root / str(outside).lstrip("/") / "x").read_text() == "x"


def test_wildcards_are_of_go_and_take_no_long_time(tmp_path: Path) -> None:
    files = ("a1.txt", "a2.txt", "b1.md", "sub/a1.txt", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "[x].y")
    context = _laid(dict.fromkeys(files, "x"), tmp_path / "context")

    def sources(pattern: str, *more: str) -> tuple[str, ...]:
        _laid(dict.fromkeys(more, "x"), context)
        step = _followed(f"FROM a\nCOPY {pattern} /x/\n", context).target.steps[0]
        assert isinstance(step, Copy)
        return step.sources

    assert sources("a[1-2].*") == ("a1.txt", "a2.txt")
    assert sources("[^a]*.md") == ("b1.md",)
    assert sources("*/a?.txt") == ("sub/a1.txt",)
    assert sources("[[]x].y") == ("[x].y",)
    assert sources("[\\\\d]*.txt", "d.txt") == ("d.txt",)  # an escape is none of a regular expression
    with pytest.raises(KoderzError, match="there is no"):
        sources("a*" * 60 + "b")


def _member(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname, found.mode = kind, target, 0o755
    return found


def test_archives_are_unpacked_by_add_alone(tmp_path: Path) -> None:
    links = [_member("d", tarfile.DIRTYPE), _member("s", tarfile.SYMTYPE, "a"), _member("h", tarfile.LNKTYPE, "a")]
    context = _laid({"plain.gz": "no archive", "zeros": "\0" * 10240}, tmp_path / "context")
    (context / "pack.txz").write_bytes(_packed({"a": "1", "d/b": "2"}, *links, how="w:xz"))
    text = "FROM a\nADD pack.txz plain.gz zeros /x/\nADD --unpack=false pack.txz /y/\nCOPY pack.txz /z/\n"
    root = _copied(_followed(text, context).target, tmp_path / "root")
    assert sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir()) == [
        *("x/a", "x/d/b", "x/h", "x/plain.gz", "x/s", "x/zeros", "y/pack.txz", "z/pack.txz"),
    ]
    assert (root / "x/h").read_text() == "1"
    assert str((root / "x/s").readlink()) == "a"
    assert (stat.S_IMODE((root / "x/a").stat().st_mode), int((root / "x/a").stat().st_mtime)) == (0o640, 978307200)


def test_archive_of_impossible_times_is_unpacked(tmp_path: Path) -> None:
    context, found = _laid({}, tmp_path / "context"), _member("d", tarfile.DIRTYPE)
    found.pax_headers = {"mtime": "1e300"}
    (context / "p.tar").write_bytes(_packed({}, found, how="w"))
    root = _copied(_followed("FROM a\nADD p.tar /x/\n", context).target, tmp_path / "root")
    assert (root / "x/d").stat().st_mtime == 0


@pytest.mark.parametrize(
    "members",
    [
        [_member("../out", tarfile.REGTYPE)],
        [_member("s", tarfile.SYMTYPE, "/"), _member("s/../../out", tarfile.REGTYPE)],
        [_member("h", tarfile.LNKTYPE, "../../../etc/hostname")],
    ],
)
def test_archive_that_leaves_its_folder_is_refused(tmp_path: Path, members: list[tarfile.TarInfo]) -> None:
    context = _laid({}, tmp_path / "context")
    (context / "p.tar").write_bytes(_packed({}, *members, how="w"))
    build = _followed("FROM a\nADD p.tar /x/\n", context)
    with pytest.raises(KoderzError, match=r"p\.tar is damaged, or can't be read"):
        _copied(build.target, tmp_path / "root")
    assert {path.name for path in tmp_path.iterdir()} == {"context", "root"}


def test_archive_is_unpacked_through_links_inside_of_the_root(tmp_path: Path) -> None:
    context, root = _laid({}, tmp_path / "context"), tmp_path / "root"
    link = _member("s", tarfile.SYMTYPE, str(tmp_path))
    (context / "p.tar").write_bytes(_packed({}, link, _member("s/out", tarfile.REGTYPE), how="w"))
    _copied(_followed("FROM a\nADD p.tar /x/\n", context).target, root)
    assert not (tmp_path / "out").exists()
    assert (root / str(tmp_path).lstrip("/") / "out").is_file()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("COPY notes.txt /d/x\nCOPY d /d/x", "line 3: .*isn't a folder"),
        ("COPY d /d\nCOPY d/notes.txt notes.txt /d/notes.txt/", "line 3: .*isn't a folder"),
        ("COPY --from=0 *.none /", "line 3: there is no .* in the stage 0"),
    ],
)
def test_copy_that_cannot_be_done_names_its_line(tmp_path: Path, text: str, why: str) -> None:
    context = _laid({"notes.txt": "n", "d/notes.txt": "n"}, tmp_path / "context")
    begin = "FROM tools:1\nFROM tools:1\n" if "--from" in text else "FROM tools:1\n"
    with pytest.raises(KoderzError, match=why):
        _copied(_followed(begin + text, context).target, tmp_path / "root", tmp_path / "context")
