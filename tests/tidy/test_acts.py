"""The table of admin acts: each call has a row, and each row its method, route and command."""

from __future__ import annotations

import inspect

import pytest
import typer

import comet
from comet.admin.acts import ACTS, OPERATIONS, Act
from comet.cli import _commands
from comet.v1 import admin_pb2
from comet_gateway import create_app
from comet_gateway.http.auth import ROLES
from comet_gateway.openapi import operations
from comet_web import render

SERVICE = admin_pb2.DESCRIPTOR.services_by_name["Admin"]
ROWS = pytest.mark.parametrize("act", ACTS.values(), ids=list(ACTS))
PAGES = {path: body.decode() for path, body in render.static().items() if path.endswith(".js")}


def test_each_call_of_the_service_has_a_row() -> None:
    assert set(ACTS) == {method.name for method in SERVICE.methods}


@ROWS
def test_a_row_has_a_method_a_route_and_a_command_or_a_reason(act: Act) -> None:
    assert (act.method and act.routes and act.command) or act.missing
    assert act.request is getattr(admin_pb2, f"{act.name}Request")


@ROWS
def test_what_can_be_tried_without_a_change_can_be_so_everywhere(act: Act) -> None:
    """With the SDK, the gateway and the command line; accepting a digest is the dry run of a recovery."""
    fields = act.request.DESCRIPTOR.fields_by_name
    if "accept" in fields:
        return
    assert act.dry_run == ("dry_run" in fields)
    if act.method:
        for admin in (comet.Admin, comet.sync.Admin):
            assert act.dry_run == ("dry_run" in inspect.signature(getattr(admin, act.method)).parameters)
    if act.dry_run:
        assert "--dry-run" in {flag for param in _command(act).params for flag in param.opts}


def _command(act: Act) -> typer.core.TyperCommand:
    found = typer.main.get_command(_commands.app)
    for word in act.command.split():
        found = found.commands[word]  # type: ignore[attr-defined]
    return found  # type: ignore[return-value]


@ROWS
def test_a_command_has_the_text_of_its_row(act: Act) -> None:
    if " " in act.command and act.name != "AddPartitions":  # that one is a part of `topic alter`
        assert (_command(act).help or "").startswith(act.text)


def test_routes_have_the_paths_texts_and_roles_of_their_rows() -> None:
    document = create_app().openapi()
    served = {operation["operationId"]: (method, path, operation) for path, method, operation in operations(document)}
    for name, (act, route) in OPERATIONS.items():
        method, path, operation = served[name]
        assert (method.upper(), path) == (route.method, route.path)
        assert operation["summary"] == (route.summary or act.summary)
        assert ROLES[route.method, route.path].name.lower() == act.role
        assert act.dry_run == ("dry_run" in {one["name"] for one in operation.get("parameters", ())})


def test_pages_use_the_texts_and_calls_of_the_table() -> None:
    """No script names the path of an act with a dialog, and none of the dialogs is left unused."""
    for name, (_, route) in OPERATIONS.items():
        if route.dialog is None:
            continue
        users = [path for path, text in PAGES.items() if f'"{name}"' in text]
        assert users, f"no page uses the dialog of {name}"
        assert not [path for path, text in PAGES.items() if route.dialog.note and route.dialog.note in text]
