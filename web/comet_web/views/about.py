"""The page About: versions, settings, the user, and the holders of tokens. Pure."""

from __future__ import annotations

from comet_web.components import numbers
from comet_web.components.table import shaped
from comet_web.document import UNKNOWN, Cell, Column, Document, Row, Table
from comet_web.facts import About, Login, Package, Setting
from comet_web.page_request import ADMIN, ROLE_NAMES, PageRequest

SETTINGS = (
    Column("setting", "Setting"),
    Column("value", "Value"),
    Column("default", "Default"),
    Column("source", "Source"),
    Column("about", "Description"),
)
PACKAGES = (
    Column("package", "Package"),
    Column("version", "Version", wide=False),
    Column("licence", "Licence"),
    Column("about", "Used for"),
)
LOGINS = (Column("name", "Name"), Column("role", "Role", wide=False), Column("may", "Permissions"))
MAY = {
    1: "view everything",
    2: "view everything, write records, create topics, manage groups",
    3: "everything",
}


def view(about: About, request: PageRequest) -> Document:
    fields = {
        "version": Cell(about.version),
        "python": Cell(about.python),
        "machine": Cell(about.machine),
        "started": numbers.ago(about.started_us, about.time_us),
        "bootstrap": Cell(about.bootstrap),
        "principal": Cell("anonymous" if request.open else request.principal),
        "role": Cell(ROLE_NAMES.get(request.role, "none")),
        "may": Cell(MAY.get(request.role, "nothing")),
    }
    tables = {
        "settings": _settings(about.settings, request),
        "packages": shaped("packages", PACKAGES, map(_package, about.packages), request, main=False),
    }
    if request.may(ADMIN) and not request.open:  # names of token holders invite phishing
        tables["logins"] = shaped("logins", LOGINS, map(_login, about.logins), request, main=False, sort="name")
    return Document(about.time_us, "About", fields, tables)


def _settings(settings: tuple[Setting, ...], request: PageRequest) -> Table:
    """The settings; changed ones first by default."""
    rows = [_setting(one) for one in sorted(settings, key=lambda one: one.source == "default")]
    return shaped("settings", SETTINGS, rows, request, text=lambda row: " ".join(cell.text for cell in row.cells))


def _setting(one: Setting) -> Row:
    tone = "" if one.source == "default" else "info"
    about = one.about.replace("`", "")  # the marks of names in the documents
    cells = (
        Cell(one.name),
        Cell(one.value or "not set", tone=tone if one.value else "muted"),
        Cell(one.default or "not set", tone="muted"),
        Cell(one.source, tone=tone or "muted"),
        Cell(about, title=about),
    )
    return Row(one.name, cells)


def _package(one: Package) -> Row:
    return Row(
        one.name, (Cell(one.name), Cell(one.version), Cell(one.licence) if one.licence else UNKNOWN, Cell(one.about))
    )


def _login(one: Login) -> Row:
    role = ROLE_NAMES[one.role]
    return Row(one.name, (Cell(one.name), Cell(role, one.role), Cell(MAY[one.role])))
