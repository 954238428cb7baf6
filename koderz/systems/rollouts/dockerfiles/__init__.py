"""The stages of a Dockerfile, with their steps, environment, working folder and user, as Docker's reference has them.

Nothing is carried out here.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from koderz.errors import KoderzError
from koderz.systems.rollouts.dockerfiles.context import (
    Copy,
    Folder,
    Inline,
    changed_mode,
    ignored_by,
    require_found,
)
from koderz.systems.rollouts.dockerfiles.syntax import (
    Heredoc,
    Instruction,
    SyntaxFault,
    parse,
    replaced,
)

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The programs' folders of an image that names none."""

SHELL = ("/bin/sh", "-c")
"""By which RUN starts its command where no line of SHELL names another."""

ROOT = ("", "0", "root")
"""The names of the user who may do everything."""

_LARGEST_ENVIRONMENT = 2 << 20  # characters
_LEFT_OUT = {
    "EXPOSE": "nothing outside connects to a port",
    "HEALTHCHECK": "no container is kept waiting",
    "LABEL": "it changes no file",
    "MAINTAINER": "it changes no file",
    "ONBUILD": "it is for images built on this one",
    "STOPSIGNAL": "no container is kept waiting",
    "VOLUME": "its folder is one like others",
}
_ADDRESS = re.compile(r"(?:https?|ftp|git|ssh|s3)://|git@", re.IGNORECASE)
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm"}


class BaseImage(Protocol):
    """An image that a stage begins with, such as a `StoredImage`."""

    @property
    def workdir(self) -> str: ...
    @property
    def environment(self) -> Mapping[str, str]: ...
    @property
    def user(self) -> str: ...


@dataclass(frozen=True, slots=True)
class RunCommand:
    """A command of RUN."""

    where: str  # the Dockerfile, and the line
    text: str  # the instruction as it is written
    # as Docker runs it: `/bin/sh -c …`, another SHELL, or the words of the JSON form
    command: tuple[str, ...]
    environment: Mapping[str, str]  # ENV and ARG; HOME is that of its user, unless it is here
    workdir: str
    user: str  # empty: root
    is_offline: bool = False  # whether --network=none keeps the network from it


BuildStep = RunCommand | Copy | Folder


@dataclass(frozen=True, slots=True)
class BuildStage:
    """A stage of a Dockerfile: what it begins with, its steps, and the configuration that it ends with."""

    number: int
    name: str = ""  # in lower case; empty: it has none
    image: str = ""  # that it begins with: `scratch` is the empty one; empty: an earlier stage
    parent: int | None = None  # the number of that stage
    is_known: bool = True  # whether the environment and working folder of the image were at hand
    steps: tuple[BuildStep, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)  # the whole, with the image's
    # those of its variables that lines of ENV set
    stated: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/"
    has_workdir: bool = False  # whether a line of WORKDIR sets it
    user: str = ""
    shell: tuple[str, ...] = SHELL
    cmd: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    arguments: Mapping[str, str] = field(default_factory=dict)  # ARG


@dataclass(frozen=True, slots=True)
class Build:
    """The way to the image of a Dockerfile: its last stage, and those that it needs, in their order."""

    stages: tuple[BuildStage, ...]
    notes: tuple[str, ...] = ()  # what is left out, a line each
    fault: KoderzError | None = None  # the first line that can't be followed

    @property
    def target(self) -> BuildStage:
        """The stage whose files and configuration the image has."""
        return self.stages[-1]

    @property
    def base(self) -> str:
        """The image that the last stage goes back to."""
        numbered = {stage.number: stage for stage in self.stages}
        stage = self.target
        while stage.parent is not None:
            stage = numbered[stage.parent]
        return stage.image


def follow(
    text: str,
    dockerfile: Path,
    images: Callable[[str], BaseImage | None],
    arguments: Mapping[str, str] | None = None,
    *,
    context: Path | None = None,
    hidden: Sequence[str] = (),
    is_strict: bool = True,
) -> Build:
    """The stages and steps of a Dockerfile that is built with the files of a folder, by default its own.

    `images` finds the images that stages begin with, `arguments` are values of ARG, `hidden` are paths of the folder
    that no image may have. Raises KoderzError with file, line and remedy for what Docker would refuse, and for what
    can't be followed without a network; without `is_strict`, the build's `fault` says that.
    """
    folder = context or dockerfile.parent
    ignored = ignored_by(dockerfile, hidden)
    found = _Follower(dockerfile, folder, images, arguments or {}, ignored).build(
        parse(text, str(dockerfile))
    )
    if found.fault and is_strict:
        raise found.fault
    return found


class _Follower:
    """The stages of one Dockerfile, in the order of their lines."""

    def __init__(
        self,
        dockerfile: Path,
        context: Path,
        images: Callable[[str], BaseImage | None],
        arguments: Mapping[str, str],
        ignored: tuple[str, ...],
    ) -> None:
        self.file, self.context, self.images, self.ignored = (
            str(dockerfile),
            context,
            images,
            ignored,
        )
        machine = _MACHINES.get(os.uname().machine, os.uname().machine)
        platform = {"PLATFORM": f"linux/{machine}", "OS": "linux", "ARCH": machine, "VARIANT": ""}
        of_platform = {
            f"{kind}{name}": value
            for kind in ("TARGET", "BUILD")
            for name, value in platform.items()
        }
        self.arguments = arguments  # those that are given
        self.before_from = {**of_platform}  # ARG before the first FROM, for lines of FROM
        self.stages: list[BuildStage] = []
        self.named: dict[str, int] = {}
        self.faults: dict[int, KoderzError] = {}
        self.notes: dict[int, list[str]] = {}

    def build(self, instructions: Sequence[Instruction]) -> Build:
        """The last stage and those that it needs. An error in another is none, since nobody builds that."""
        for of in instructions:
            number = len(self.stages) - (of.name != "FROM")
            try:
                if of.name == "FROM":
                    self.stages.append(BuildStage(number))
                    self.stages[number] = stage = self.begin(of, number)
                    self.named |= {stage.name: number} if stage.name else {}
                elif number >= 0:
                    self.stages[number] = self.take(of, self.stages[number])
                elif of.name == "ARG":
                    self.before_from |= self.args(of, self.before_from, {})
                else:
                    raise SyntaxFault("it stands before FROM; begin with FROM IMAGE")
            except (SyntaxFault, KoderzError) as error:
                where = "" if str(error).startswith(self.at(of)) else f"{self.at(of)}: {of.name}: "
                fault = KoderzError(f"{where}{error}")
                if number < 0:
                    raise fault from None
                self.faults.setdefault(number, fault)
        if not self.stages:
            raise KoderzError(f"{self.file} has no FROM; begin with FROM IMAGE")
        needed, waiting = set[int](), [len(self.stages) - 1]
        while waiting:
            stage = self.stages[waiting.pop()]
            if stage.number not in needed:
                needed.add(stage.number)
                others = [
                    stage.parent,
                    *(step.stage for step in stage.steps if isinstance(step, Copy)),
                ]
                waiting += [each for each in others if each is not None]
        notes = [note for number in sorted(needed) for note in self.notes.get(number, ())]
        faults = [self.faults[number] for number in sorted(needed) if number in self.faults]
        return Build(
            tuple(self.stages[number] for number in sorted(needed)), tuple(notes), *faults[:1]
        )

    def at(self, of: Instruction) -> str:
        return f"{self.file}, line {of.line}"

    def note(self, of: Instruction, what: str, why: str) -> None:
        self.notes.setdefault(len(self.stages) - 1, []).append(
            f"line {of.line}: {what} is left out: {why}"
        )

    def begin(self, of: Instruction, number: int) -> BuildStage:
        """A stage as it is after FROM."""
        if len(of.words) not in (1, 3) or (len(of.words) == 3 and of.words[1].upper() != "AS"):
            raise SyntaxFault("write FROM IMAGE, or FROM IMAGE AS NAME")
        name = of.words[2].lower() if len(of.words) == 3 else ""
        if name and not re.fullmatch(r"[a-z][a-z0-9_.-]*", name):
            raise SyntaxFault(
                f"{name[:40]!r} is no name of a stage; it has letters, digits, _, . and -"
            )
        for flag in of.flags:
            key, _, value = flag.partition("=")
            if key != "--platform":
                raise SyntaxFault(f"there is no option {key[:40]}; there is --platform")
            if value not in ("linux", self.before_from["TARGETPLATFORM"]) and "$" not in value:
                self.note(of, flag, "the image is taken as it is here")
        base = replaced(of.words[0], self.before_from, of.escape)
        if not base:
            raise SyntaxFault(f"{of.words[0]} is empty; name an image, or give its ARG a value")
        if (parent := self.named.get(base.lower())) is not None:
            return replace(
                self.stages[parent], number=number, name=name, parent=parent, image="", steps=()
            )
        environment, stage = {"PATH": PATH}, BuildStage(number, name, base)
        if base == "scratch":
            return replace(stage, environment=environment)
        if (image := self.images(base)) is None:
            return replace(stage, environment=environment, is_known=False)
        environment |= image.environment
        return replace(
            stage, environment=environment, workdir=image.workdir or "/", user=image.user
        )

    def take(self, of: Instruction, stage: BuildStage) -> BuildStage:
        """A stage as it is after an instruction."""
        values = {**stage.arguments, **stage.environment}
        if of.name == "ENV":
            stated = _limited(dict(self.pairs(of, values)), stage.stated)
            return replace(stage, environment={**stage.environment, **stated}, stated=stated)
        if of.name == "ARG":
            return replace(
                stage, arguments=_limited(self.args(of, values, self.before_from), stage.arguments)
            )
        if of.name == "WORKDIR":
            wanted = replaced(of.text, values, of.escape)
            path = _absolute(stage.workdir, wanted).rstrip("/") or "/"
            return replace(
                stage,
                workdir=path,
                has_workdir=True,
                steps=(*stage.steps, Folder(self.at(of), path)),
            )
        if of.name == "USER":
            user = replaced(of.text, values, of.escape)
            if not user:
                raise SyntaxFault(f"{of.text[:40]} is empty; name a user")
            return replace(stage, user=user)
        if of.name == "RUN":
            return replace(stage, steps=(*stage.steps, self.run(of, stage, values)))
        if of.name in ("COPY", "ADD"):
            return replace(stage, steps=(*stage.steps, self.copy(of, stage, values)))
        if of.name == "SHELL":
            if not of.is_json or not of.words:
                raise SyntaxFault('its words are in the JSON form: SHELL ["/bin/bash", "-c"]')
            return replace(stage, shell=of.words)
        if of.name in ("CMD", "ENTRYPOINT"):
            words = of.words if of.is_json else (*stage.shell, of.text)
            return (
                replace(stage, cmd=words) if of.name == "CMD" else replace(stage, entrypoint=words)
            )
        self.note(of, of.name, _LEFT_OUT[of.name])
        return stage

    def pairs(self, of: Instruction, values: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """The variables that ENV sets. All are replaced with the values from before it."""
        pairs = [word.partition("=") for word in of.words]
        if "=" not in of.words[0]:  # the older form: ENV NAME all that follows
            name, *rest = re.split(r"\s+", of.text, maxsplit=1)
            if not rest:
                raise SyntaxFault(f"{name[:40]} has no value; write ENV {name[:40]}=VALUE")
            pairs = [(name, "=", rest[0])]
        for name, is_set, value in pairs:
            if not is_set:
                raise SyntaxFault(
                    f"{name[:40]!r} is no NAME=VALUE; put values with blanks into quotes"
                )
            if not (key := replaced(name, values, of.escape)):
                raise SyntaxFault("a variable has no name")
            yield key, replaced(value, values, of.escape)

    def args(
        self, of: Instruction, values: Mapping[str, str], outer: Mapping[str, str]
    ) -> dict[str, str]:
        """The values of ARG: those that are given, else its own, else those from before FROM. Some have none."""
        found = {}
        for word in of.words:
            name, is_set, default = word.partition("=")
            name = replaced(name, values, of.escape)
            if name in self.arguments:
                found[name] = self.arguments[name]
            elif is_set:
                found[name] = replaced(default, values, of.escape)
            elif name in outer:
                found[name] = outer[name]
        return found

    def run(self, of: Instruction, stage: BuildStage, values: Mapping[str, str]) -> RunCommand:
        offline = False
        for flag in of.flags:
            key, _, value = flag.partition("=")
            kind = (re.findall(r"(?:^|,)type=(\w+)", value) or ["bind"])[0]
            if key == "--network" and value in ("none", "default"):
                offline = value == "none"
            elif key in ("--network", "--security") or (
                key == "--mount" and kind in ("cache", "tmpfs")
            ):
                self.note(of, flag, "the command sees the usual folders and network")
            elif (
                key == "--mount"
                and kind in ("secret", "ssh")
                and not re.search(r"required(?!=false)", value)
            ):
                self.note(of, flag, "no secret is given")
            else:
                raise SyntaxFault(f"{flag[:80]} isn't followed; use --sandbox docker")
        text = of.text
        if of.is_json and not of.words:
            raise SyntaxFault("an empty list is no command")
        if of.heredocs and of.heredocs[0].word == text:
            text = _script(of.heredocs[0].text)
        else:
            text += "".join(f"\n{each.content}{each.name}" for each in of.heredocs)
        command = of.words if of.is_json else (*stage.shell, text)
        where, user = self.at(of), "" if stage.user.partition(":")[0] in ROOT else stage.user
        return RunCommand(
            where, f"RUN {of.text}", command, dict(values), stage.workdir, user, offline
        )

    def copy(self, of: Instruction, stage: BuildStage, values: Mapping[str, str]) -> Copy:
        options = dict(flag.removeprefix("--").partition("=")[::2] for flag in of.flags)
        for name in options:
            if name not in ("from", "chown", "chmod", "link", "checksum", "keep-git-dir", "unpack"):
                raise SyntaxFault(f"--{name[:40]} isn't followed; use --sandbox docker")
        chosen = {name: replaced(value, values, of.escape) for name, value in options.items()}
        mode = chosen.get("chmod", "")
        if mode:
            try:
                changed_mode(mode, 0, is_folder=False)
            except ValueError as error:
                raise SyntaxFault(str(error)) from None
        if chosen.get("chown", "0").partition(":")[0] not in ROOT:
            self.note(of, f"--chown={chosen['chown']}", "there is one user")
        if len(of.words) < 2:
            raise SyntaxFault(f"write {of.name} SOURCE… TARGET")
        *sources, written = of.words
        written = replaced(written, values, of.escape)
        target = _absolute(stage.workdir, written)
        opened = [each.word for each in of.heredocs]
        files = [replaced(source, values, of.escape) for source in sources if source not in opened]
        step = Copy(
            self.at(of),
            f"{of.name} {of.text}",
            tuple(files),
            target,
            inline=tuple(_inline(each, values, of.escape) for each in of.heredocs),
            owner=chosen.get("chown", ""),
            mode=mode,
            unpacks=of.name == "ADD" and chosen.get("unpack") != "false",
        )
        if any(_ADDRESS.match(source) for source in files):
            raise SyntaxFault(
                "addresses need a network; put the file beside the Dockerfile, or use --sandbox docker"
            )
        if origin := chosen.get("from", ""):
            step = self.of_another(step, origin, stage.number)
        else:
            found = [
                path
                for name in files
                for path in require_found(step.where, name, self.context, self.ignored)
            ]
            step = replace(step, sources=tuple(found), context=self.context, ignored=self.ignored)
        if len(step.sources) + len(step.inline) > 1 and not target.endswith("/"):
            raise SyntaxFault(f"several files go to {written[:80]}, which has to end with /")
        return step

    def of_another(self, step: Copy, origin: str, number: int) -> Copy:
        """A COPY from a stage, or from an image."""
        if step.inline:
            raise SyntaxFault("--from has no files in the Dockerfile itself")
        stage = int(origin) if re.fullmatch(r"\d{1,5}", origin) else self.named.get(origin.lower())
        if stage is not None and stage >= number:
            raise SyntaxFault(
                f"--from={origin} isn't a stage before this one; copy from one that is, or from an image"
            )
        return replace(step, stage=stage, image="" if stage is not None else origin)


def _limited(variables: Mapping[str, str], others: Mapping[str, str]) -> dict[str, str]:
    """Variables with those from before. Raises SyntaxFault for more than any program can have."""
    found = {**others, **variables}
    if sum(map(len, found.values())) > _LARGEST_ENVIRONMENT:
        raise SyntaxFault("its variables have more than 2 MB, with which Linux starts no program")
    return found


def _absolute(workdir: str, path: str) -> str:
    """A path seen from a working folder, normalised; it ends with / where it says that it is a folder."""
    joined = posixpath.normpath(posixpath.join(workdir, path))
    joined = "/" + joined.lstrip("/")
    is_folder = path in ("", ".") or path.endswith(("/", "/."))
    return joined if joined == "/" or not is_folder else f"{joined}/"


def _inline(heredoc: Heredoc, values: Mapping[str, str], escape: str) -> Inline:
    name, text = posixpath.basename(heredoc.name), heredoc.text
    if name in ("", ".", ".."):
        raise SyntaxFault(f"<<{heredoc.name[:40]} can't be the name of a file")
    return Inline(
        name, text if heredoc.is_quoted else replaced(text, values, escape, has_quotes=False)
    )


def _script(text: str) -> str:
    """The command that runs a script of RUN <<EOF: the text itself, or the program that its first line names."""
    if not text.startswith("#!"):
        return text
    end = "KODERZ_END"
    while end in text:
        end += "_"
    run = 'chmod 755 "$f" && "$f"; s=$?; rm -f "$f"; exit $s'
    return f"f=$(mktemp) && cat > \"$f\" <<'{end}'\n{text}{end}\n{run}"
