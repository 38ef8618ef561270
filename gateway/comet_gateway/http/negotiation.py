"""Content negotiation: the form of records that a client accepts."""

from __future__ import annotations

from enum import Enum
from importlib.util import find_spec

from comet.errors import pip_install
from comet_gateway.http.problems import Problem


class Form(Enum):
    """Media types of records."""

    JSON = "application/json"
    NDJSON = "application/x-ndjson"
    ARROW = "application/vnd.apache.arrow.stream"


def form(accept: bytes) -> Form:
    """The preferred form; of equal ones JSON before NDJSON before Arrow. Raises NOT_ACCEPTABLE."""
    if not accept or accept == b"*/*":
        return Form.JSON
    likes = _likes(accept.decode("latin-1").lower())
    scored = {form: liked for form in Form if (liked := _liked(likes, form.value)) > 0}
    if not scored:
        hint = f"Accept {', '.join(form.value for form in Form)}."
        raise Problem("NOT_ACCEPTABLE", f"records are not available as {accept.decode('latin-1')[:100]}", hint=hint)
    if Form.ARROW in scored and find_spec("pyarrow") is None:
        del scored[Form.ARROW]
        if not scored:
            hint = f"On the gateway: {pip_install('arrow')}."
            raise Problem("NOT_ACCEPTABLE", "this gateway cannot write Arrow without pyarrow", hint=hint)
    return max(scored, key=scored.__getitem__)


def _likes(accept: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in accept.split(","):
        kind, *parameters = (piece.strip() for piece in part.split(";"))
        weight = 1.0
        for parameter in parameters:
            name, _, value = parameter.partition("=")
            if name.strip() == "q":
                weight = _weight(value.strip())
        found[kind] = weight
    return found


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        return 0.0
    return weight if 0 <= weight <= 1 else 0.0


def _liked(likes: dict[str, float], kind: str) -> float:
    """The weight of the most specific entry that matches."""
    for pattern in (kind, f"{kind.partition('/')[0]}/*", "*/*"):
        if pattern in likes:
            return likes[pattern]
    return 0.0
