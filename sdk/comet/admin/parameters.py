"""The parameters of an admin act, read from the signature of its method in `comet.Admin`.

path          REST: the first ones, in the order of the route's path
query         REST: `dry_run`; the others, if the route takes no body
body          REST: the others, as members of a JSON object
argument      command line: a positional one without a default
flag          command line: the others

An annotation says the rest: `Annotated[int, Input("Partitions after the change.", low=1, high=1000)]`.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Annotated, Any, Final, NamedTuple, Union, get_args, get_origin, get_type_hints

from comet.settings.topic import REPLICAS_MAX
from comet.types import INT64, TOPIC_NAME, UNLISTED, Int64

NAME_PATTERN: Final = f"^{TOPIC_NAME.pattern}$"  # of topics and groups
BROKER_MAX: Final = 2**31 - 1
PARTITION_MAX: Final = 99_999  # the number of one
PARTITIONS_MAX: Final = 1_000  # of one topic
TEXT_CHARS_MAX: Final = 1_000  # of a text without a pattern

DRY_RUN: Final = "dry_run"


class Input(NamedTuple):
    """The description and the bounds of a parameter."""

    about: str
    low: int | None = None
    high: int | None = None
    pattern: str = ""  # of a text
    items_max: int = 0  # of a list
    example: object = None
    flag: str = ""  # its spellings on the command line, which make it a flag: "--partition -p"
    metavar: str = ""  # of the flag or argument
    unit: str = ""  # of a number that the command line takes in it: "bytes", as 64KiB
    none: int | None = None  # the number for None on the command line, where the parameter then is required


TOPIC: Final = Input("Name of a topic.", pattern=NAME_PATTERN, example="quotes")
GROUP: Final = Input("Name of a group.", pattern=NAME_PATTERN, example="engine")
PARTITION: Final = Input("Number of a partition, from 0.", 0, PARTITION_MAX, example=0)
BROKER: Final = Input("Id of a broker.", 1, BROKER_MAX, example=1)

TopicName = Annotated[str, TOPIC]
GroupName = Annotated[str, GROUP]
PartitionIndex = Annotated[int, PARTITION]
BrokerId = Annotated[int, BROKER]
OneBroker = Annotated[int | None, Input("Only on this broker; without it on all.", 1, BROKER_MAX)]
NewLeader = Annotated[int, Input("The new leader; it may lack committed records.", 1, BROKER_MAX, example=2)]
AcceptLoss = Annotated[
    bool, Input("Confirms that records which the new leader lacks are lost for good, on all brokers.", example=True)
]
BeforeOffset = Annotated[Int64 | None, Input("First offset to keep; -1: keep nothing.", -1, flag="--before", none=-1)]
LagPoints = Annotated[int, Input("Points of each topic at most, evenly spread.", 1, 10_000)]
ReplicaIds = Annotated[
    Sequence[int],
    Input(
        "Ids of brokers, the preferred leader first.",
        1,
        BROKER_MAX,
        items_max=REPLICAS_MAX,
        example=(2, 3, 1),
        flag="--to",
        metavar="ID,ID,...",
    ),
]


class Parameter(NamedTuple):
    """One parameter of an act."""

    name: str
    kind: type  # bool, int, str or an enumeration; of the items, if it is a list
    input: Input
    positional: bool
    default: object  # inspect.Parameter.empty: none
    many: bool = False  # a list
    optional: bool = False  # may be None
    int64: bool = False

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty


def parameters(method: Callable[..., Any]) -> tuple[Parameter, ...]:
    """The parameters of a method, without `self`, `dry_run` and UNLISTED ones, which only Python has. Raises TypeError
    for other types than those above.

    >>> [(one.name, one.kind.__name__, one.required) for one in parameters(comet.Admin.elect_leader)]
    [('name', 'str', True), ('partition', 'int', True), ('broker', 'int', True), ('accept_loss', 'bool', False)]
    """
    hints = get_type_hints(method, include_extras=True)
    own = list(inspect.signature(method).parameters.values())[1:]
    return tuple(
        _parameter(one, hints[one.name])
        for one in own
        if one.name != DRY_RUN and UNLISTED not in _without_notes(hints[one.name])[1]
    )


def _parameter(one: inspect.Parameter, annotation: Any) -> Parameter:
    kind, notes = _without_notes(annotation)
    arguments = get_args(kind)
    optional = get_origin(kind) in (Union, types.UnionType) and type(None) in arguments and len(arguments) == 2
    if optional:
        kind, more = _without_notes(next(found for found in arguments if found is not type(None)))
        notes += more
    many = get_origin(kind) is Sequence
    if many:
        kind, more = _without_notes(*get_args(kind))
        notes += more
    given = next((note for note in notes if isinstance(note, Input)), None)
    found = Parameter(
        one.name,
        kind,
        given or Input(""),
        positional=one.kind is one.POSITIONAL_OR_KEYWORD,
        default=one.default,
        many=many,
        optional=optional,
        int64=INT64 in notes,
    )
    _check(one, found, described=given is not None)
    return found


def _without_notes(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    if get_origin(annotation) is Annotated:
        return annotation.__origin__, annotation.__metadata__
    return annotation, ()


def _check(one: inspect.Parameter, found: Parameter, *, described: bool) -> None:
    if not isinstance(found.kind, type) or not issubclass(found.kind, bool | int | str | Enum):
        raise TypeError(f"{one}: an act made from its method takes bool, int, str, enumerations, and lists of them")
    if not described:
        raise TypeError(f"{one}: describe it with an Input")
    if found.kind is bool and found.default is not False:
        raise TypeError(f"{one}: a bool is a flag, whose default is False")
    if found.kind is int and not found.int64 and (found.input.low is None or found.input.high is None):
        raise TypeError(f"{one}: give the Input its lowest and highest number")
