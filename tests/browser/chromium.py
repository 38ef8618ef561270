"""Which Chromium the tests of pages run in: the first that runs, of those on PATH, of macOS, and Playwright's own.

`python -m tests.browser.chromium` says which, or what to do; `scripts/chromium` installs one where that fails.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from tests.programs import wrong_with

ON_PATH = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OF_MACOS = ("Google Chrome.app/Contents/MacOS/Google Chrome", "Chromium.app/Contents/MacOS/Chromium")
TO_DO = (
    "the tests of the dashboard need a Chromium: install the package chromium, or Google Chrome, or run "
    "{python} -m playwright install chromium"
)


class ChromiumNotFound(Exception):
    """There is none here that runs; the message says what to install."""


def find_chromium(own: Callable[[], str], folders: tuple[Path, ...] = ()) -> str:
    """`own` names the place of Playwright's, whether it is there or not; `folders` are those of applications."""
    folders = folders or (Path("/Applications"), Path.home() / "Applications")
    broken: list[str] = []
    found = [path for name in ON_PATH if (path := shutil.which(name))]
    found += [str(folder / name) for folder in folders for name in OF_MACOS if (folder / name).is_file()]
    for path in found:
        if not (why := wrong_with(path, "--version")):
            return path
        broken.append(why)
    path = own()
    if Path(path).is_file():
        if not (why := wrong_with(path, "--version")):
            return path
        broken.append(f"{why}; where libraries are missing: sudo {sys.executable} -m playwright install-deps chromium")
    raise ChromiumNotFound("; ".join([*broken, TO_DO.format(python=sys.executable)]))


def main() -> None:
    from playwright.sync_api import sync_playwright

    def own() -> str:
        with sync_playwright() as playwright:
            return playwright.chromium.executable_path

    try:
        print(find_chromium(own))
    except ChromiumNotFound as error:
        sys.exit(f"comet: {error}")


if __name__ == "__main__":
    main()
