"""What `comet cluster recover` prints of a plan and of its result."""

from __future__ import annotations

from dataclasses import replace

import pytest

import comet
from comet.cli._recover import _show

LEFT = comet.RecoveryChoice(2, 0, 40, 3, 38, 2, named=True, damaged=False)
BEST = comet.RecoveryChoice(1, 5, 42, 4, 40, 0, named=False, damaged=True)
PARTITIONS = (
    comet.PartitionRecovery("quotes", "0f" * 16, 0, chosen=1, epoch=5, loses=3, choices=(BEST, LEFT)),
    comet.PartitionRecovery("trades", "1f" * 16, 2, chosen=0, epoch=1, loses=0, choices=()),
)
PLAN = comet.ClusterRecovery(
    "c1", True, PARTITIONS, ("quotes",), ("ab",), (1, 2), (3,), (2,), ("localhost:9094",), digest="d", done=False
)


def printed(plan: comet.ClusterRecovery, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    _show(plan)
    out, err = capsys.readouterr()
    return out, err


def test_a_plan_shows_each_choice_and_what_it_loses(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = printed(PLAN, capsys)
    lines = [line.split() for line in out.splitlines()]
    assert ["metadata", "store", "empty"] in [line[:3] for line in lines]
    assert ["committed", "records", "lost", "3"] in lines
    assert ["quotes", "0", "1", "5", "42", "4", "40", "0", "chosen,", "not", "a", "replica,", "damaged"] in lines
    assert ["quotes", "0", "2", "0", "40", "3", "38", "2"] in lines
    assert ["trades", "2", *["-"] * 5, "0", "no", "replica", "found"] in lines
    assert "no answer from localhost:9094, broker 3" in err
    assert "topics left as they are, as no data folder has their names: ab" in err
    assert "nothing was changed; add --yes" in err


def test_a_result_says_who_has_to_be_restarted(capsys: pytest.CaptureFixture[str]) -> None:
    _, err = printed(replace(PLAN, done=True), capsys)
    assert "done. Restart broker 2; the others continue by themselves" in err
    _, err = printed(replace(PLAN, done=True, restart=(), missing=(), silent=(), unknown=(), emptied=False), capsys)
    assert err.strip().splitlines()[-1].endswith("done. The brokers continue by themselves")
    assert "no answer" not in err


def test_many_partitions_point_to_json(capsys: pytest.CaptureFixture[str]) -> None:
    many = tuple(replace(PARTITIONS[0], partition=number) for number in range(51))
    _, err = printed(replace(PLAN, partitions=many), capsys)
    assert "51 partitions: --json is easier to search" in err
