"""Contexts: named clusters, in one file of the user. The command line writes it, every client reads it.

    $XDG_CONFIG_HOME/comet/contexts.toml, by default below ~/.config; for its owner alone, replaced whole

    current = "prod"

    [context."prod"]
    bootstrap = "broker-1:9092,broker-2:9092"
    ca = "/home/ann/prod/ca.pem"

The settings of a context are those of `comet.settings.client.VARIABLES`. Secrets stay in files of their own, which the
context names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from comet.errors import InvalidArgument
from comet.security.files import read_secret, write_file
from comet.settings.client import VARIABLES

NO_CONTEXT: Final = "none"
FILE_BYTES_MAX: Final = 256 * 1024
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(slots=True)
class Contexts:
    """The content of the file."""

    file: Path
    current: str = ""
    settings: dict[str, dict[str, str]] = field(default_factory=dict)  # by the context's name

    def of(self, name: str, named_by: str) -> Mapping[str, str]:
        """The settings of a context. Raises InvalidArgument for an unknown one, with the place that names it."""
        if name in self.settings:
            return self.settings[name]
        known = f"use one of {', '.join(self.settings)}" if self.settings else "add it: comet context add"
        raise InvalidArgument(f"unknown context {name!r} ({named_by}); {known}")


def contexts_file() -> Path:
    """Its path. Raises InvalidArgument if the user has no home."""
    configured = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    try:
        folder = configured if configured.is_absolute() else Path.home() / ".config"
    except RuntimeError:
        raise InvalidArgument("the user has no home folder: set XDG_CONFIG_HOME") from None
    return folder / "comet" / "contexts.toml"


def read_contexts() -> Contexts:
    """The user's contexts; none without the file. Raises InvalidArgument for a file that is malformed, or of others."""
    try:
        file = contexts_file()
    except InvalidArgument:
        return Contexts(Path())
    return _read(file)


@contextmanager
def changed_contexts() -> Iterator[Contexts]:
    """The user's contexts, which are stored if the block succeeds. One process at a time."""
    file = contexts_file()
    with _locked(file):
        contexts = _read(file)
        yield contexts
        data = _text(contexts).encode()
        if len(data) > FILE_BYTES_MAX:
            raise InvalidArgument(f"{file} would be larger than {FILE_BYTES_MAX} bytes: remove contexts")
        write_file(file, data, secret=True)


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Makes the folder if it is missing, and holds its lock."""
    with ExitStack() as stack:
        try:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if os.name != "nt":  # it has no descriptors of folders
                import fcntl

                folder = os.open(file.parent, os.O_RDONLY)
                stack.callback(os.close, folder)
                fcntl.flock(folder, fcntl.LOCK_EX)
        except OSError as error:
            raise InvalidArgument(f"cannot write {file}: {error.strerror or error}") from None
        yield


def check_name(name: str) -> None:
    """Raises InvalidArgument for a name that a context cannot have."""
    if not _NAME.fullmatch(name) or name == NO_CONTEXT:
        raise InvalidArgument(
            f"{name!r} cannot name a context: use letters, digits, '.', '_' and '-', 63 at most, and not {NO_CONTEXT!r}"
        )


def _read(file: Path) -> Contexts:
    if not _exists(file):
        return Contexts(file)
    import tomllib  # here: most users have no such file

    data = read_secret(file, FILE_BYTES_MAX, owned=True)
    try:
        table = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{file} is not valid TOML: {error}") from None
    try:
        return _checked(file, table)
    except InvalidArgument as error:
        raise InvalidArgument(f"{file}: {error.message}") from None


def _exists(file: Path) -> bool:
    """False also if its folder is closed to this user: a service may run with the home of another."""
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False
    except OSError as error:
        raise InvalidArgument(f"cannot read {file}: {error.strerror or error}") from None
    return True


def _checked(file: Path, table: Mapping[str, Any]) -> Contexts:
    for name in table.keys() - {"current", "context"}:
        raise InvalidArgument(f"unknown field {name!r}; use current, or a table [context.NAME]")
    current, contexts = table.get("current", ""), table.get("context", {})
    if not isinstance(current, str) or not isinstance(contexts, dict):
        raise InvalidArgument("current is the name of a context, and each context a table [context.NAME]")
    found = Contexts(file, current)
    for name, settings in contexts.items():
        check_name(name)
        if not isinstance(settings, dict):
            raise InvalidArgument(f"context {name!r} is not a table: write [context.{name}]")
        for setting, value in settings.items():
            _check_setting(name, setting, value)
        if "bootstrap" not in settings:
            raise InvalidArgument(f"context {name!r} has no bootstrap, the addresses of its brokers")
        found.settings[name] = settings
    return found


def _check_setting(context: str, name: str, value: object) -> None:
    if name not in VARIABLES:
        near = get_close_matches(name.replace("-", "_"), VARIABLES, 1)
        advice = f"did you mean {near[0]}?" if near else f"use one of {', '.join(VARIABLES)}"
        raise InvalidArgument(f"unknown field {name!r} of context {context!r}; {advice}")
    if not isinstance(value, str) or not value or not value.isprintable():
        raise InvalidArgument(f"{name} of context {context!r} is a text of one line")


def check_settings(context: str, settings: Mapping[str, str]) -> None:
    """Raises InvalidArgument for settings that the file could not hold."""
    for name, value in settings.items():
        _check_setting(context, name, value)


def _text(contexts: Contexts) -> str:
    lines = ["# The clusters that `comet` knows: see `comet context --help`."]
    lines += [f"current = {_quoted(contexts.current)}"] if contexts.current else []
    for name, settings in contexts.settings.items():
        lines += ["", f"[context.{_quoted(name)}]"]
        lines += [f"{setting} = {_quoted(value)}" for setting, value in settings.items()]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A string of TOML: for printable text the same as in JSON."""
    import json

    return json.dumps(text, ensure_ascii=False)
