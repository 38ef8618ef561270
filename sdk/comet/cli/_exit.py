"""Exit codes and error texts of the command line.

0 done   1 failed   2 wrong usage   3 topic, partition, broker, group, calendar, schedule or key not found
4 broker unreachable, or no answer
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

# Exit codes by error code; ERROR for all others.
_EXIT_CODE: Final[dict[str, int]] = {
    "INVALID_ARGUMENT": USAGE,
    "MALFORMED_FILTER": USAGE,
    "TOPIC_NOT_FOUND": NOT_FOUND,
    "PARTITION_NOT_FOUND": NOT_FOUND,
    "BROKER_NOT_FOUND": NOT_FOUND,
    "GROUP_NOT_FOUND": NOT_FOUND,
    "CALENDAR_NOT_FOUND": NOT_FOUND,
    "SCHEDULE_NOT_FOUND": NOT_FOUND,
    "KEY_NOT_FOUND": NOT_FOUND,
    "UNAVAILABLE": UNAVAILABLE,
    "COORDINATOR_LOADING": UNAVAILABLE,
    "NOT_COORDINATOR": UNAVAILABLE,
    "DRAINING": UNAVAILABLE,
    "TIMEOUT": UNAVAILABLE,
}
assert _EXIT_CODE.keys() <= BY_CODE.keys()

# The next step for the user: the message says what is wrong, the hint names a command that helps.
_HINT: Final[dict[str, str]] = {
    "TOPIC_NOT_FOUND": "list topics: comet topic list; create it: comet topic create NAME",
    "TOPIC_EXISTS": "show it: comet topic describe NAME; change it: comet topic alter NAME --set ...",
    "PARTITION_NOT_FOUND": "list its partitions: comet topic describe NAME",
    "BROKER_NOT_FOUND": "list brokers: comet cluster",
    "GROUP_NOT_FOUND": "list groups: comet group list; create one: comet group reset NAME --topic TOPIC",
    "GROUP_NOT_EMPTY": "stop its members (comet group describe NAME lists them), or wait for their session timeout",
    "SCHEDULE_NOT_FOUND": "list schedules: comet schedule list",
    "CALENDAR_NOT_FOUND": "list calendars: comet calendar list; fetch one: comet calendar import NAME",
    "CALENDAR_CHANGED": "see its version: comet calendar show NAME",
    "KEY_NOT_FOUND": "list keys: comet kv keys TOPIC",
    "REVISION_MISMATCH": "read it again: comet kv get TOPIC KEY, or comet schedule show TOPIC SCHEDULE",
    "NOT_LEADER": "the partition has no leader now; see the reason: comet cluster",
    "NOT_ENOUGH_REPLICAS": "see which brokers are missing: comet cluster; or produce with --acks 1",
    "TRUNCATED": "the end of the log was lost with a broker; continue with --from OFFSET or --from earliest",
    "OFFSET_OUT_OF_RANGE": "see the offsets: comet topic describe NAME; or read --from earliest",
    "DATA_LOSS": "continue after the damage with --from OFFSET; skip corrupt batches with --on-corrupt skip",
    "RECORD_TOO_LARGE": "raise the topic's limit: comet topic alter NAME --set record_bytes_max=4MiB",
    "UNAVAILABLE": "start a broker: comet up; or give another address: --bootstrap HOST:PORT; a broker with TLS needs "
    "COMET_CLIENT_CA, COMET_CLIENT_CERT and COMET_CLIENT_KEY; comet context show lists what is used",
    "DRAINING": "the broker is stopping; try again in a moment",
    "TIMEOUT": "the request may have taken effect: check before you repeat it",
    "DISK_FULL": "free space on the broker's disk, or delete old data: comet topic alter NAME --set retention_ms=1h",
    "LOG_FAILED": "the broker's disk failed: check it, then restart the broker",
    "FORBIDDEN": "use the certificate of a client, or of that broker",
    "CREDENTIALS_REFUSED": "export COMET_CLIENT_ACCESS_KEY=FILE, with a key as an administrator makes it (comet key "
    "create client:NAME), COMET_CLIENT_TOKEN=FILE, with a token of the issuer that the brokers trust, or "
    "COMET_CLIENT_OAUTH_URL and its like, to fetch one: comet doctor checks them",
    "DATA_FOLDER_TAKEN": "stop the broker that uses it, or give another folder: comet up --data DIR",
    "INTERNAL": "this is a bug in Comet: please report it, with the output of comet --debug ...",
}
assert _HINT.keys() <= BY_CODE.keys()


def exit_code(error: CometError) -> int:
    return _EXIT_CODE.get(error.code, ERROR)


def hint(error: CometError) -> str:
    """The hint of an error: its own, else its code's; one line, or empty."""
    return error.details.get("hint", _HINT.get(error.code, ""))
