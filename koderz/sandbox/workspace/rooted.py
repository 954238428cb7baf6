"""Commands whose root is an image of a store, with a folder of the place's own over it that takes all changes."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from koderz.errors import Fault, KoderzError
from koderz.sandbox.images import Account, UnpackedImage
from koderz.sandbox.linux.mounts import Entry
from koderz.sandbox.workspace import Command
from koderz.sandbox.workspace.folders import TREE

UPPER = "upper"
"""The folder of a place that has what was changed in the root of its commands; see `koderz.sandbox.images.changes`."""

_WORK = "work"  # the kernel's own
_VARIABLES = {"LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}


@dataclass(frozen=True, slots=True)
class Root:
    """The root of one command."""

    image: UnpackedImage
    account: Account
    upper: Path
    work: Path

    @classmethod
    def of(cls, image: UnpackedImage, command: Command, place: Path) -> Root:
        """Makes the folders that aren't there yet. Raises Fault for a user that the image doesn't have."""
        try:
            account = image.account(command.user)
        except KoderzError as error:
            raise Fault(str(error), cause="sandbox") from None
        upper, work = place / UPPER, place / _WORK
        if not upper.is_dir():
            upper.mkdir()
            upper.chmod(stat.S_IMODE(image.root.stat().st_mode))
        work.mkdir(exist_ok=True)
        return cls(image, account, upper, work)

    @property
    def overlay(self) -> list[str]:
        """See `koderz.sandbox.linux.mounts.furnish_image`."""
        return [str(path.absolute()) for path in (self.image.root, self.upper, self.work)]

    def environment(self, command: Command) -> dict[str, str]:
        """The variables of a command: the image's, and over them the command's own."""
        own = {"HOME": self.account.home, **_VARIABLES, **self.image.environment}
        return own | dict(command.environment)

    def entries(self, command: Command, place: Path) -> list[Entry]:
        """Mounts that it sees beside the image."""
        checkout = Entry("read" if command.read_only else "write", str(place / TREE[0]), command.checkout)
        mounts = [
            Entry("write" if mount.writable else "read", str(mount.source.absolute()), mount.target)
            for mount in command.mounts
        ]
        if command.channel:
            mounts.append(Entry("read", str(command.channel.folder.absolute()), command.channel.target))
        by_target = {entry.target: entry for entry in ([] if command.in_image else [checkout]) + mounts}
        return sorted(by_target.values(), key=lambda entry: entry.target.count("/"))

    def remove(self, made: Iterable[str]) -> None:
        """Removes the mount points that were made for a command, which are no changes of its own."""
        for path in reversed([*made]):
            here = self.upper / path.lstrip("/")
            with contextlib.suppress(OSError):  # it holds something now, or is gone
                if here.is_dir() and not here.is_symlink():
                    here.rmdir()
                elif not here.lstat().st_size:
                    here.unlink()
