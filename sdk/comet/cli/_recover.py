"""`comet cluster recover`: accepts a metadata store that went back in time or was emptied."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

from comet.cli._guard import guarded
from comet.cli._options import DEFAULT_BOOTSTRAP, Bootstrap, Json
from comet.cli._output import note, print_fields, print_json, print_table

if TYPE_CHECKING:
    from comet import ClusterRecovery, PartitionRecovery

SHOWN_MAX: Final = 50  # partitions; --json has all


@guarded
async def recover(
    broker: Annotated[
        list[str] | None,
        typer.Option("--broker", metavar="HOST:PORT", help="A broker; name all of them."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Carry out the plan. Without it the plan is only shown.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json_output: Json = False,
) -> None:
    import comet

    async with comet.Admin(broker or bootstrap) as admin:
        found = await admin.recover_cluster()
        if yes:
            found = await admin.recover_cluster(accept=found.digest)
    if json_output:
        print_json(asdict(found))
    else:
        _show(found)


def _show(found: ClusterRecovery) -> None:
    lost = sum(one.loses for one in found.partitions)
    print_fields(
        {
            "cluster": found.cluster_id,
            "metadata store": "empty" if found.emptied else "went back in time",
            "brokers that answered": ", ".join(map(str, found.answered)) or "-",
            "brokers that did not": ", ".join(map(str, found.missing)) or "-",
            "partitions": len(found.partitions),
            "topics put back": ", ".join(found.put_back) or "-",
            "committed records lost": lost,
        }
    )
    print()
    rows = [row for one in found.partitions for row in _rows(one)]
    print_table(["topic", "partition", "broker", "start", "end", "last epoch", "committed", "loses", "choice"], rows)
    if len(found.partitions) > SHOWN_MAX:
        note(f"{len(found.partitions)} partitions: --json is easier to search")
    if found.unknown:
        note(f"topics left as they are, as no data folder has their names: {', '.join(found.unknown)}")
    if found.silent or found.missing:
        silent = ", ".join([*found.silent, *(f"broker {one}" for one in found.missing)])
        note(f"no answer from {silent}. Records that only they hold would be lost: start them first")
    if not found.done:
        note("nothing was changed; add --yes to carry it out")
    elif found.restart:
        note(f"done. Restart broker {', '.join(map(str, found.restart))}; the others continue by themselves")
    else:
        note("done. The brokers continue by themselves")


def _rows(one: PartitionRecovery) -> list[list[object]]:
    if not one.choices:
        return [[one.topic, one.partition, "-", "-", "-", "-", "-", 0, "no replica found"]]
    return [
        [
            one.topic,
            one.partition,
            choice.broker,
            choice.log_start,
            choice.log_end,
            choice.last_epoch,
            choice.high_watermark,
            choice.loses,
            ", ".join(
                word
                for word, so in (
                    ("chosen", choice.broker == one.chosen),
                    ("not a replica", not choice.named),
                    ("damaged", choice.damaged),
                )
                if so
            ),
        ]
        for choice in one.choices
    ]
