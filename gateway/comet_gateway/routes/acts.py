"""Routes made from the table of acts, those without a function of their own.

path     the first parameters of the act's method in `comet.Admin`, in the order of the route's path
query    `dry_run`; with GET and DELETE also the other parameters
body     with other methods the other parameters, as members of a strict JSON object
answer   the document of the method's result
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from contextlib import nullcontext
from dataclasses import is_dataclass
from inspect import Parameter as Declared
from inspect import Signature
from typing import Annotated, Any, Final, get_type_hints

from fastapi import APIRouter, Body, Path, Query
from pydantic import Field, WithJsonSchema, create_model
from starlette.routing import BaseRoute

from comet.admin.acts import OPERATIONS, Act, Operation
from comet.admin.documents import document
from comet.admin.parameters import DRY_RUN, TEXT_CHARS_MAX, Parameter, parameters
from comet_gateway.routes.admin import STRICT, AdminClient, TopicCatalog, act_route
from comet_gateway.schemas.common import Int64
from comet_gateway.schemas.derived import model_of
from comet_gateway.schemas.lists import PATH_PARAMETERS, Boolean, DryRun, Integer, Strict

_WITHOUT_BODY: Final = frozenset({"GET", "DELETE"})


def routes(written: Container[str | None]) -> Iterator[BaseRoute]:
    """The routes of all operations of the table but these."""
    for operation in OPERATIONS:
        if operation not in written:
            yield made_route(operation)


def made_route(operation: str) -> BaseRoute:
    """The route of an operation."""
    act, route = OPERATIONS[operation]
    result = get_type_hints(act.function())["return"]
    if not is_dataclass(result):
        raise TypeError(f"{act.method} returns no dataclass: write the route of {operation}")
    router = APIRouter(prefix="/v1", tags=[route.path.split("/")[2]], dependencies=STRICT)
    act_route(router, operation, response_model=model_of(result))(_function(act, route))  # type: ignore[arg-type]
    (made,) = router.routes
    return made


def _function(act: Act, route: Operation) -> Callable[..., Any]:
    own = [one for one in parameters(act.function()) if one.name not in route.fixed]
    first, others = own[: len(route.names)], own[len(route.names) :]
    if len(first) < len(route.names):
        raise TypeError(f"{act.method} lacks parameters for {route.path}")
    body = _body(route, others) if others and route.method not in _WITHOUT_BODY else None

    async def answer(admin: AdminClient, catalog: TopicCatalog, **given: Any) -> dict[str, Any]:
        names = {name: given.pop(name) for name in route.names}
        dry_run = {DRY_RUN: given.pop(DRY_RUN)} if act.dry_run else {}
        rest = given if body is None else dict(given["body"])
        changes = act.role != "viewer" and "topic" in names and not dry_run.get(DRY_RUN)
        with catalog.changing(names["topic"]) if changes else nullcontext():
            return document(await act.bound(admin)(*names.values(), **route.fixed, **rest, **dry_run))

    declared = [*Signature.from_callable(answer, eval_str=True).parameters.values()][:-1]
    declared += [_keyword(name, _of_path(name, one)) for name, one in zip(route.names, first, strict=True)]
    if body is not None:
        default = Declared.empty if any(one.required for one in others) else body()
        declared.append(_keyword("body", Annotated[body, Body()], default))
    else:
        declared += [_keyword(one.name, _of_query(one), one.default) for one in others]
    if act.dry_run:
        declared.append(_keyword(DRY_RUN, DryRun, False))
    shape = Signature([one.replace(kind=Declared.KEYWORD_ONLY) for one in declared])
    answer.__signature__ = shape  # type: ignore[attr-defined] # which FastAPI reads
    return answer


def _keyword(name: str, annotation: Any, default: object = Declared.empty) -> Declared:
    return Declared(name, Declared.KEYWORD_ONLY, annotation=annotation, default=default)


def _of_path(name: str, one: Parameter) -> Any:
    if name in PATH_PARAMETERS:
        return PATH_PARAMETERS[name]
    return Annotated[_from_text(one), Path(description=one.input.about, examples=_examples(one) or None)]


def _of_query(one: Parameter) -> Any:
    if one.many:
        raise TypeError(f"{one.name}: a query has no lists; send them in a body")
    kind = _from_text(one)
    return Annotated[kind | None if one.optional else kind, Query(description=one.input.about)]


def _from_text(one: Parameter) -> Any:
    """The type of a parameter in a path or query."""
    if one.kind is bool:
        return Annotated[bool, Boolean, WithJsonSchema({"type": "boolean"})]
    kind = _bounded(one)
    return Annotated[kind, Integer] if one.kind is int and not one.int64 else kind


def _bounded(one: Parameter) -> Any:
    """The type of a parameter, of one item of a list, with its bounds."""
    given = one.input
    if one.int64:
        return Int64
    if one.kind is int:
        return Annotated[int, Field(ge=given.low, le=given.high)]
    if one.kind is str:
        return Annotated[str, Field(pattern=given.pattern) if given.pattern else Field(max_length=TEXT_CHARS_MAX)]
    return one.kind if one.kind is bool else Annotated[one.kind, Field(strict=False)]  # an enumeration, by its word


def _body(route: Operation, given: list[Parameter]) -> type[Strict]:
    """The model of a body with these members."""
    members: dict[str, Any] = {}
    for one in given:
        kind = _bounded(one)
        if one.many:
            kind = Annotated[list[kind], Field(min_length=1, max_length=one.input.items_max or None)]  # type: ignore[valid-type]
        default: dict[str, Any] = {} if one.required else {"default": one.default}
        members[one.name] = (kind | None if one.optional else kind, Field(description=one.input.about, **default))
    example = {one.name: found for one in given for found in _examples(one)}
    shown = {"json_schema_extra": {"examples": [example]}} if example else {}
    return create_model(f"{route.id[0].upper()}{route.id[1:]}Body", __base__=Strict, __cls_kwargs__=shown, **members)


def _examples(one: Parameter) -> list[Any]:
    """The example of a parameter in JSON, or none."""
    example = one.input.example
    if example is None:
        return []
    return [list(example) if isinstance(example, tuple) else str(example) if one.int64 else example]
