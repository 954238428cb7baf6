"""The channel of a verifier's rewards in a container, kept by a python3 of its image (see `inside.guarded`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from koderz.sandbox import linux
from koderz.sandbox.workspace import Command, Ended, Mount
from koderz.systems.workspaces.inside import guarded

KEEPER = ("python3", "-I", "-S", "-B", "-c", guarded.BOOT)
UNKEPT = "anything: the image has no python3 (3.10 or newer) that could keep the channel of rewards"
_SEEN = [
    Mount(Path(guarded.__file__).parent, guarded.INSIDE),
    Mount(Path(linux.__file__).parent, guarded.LINUX),
]


def trial(command: Command) -> Command:
    """The command that succeeds in containers that can keep a channel."""
    return replace(command, argv=KEEPER, mounts=_SEEN, channel=None, network=False)


def kept(command: Command, place: Path) -> Command:
    """The command as one that keeps its channel."""
    channel, told = command.channel, place / "channel"
    assert channel
    told.mkdir(exist_ok=True)
    for left in told.iterdir():
        left.unlink()
    terms = place / "channel.json"
    terms.write_text(json.dumps(channel.facts()), "utf-8")
    mounts = [
        *_SEEN,
        Mount(terms, guarded.TERMS),
        Mount(told, guarded.TOLD, writable=True),
        Mount(channel.folder, guarded.LOGS, writable=True),
        Mount(channel.folder, channel.target),
    ]
    return replace(command, argv=[*KEEPER, *command.argv], mounts=[*command.mounts, *mounts])


def unkept(command: Command) -> Command:
    """The command with a folder of rewards that nobody keeps."""
    assert command.channel
    return replace(
        command,
        mounts=[
            *command.mounts,
            Mount(command.channel.folder, command.channel.target, writable=True),
        ],
    )


def with_facts(ended: Ended, place: Path) -> Ended:
    """The end of a command with the facts of its channel, which are missing if that was killed before."""
    try:
        facts: dict[str, Any] = json.loads((place / "channel/facts.json").read_text("utf-8"))
    except (OSError, ValueError):
        return ended
    loaded: Sequence[str] = facts.get("loaded", ())
    return replace(ended, loaded=loaded, refused=facts.get("refused", ()))
