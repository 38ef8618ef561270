"""Shared by the routes of topics, groups and brokers: the admin client, and the routes of acts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar

from fastapi import APIRouter, Depends, Request
from fastapi.routing import APIRoute

import comet
from comet.admin.acts import OPERATIONS
from comet.errors import CometError
from comet_gateway.brokers.catalog import Catalog
from comet_gateway.brokers.user_access import UserAccess
from comet_gateway.http.problems import Problem, answers
from comet_gateway.schemas.common import ProblemDocument

F = TypeVar("F", bound=Callable[..., Any])
_PARAMETER: Final = re.compile(r"{(\w+)}")


async def _users(request: Request) -> UserAccess:
    found: UserAccess = request.app.state.users
    return found


Users = Annotated[UserAccess, Depends(_users)]


async def _admin(request: Request, users: Users) -> comet.Admin:
    """For the user of the request."""
    return users.admin_for(request.scope["comet.principal"])


AdminClient = Annotated[comet.Admin, Depends(_admin)]


async def _catalog(request: Request) -> Catalog:
    found: Catalog = request.app.state.backend.catalog
    return found


TopicCatalog = Annotated[Catalog, Depends(_catalog)]


async def _only_known(request: Request) -> None:
    """Refuses unknown and repeated query parameters: with `dryrun=true` a deletion would be real."""
    route: APIRoute = request.scope["route"]
    known = {field.alias for field in route.dependant.query_params}
    given = [name for name, _ in request.query_params.multi_items()]
    if not known.issuperset(given) or len(set(given)) < len(given):
        takes = ", ".join(sorted(known)) or "none"
        raise Problem("VALIDATION", f"unknown or repeated query parameter; allowed once each: {takes}")


STRICT: Final = (Depends(_only_known),)


def act_route(router: APIRouter, operation: str, **more: Any) -> Callable[[F], F]:
    """Registers a route of the table of acts, with its path, texts and errors."""
    act, route = OPERATIONS[operation]
    return router.api_route(
        route.path.removeprefix(router.prefix),
        methods=[route.method],
        operation_id=operation,
        summary=route.summary or act.summary,
        description=route.about or act.about or f"{act.summary}.",
        responses={**answers(*act.errors, *route.errors), **more.pop("responses", {})},
        **more,
    )


def links(**operations: dict[str, Any]) -> dict[str, Any]:
    """OpenAPI links to other operations, by id or `operationRef`, with their parameters from this answer."""
    return {
        "links": {
            name: given if "operationRef" in given else {"operationId": name, **given}
            for name, given in operations.items()
        }
    }


def problem_of(error: CometError) -> ProblemDocument:
    """The problem with a part of a request."""
    return ProblemDocument.model_validate(Problem.of(error).document())
