"""Quotas: how much each principal may use of each broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from comet.admin.parameters import Input
from comet.admin.rules import PRINCIPAL
from comet.types import Int64
from comet.units import count, format_bytes
from comet.v1 import admin_pb2 as admin

RATE_MAX: Final = 2**53 - 1  # a number that JSON keeps; brokers check the rest

Principal = Annotated[
    str,
    Input(
        "The principal, as rules name it; `*`: each one without a quota of its own.",
        pattern=f"^({PRINCIPAL}|\\*)$",
        example="client:billing",
    ),
]
OfPrincipal = Annotated[str, Input("Only the quota of this one.", example="client:billing")]
BytesIn = Annotated[
    int,
    Input(
        "Bytes that it may send to a broker per second, 1024 or more; 0: no limit.",
        0,
        RATE_MAX,
        unit="bytes",
        metavar="SIZE",
    ),
]
BytesOut = Annotated[
    int,
    Input(
        "Bytes of records that a broker sends to it per second, 1024 or more; 0: no limit.",
        0,
        RATE_MAX,
        unit="bytes",
        metavar="SIZE",
    ),
]
Requests = Annotated[int, Input("Frames and calls at a broker per second; 0: no limit.", 0, RATE_MAX)]
Streams = Annotated[int, Input("Open streams at a broker; 0: no limit.", 0, RATE_MAX)]


@dataclass(frozen=True, slots=True)
class Quota:
    """What one principal may use of each broker, with all of its clients together.

    >>> print(comet.Quota("client:billing", bytes_in=1 << 20, streams=10))
    client:billing: 1.0 MiB/s in, 10 streams
    """

    principal: Annotated[str, "`*`: each principal without a quota of its own."]
    bytes_in: Annotated[Int64, "A second; 0: no limit."] = 0
    bytes_out: Annotated[Int64, "A second; 0: no limit."] = 0
    requests: Annotated[Int64, "Frames and calls, a second; 0: no limit."] = 0
    streams: Annotated[Int64, "At once; 0: no limit."] = 0
    author: Annotated[str, "The client that set it."] = ""
    set_us: Annotated[Int64 | None, "None: not set yet."] = None

    def __str__(self) -> str:
        limits = [
            f"{format_bytes(self.bytes_in)}/s in" if self.bytes_in else "",
            f"{format_bytes(self.bytes_out)}/s out" if self.bytes_out else "",
            f"{count(self.requests, 'request')}/s" if self.requests else "",
            count(self.streams, "stream") if self.streams else "",
        ]
        return f"{self.principal}: {', '.join(filter(None, limits))}"


@dataclass(frozen=True, slots=True)
class QuotaList:
    """The quotas, by principal.

    >>> print(comet.QuotaList((comet.Quota("*", requests=200),)))
    1 quota
    """

    quotas: tuple[Quota, ...]

    def __str__(self) -> str:
        return count(len(self.quotas), "quota")


@dataclass(frozen=True, slots=True)
class QuotaRemoval:
    """The end of a quota; not `removed`: the principal had none.

    >>> print(comet.QuotaRemoval("client:billing", removed=False))
    nothing to do: client:billing has no quota of its own
    """

    principal: str
    removed: bool

    def __str__(self) -> str:
        if not self.removed:
            return f"nothing to do: {self.principal} has no quota of its own"
        return f"removed: the quota of {self.principal}"


def quota_from_pb(quota: admin.Quota) -> Quota:
    return Quota(
        quota.principal,
        quota.bytes_in,
        quota.bytes_out,
        quota.requests,
        quota.streams,
        quota.author,
        quota.set_us or None,
    )


def list_from_pb(answer: admin.ListQuotasResponse) -> QuotaList:
    return QuotaList(tuple(map(quota_from_pb, answer.quotas)))
