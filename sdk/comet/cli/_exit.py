"""Exit codes and error texts of the command line.

0 done   1 failed   2 wrong usage   3 no such topic, partition, broker or group   4 broker not reachable, or no answer
130 interrupted by Ctrl-C
"""

from __future__ import annotations

from typing import Final

from comet.errors import BY_CODE, CometError

OK: Final = 0
ERROR: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
UNAVAILABLE: Final = 4
INTERRUPTED: Final = 130

# Every code of the error tree that is not a plain ERROR; a code that is missing here is one.
_EXIT_CODE: Final[dict[str, int]] = {
    "INVALID_ARGUMENT": USAGE,
    "TOPIC_NOT_FOUND": NOT_FOUND,
    "PARTITION_NOT_FOUND": NOT_FOUND,
    "BROKER_NOT_FOUND": NOT_FOUND,
    "GROUP_NOT_FOUND": NOT_FOUND,
    "UNAVAILABLE": UNAVAILABLE,
    "COORDINATOR_LOADING": UNAVAILABLE,
    "NOT_COORDINATOR": UNAVAILABLE,
    "DRAINING": UNAVAILABLE,
    "TIMEOUT": UNAVAILABLE,
}
assert _EXIT_CODE.keys() <= BY_CODE.keys()

# What a person can do next. The message says what is wrong; this says which command helps.
_HINT: Final[dict[str, str]] = {
    "TOPIC_NOT_FOUND": "see what there is: comet topic list; make it: comet topic create NAME",
    "TOPIC_EXISTS": "look at it: comet topic describe NAME; change it: comet topic alter NAME --set ...",
    "PARTITION_NOT_FOUND": "see its partitions: comet topic describe NAME",
    "BROKER_NOT_FOUND": "see which there are: comet cluster",
    "GROUP_NOT_FOUND": "see which there are: comet group list; comet group reset --topic TOPIC makes one",
    "GROUP_NOT_EMPTY": "stop its members (comet group describe NAME lists them); they are removed after their session",
    "NOT_LEADER": "the partition has no leader now; see why: comet cluster",
    "NOT_ENOUGH_REPLICAS": "see which brokers are missing: comet cluster; or produce with --acks 1",
    "TRUNCATED": "the end of the log was lost with a broker; go on with --from OFFSET, or --from earliest",
    "OFFSET_OUT_OF_RANGE": "see what is there: comet topic describe NAME; or read --from earliest",
    "DATA_LOSS": "go on after the damage with --from OFFSET, past corrupt batches with --on-corrupt skip",
    "RECORD_TOO_LARGE": "raise the topic's limit: comet topic alter NAME --set record_bytes_max=4MiB",
    "UNAVAILABLE": "is a broker running there? start one: comet up; another address: --bootstrap HOST:PORT",
    "DRAINING": "the broker is stopping; try again in a moment",
    "TIMEOUT": "it may have happened all the same: look before you repeat it",
    "DISK_FULL": "free space on the broker's disk, or let go of old data: comet topic alter NAME --set retention_ms=1h",
    "LOG_FAILED": "the broker's disk failed: check it, then restart the broker",
    "DATA_FOLDER_TAKEN": "a broker runs on it already; stop that one, or give another folder: comet up --data DIR",
    "INTERNAL": "this is a bug in Comet: please report it, with the output of comet --debug ...",
}
assert _HINT.keys() <= BY_CODE.keys()


def exit_code(error: CometError) -> int:
    return _EXIT_CODE.get(error.code, ERROR)


def hint(error: CometError) -> str:
    """The hint of an error: its own, else that of its code; one line, or empty."""
    return error.details.get("hint", _HINT.get(error.code, ""))
