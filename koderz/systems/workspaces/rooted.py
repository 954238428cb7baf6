"""Commands whose root is an image of a store, with a folder of the place's own over it that takes all changes."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from koderz.errors import Fault, KoderzError
from koderz.sandbox.workspace import Command
from koderz.systems.workspaces import userland
from koderz.systems.workspaces.folders import TREE
from koderz.systems.workspaces.images import Account, UnpackedImage
from koderz.systems.workspaces.inside.roots import Entry

UPPER = "upper"
"""The folder of a place that has what was changed in the root of its commands; see `images.tree`."""

_WORK = "work"  # the kernel's own
_HOSTED = "hosted"  # the changes in folders of this machine, while a command runs
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
        """See `inside.roots.furnish_image`."""
        return [str(path.absolute()) for path in (*self.image.layers.tops, self.upper, self.work)]

    @property
    def hosted(self) -> list[list[str]]:
        """See `inside.roots.furnish_image`."""
        every = []
        for path in self.image.hosted:
            own = self._aside(path)
            below = (folder / path.lstrip("/") for folder in self.image.layers.folders)
            folders = [
                *(folder.absolute() for folder in below if folder.is_dir()),
                path,
                own / UPPER,
                own / _WORK,
            ]
            every.append([path, *map(str, folders)])
        return every

    @contextmanager
    def at_work(self) -> Iterator[list[str]]:
        """The command runs within. Takes the mount points that were made for it, which are no changes of its own."""
        made: list[str] = []
        # Within another folder that takes changes overlayfs calls the result undefined, so these lie apart meanwhile.
        for path in self.image.hosted:
            own, changed = self._aside(path), self.upper / path.lstrip("/")
            (own / _WORK).mkdir(parents=True, exist_ok=True)
            if changed.is_dir() and not (own / UPPER).is_dir():
                changed.rename(own / UPPER)
            elif not (own / UPPER).is_dir():
                (own / UPPER).mkdir()
                (own / UPPER).chmod(0o755)
        try:
            yield made
        finally:
            for path in self.image.hosted:
                changed = self.upper / path.lstrip("/")
                with contextlib.suppress(FileNotFoundError):
                    changed.rmdir()
                changed.parent.mkdir(parents=True, exist_ok=True)
                (self._aside(path) / UPPER).rename(changed)
            self._remove(made)

    def _aside(self, path: str) -> Path:
        return (self.upper.parent / _HOSTED / path.strip("/").replace("/", "-")).absolute()

    def environment(self, command: Command) -> dict[str, str]:
        """The variables of a command: the image's, and over them the command's own."""
        own = {"HOME": self.account.home, **_VARIABLES, **self.image.environment}
        return own | dict(command.environment)

    def entries(self, command: Command, place: Path) -> list[Entry]:
        """Mounts that it sees beside the image."""
        checkout = Entry(
            "read" if command.read_only else "write", str(place / TREE[0]), command.checkout
        )
        mounts = [
            Entry("write" if mount.writable else "read", str(mount.source.absolute()), mount.target)
            for mount in command.mounts
        ]
        if command.channel:
            mounts.append(
                Entry("read", str(command.channel.folder.absolute()), command.channel.target)
            )
        if self.image.hosted and command.python:
            mounts = [*userland.prefixes(userland.python()), *mounts]
        by_target = {
            entry.target: entry for entry in ([] if command.in_image else [checkout]) + mounts
        }
        return sorted(by_target.values(), key=lambda entry: entry.target.count("/"))

    def _remove(self, made: list[str]) -> None:
        for path in reversed(made):
            here = self.upper / path.lstrip("/")
            with contextlib.suppress(OSError):  # it holds something now, or is gone
                if (
                    here.parent.resolve()
                    != self.upper.resolve() / path.lstrip("/").rpartition("/")[0]
                ):
                    continue  # a link that the command made leads to this machine's own files
                if here.is_dir() and not here.is_symlink():
                    here.rmdir()
                elif not here.lstat().st_size:
                    here.unlink()
