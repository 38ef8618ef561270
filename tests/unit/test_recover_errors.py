"""`Admin.recover_cluster` when no broker of those given recovers: which error tells the operator most."""

from __future__ import annotations

import asyncio
from itertools import permutations
from typing import Any

import pytest

from comet.admin.recovery import recover
from comet.errors import CometError, InvalidArgument, Unavailable

TRUSTS = InvalidArgument("this broker trusts the metadata store", details={"trusted": "1"})
AWAY = Unavailable("nobody answers")


class Brokers:
    def __init__(self, answers: tuple[CometError, ...]) -> None:
        self._answers = {f"host:{number}": answer for number, answer in enumerate(answers)}
        self.bootstrap = list(self._answers)

    async def unary_at(self, address: str, *_: Any) -> Any:
        raise self._answers[address]


@pytest.mark.parametrize("answers", list(permutations((TRUSTS, AWAY, TRUSTS))))
def test_a_broker_that_does_not_answer_may_be_the_one_to_recover(answers: tuple[CometError, ...]) -> None:
    brokers: Any = Brokers(answers)
    with pytest.raises(Unavailable, match="nobody answers"):
        asyncio.run(recover(brokers, ""))


def test_where_all_trust_the_store_there_is_nothing_to_recover() -> None:
    brokers: Any = Brokers((TRUSTS, TRUSTS))
    with pytest.raises(InvalidArgument, match="trusts"):
        asyncio.run(recover(brokers, ""))
