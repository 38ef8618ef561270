"""The children of one program, with a folder that no end of the program leaves behind.

FOLDER/NAME.log    the output of a child
FOLDER/tmp         temporary files of all children; removed at the end, also after a kill
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from comet.processes.child import Child, python_module, stop_in_order
from comet.processes.shared_folder import LOCK, Share, remove
from comet.processes.signals import held_back
from comet.processes.tied import Tie

STOP_S: Final = 12.0


class Crew:
    """Owned by one program, and used by its main thread. The folder is removed at the end; with `keep`, the logs stay.

    Each child is tied by its standard input, so that it does not outlive the program; the last one to end removes the
    folder if the program was killed.
    """

    def __init__(self, prefix: str, *variables: str, stop_s: float = STOP_S) -> None:
        """`prefix` begins the folder's name. TMPDIR, and further environment `variables`, lead to its temporary part
        in all children. A child that has not ended `stop_s` after SIGTERM is killed."""
        self.keep = False
        self._stop_s = stop_s
        self._prefix = prefix
        self._variables = ("TMPDIR", *variables)
        self._folder: Path | None = None
        self._share: Share | None = None
        self._tiers: dict[Child, int] = {}

    @property
    def folder(self) -> Path:
        """The folder of the children; usable within the block."""
        assert self._folder is not None
        return self._folder

    @property
    def temporary(self) -> Path:
        return self.folder / "tmp"

    def start(self, name: str, module: str, *arguments: str, piped: bool = False, tier: int = 1) -> Child:
        """Starts a module. `piped`: its standard output is a pipe to us instead of its file. Children of a higher tier
        end first."""
        child = Child(
            name,
            python_module(module, *arguments),
            log=self.folder / f"{name}.log",
            piped=piped,
            environment=os.environ | dict.fromkeys(self._variables, str(self.temporary)),
            tie=Tie.STDIN,
            folder=self.folder,
        )
        with held_back():
            self._tiers[child] = tier
            child.start()
        return child

    def __enter__(self) -> Self:
        try:
            with held_back():
                self._folder = Path(tempfile.mkdtemp(prefix=self._prefix))
                self.temporary.mkdir()
                self._share = Share(self.folder, begins=True)
        except BaseException:
            self._clear()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            stop_in_order(self._tiers, within_s=self._stop_s)
        finally:
            self._clear()

    def _clear(self) -> None:
        if self._share is not None:
            self._share.close()
        if self._folder is None:
            return
        if self.keep:
            remove(self.temporary)
            (self.folder / LOCK).unlink(missing_ok=True)
        else:
            remove(self.folder)
