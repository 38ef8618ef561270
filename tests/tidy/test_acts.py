"""The table of admin acts: each call has a row, and each row its method, route and command, made or written."""

from __future__ import annotations

import inspect

import pytest
import typer
from fastapi.routing import APIRoute

import comet
from comet.admin.acts import ACTS, OPERATIONS, Act
from comet.cli import _commands
from comet.cli._acts import ActCommand, made_command
from comet.v1 import admin_pb2
from comet_gateway import create_app
from comet_gateway.http.auth import ROLES
from comet_gateway.openapi import operations
from comet_gateway.routes import acts
from comet_web import render

# Commands that have a function of their own, and why; all others are made from their rows. The list only shrinks.
WRITTEN_COMMANDS = {
    "CreateTopic": "a flag for each setting, and --if-missing",
    "ListTopics": "a table, with figures of each topic",
    "DeleteTopic": "takes several names, and patterns",
    "DescribeTopic": "a table of settings and one of partitions",
    "AlterTopic": "a flag for each setting, and --partitions: two acts in one",
    "AddPartitions": "a part of `topic alter`",
    "ListGroups": "a table, with the lag of each group",
    "DescribeGroup": "a table of members and one of partitions",
    "GroupLag": "--watch and --history",
    "ResetGroup": "a table of partitions before the question; takes TOPIC:P,P",
    "DescribeCluster": "shows the health of all partitions",
    "Statistics": "a flag of `comet cluster`",
    "GetCalendar": "a table of sessions, of many that --json has",
    "PutCalendar": "reads the calendar from a file",
    "ListSchedules": "a table of the members that matter, of many that --json has",
    "GetSchedule": "a record, and a table of the next times",
    "PutSchedules": "the parts of a record; the value may come from standard input",
    "RecoverCluster": "takes the addresses of all brokers, and is confirmed by a digest",
}
# Operations that have a function of their own, and why; likewise.
WRITTEN_ROUTES = {
    "createTopic": "a member for each setting; answers 201 with a Location",
    "listTopics": "pages",
    "describeTopic": "the document of a topic",
    "describePartition": "the document of a partition: asks all its brokers",
    "alterTopic": "a member for each setting",
    "deleteRecords": "many partitions in one request, each with its own error",
    "listGroups": "pages",
    "describeGroup": "the document of a group",
    "resetGroup": "a body with one of three members",
    "describeCluster": "the document of the cluster",
    "listBrokers": "pages",
    "getStatistics": "no fixed members",
    "describeBroker": "the document of a broker",
    "getCalendar": "times on the wall clock of the calendar's zone; an ETag",
    "putCalendar": "the document of a calendar; If-Match",
    "deleteCalendar": "If-Match",
    "listSchedules": "a filter with three states",
    "getSchedule": "a record as JSON; an ETag",
    "putSchedule": "a record as JSON; If-Match",
    "cancelSchedule": "If-Match",
    "pauseSchedule": "If-Match; an ETag",
    "resumeSchedule": "If-Match; an ETag",
    "runSchedule": "If-Match; an ETag",
    "moveSchedule": "If-Match; an ETag",
}

SERVICE = admin_pb2.DESCRIPTOR.services_by_name["Admin"]
ROWS = pytest.mark.parametrize("act", ACTS.values(), ids=list(ACTS))
PAGES = {path: body.decode() for path, body in render.static().items() if path.endswith(".js")}


def test_each_call_of_the_service_has_a_row() -> None:
    assert set(ACTS) == {method.name for method in SERVICE.methods}


@ROWS
def test_a_row_has_a_method_a_route_and_a_command_or_a_reason(act: Act) -> None:
    assert (act.method and act.routes and act.command) or act.missing
    assert act.request.DESCRIPTOR.name in (f"{act.name}Request", "ScheduleRequest")  # of several calls for one schedule


@ROWS
def test_what_can_be_tried_without_a_change_can_be_so_everywhere(act: Act) -> None:
    """With the SDK, the gateway and the command line; accepting a digest is the dry run of a recovery."""
    fields = act.request.DESCRIPTOR.fields_by_name
    if "accept" in fields:
        return
    assert act.dry_run == ("dry_run" in fields and act.role != "viewer")  # GetSchedule shares its request with changes
    if act.method:
        owner, _, name = act.method.rpartition(".")
        owners = {
            "": comet.sync.Admin,
            "access": comet.sync.AccessAdmin,
            "calendars": comet.sync.CalendarAdmin,
            "schedules": comet.sync.ScheduleAdmin,
        }
        for function in (act.function(), getattr(owners[owner], name)):
            assert act.dry_run == ("dry_run" in inspect.signature(function).parameters)
    if act.dry_run:
        command = _command(act)
        whole = made_command(act) if isinstance(command, ActCommand) else command
        assert "--dry-run" in {flag for param in whole.params for flag in param.opts}


def _command(act: Act) -> typer.core.TyperCommand:
    found = typer.main.get_command(_commands.app)
    for word in act.command.split():
        found = found.get_command(None, word)  # type: ignore[attr-defined]
    return found  # type: ignore[return-value]


@ROWS
def test_a_command_has_the_text_of_its_row(act: Act) -> None:
    if " " in act.command and act.name != "AddPartitions":  # that one is a part of `topic alter`
        assert (_command(act).help or "").startswith(act.text)


def test_commands_are_made_unless_they_have_a_reason() -> None:
    written = {act.name for act in ACTS.values() if act.command and not isinstance(_command(act), ActCommand)}
    assert written == set(WRITTEN_COMMANDS), "make the others from their rows; the list only shrinks"


def test_routes_are_made_unless_they_have_a_reason() -> None:
    served = {route.operation_id: route for route in create_app().routes if isinstance(route, APIRoute)}
    written = {name for name in OPERATIONS if served[name].endpoint.__module__ != acts.__name__}
    assert written == set(WRITTEN_ROUTES), "make the others from their rows; the list only shrinks"


@ROWS
def test_a_command_that_asks_has_a_dialog_and_one_that_waits_has_a_dry_run(act: Act) -> None:
    assert not act.asks or any(route.dialog is not None for route in act.routes)
    assert not act.wait or act.dry_run


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
