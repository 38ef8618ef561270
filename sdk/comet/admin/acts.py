"""The admin acts: one row for each call of the Admin service. Plain data, for brokers, gateway, command line and pages.

broker        answers `name` by the method of the same name; the messages are those of admin.proto
gateway       makes its routes, with their roles, texts and errors; the texts of the dashboard's dialogs
command line  makes its command, with its help and the question before it destroys something
SDK           `comet.Admin` has one typed method for each: its signature has the parameters (`comet.admin.parameters`),
              its result the answer (`comet.admin.documents`) and the line for people (`str`)

An act with another form, such as several calls in one command, has a function of its own in `comet.cli` or
`comet_gateway.routes`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from comet.admin.admin import Admin

Role = Literal["viewer", "operator", "admin"]
_CAPITAL: Final = re.compile(r"(?<!^)([A-Z])")
_NAME: Final = re.compile(r"{(\w+)}")


class Dialog(NamedTuple):
    """The confirmation of an act. {topic}, {group}, {broker}, {principal}, {schedule} and {id} stand for what it
    acts on."""

    title: str  # without its question mark it begins the question of the command line, too
    action: str  # the button's label
    note: str = ""
    typed: str = ""  # text that a person has to type; empty: nothing is destroyed


class Operation(NamedTuple):
    """An operation of the gateway's REST API."""

    id: str  # in OpenAPI
    method: str
    path: str
    summary: str = ""  # if it is not the act's
    about: str = ""
    dialog: Dialog | None = None
    errors: tuple[str, ...] = ()  # codes of its problems, beside the act's
    fixed: Mapping[str, object] = MappingProxyType({})  # arguments that a request does not give

    @property
    def names(self) -> tuple[str, ...]:
        """The names in its path.

        >>> OPERATIONS["movePartition"][1].names
        ('topic', 'partition')
        """
        return tuple(_NAME.findall(self.path))


class Act(NamedTuple):
    """One row. Without a method of `comet.Admin`, a route or a command, `missing` gives the reason."""

    name: str  # of the call
    role: Role  # that a user of the gateway needs
    needs: str  # that a rule must allow a client: operation and kind, as in `comet acl`; empty: the answer is filtered
    summary: str  # what it does, imperative
    about: str = ""  # further sentences
    method: str = ""  # of comet.Admin, such as delete_topic or access.add_rule
    routes: tuple[Operation, ...] = ()
    command: str = ""  # its words after `comet`
    dry_run: bool = False
    errors: tuple[str, ...] = ()  # codes of its errors, beside those of every call
    asks: bool = False  # the command asks for confirmation
    wait: str = ""  # help of the command's `--wait`, until the result `is_finished()`
    always: bool = False  # served even while the broker does not trust its metadata store
    missing: str = ""

    @property
    def text(self) -> str:
        """The sentences of a help text or a description."""
        return f"{self.summary}. {self.about}".rstrip()

    @property
    def handler(self) -> str:
        """The name of the coroutine that answers the call at a broker.

        >>> ACTS["DeleteTopic"].handler
        'delete_topic'
        """
        return _CAPITAL.sub(r"_\1", self.name).lower()

    def function(self) -> Callable[..., Any]:
        """The method as a function, whose signature has the parameters."""
        from comet.admin.access import AccessAdmin
        from comet.admin.admin import Admin
        from comet.admin.calendars import CalendarAdmin
        from comet.admin.schedules import ScheduleAdmin

        owner, _, name = self.method.rpartition(".")
        owners: dict[str, type] = {
            "": Admin,
            "access": AccessAdmin,
            "calendars": CalendarAdmin,
            "schedules": ScheduleAdmin,
        }
        found: Callable[..., Any] = getattr(owners[owner], name)
        return found

    def bound(self, admin: Admin) -> Callable[..., Any]:
        """The method of a client."""
        found: Callable[..., Any] = attrgetter(self.method)(admin)
        return found

    @property
    def request(self) -> type[Message]:
        """The message of the call, as admin.proto declares it."""
        from google.protobuf.message_factory import GetMessageClass

        from comet.v1 import admin_pb2

        service = admin_pb2.DESCRIPTOR.services_by_name["Admin"]
        return GetMessageClass(service.methods_by_name[self.name].input_type)


_MOVING: Final = ("NOT_COORDINATOR", "COORDINATOR_LOADING")  # while a group has no coordinator

_ROWS: Final = (
    # ---- topics
    Act(
        "CreateTopic", "operator", "create topic", "Create a topic", method="create_topic", command="topic create",
        routes=(Operation("createTopic", "POST", "/v1/topics"),),
    ),
    Act(
        "ListTopics", "viewer", "", "List topics", "By name, page by page.", method="list_topics", command="topic list",
        routes=(Operation("listTopics", "GET", "/v1/topics"),),
    ),
    Act(
        "DescribeTopic", "viewer", "describe topic", "Describe a topic",
        "Shows its settings, its partitions and their sizes.",
        method="describe_topic", command="topic describe",
        routes=(
            Operation("describeTopic", "GET", "/v1/topics/{topic}"),
            Operation(
                "describePartition", "GET", "/v1/topics/{topic}/partitions/{partition}",
                "Describe a partition and its replicas", "Gets a partition and the state of each replica.",
            ),
        ),
    ),
    Act(
        "AlterTopic", "admin", "alter topic", "Change the settings of a topic",
        "Other settings stay as they are. A shorter retention deletes records; a dry run counts them.",
        method="alter_topic", command="topic alter", dry_run=True, errors=("TOPIC_NOT_FOUND",),
        routes=(
            Operation(
                "alterTopic", "PATCH", "/v1/topics/{topic}",
                dialog=Dialog("Change settings of {topic}", "Save", typed="{topic}"),
            ),
        ),
    ),
    Act(
        "DeleteTopic", "admin", "delete topic", "Delete a topic",
        "Its records and the committed offsets of groups in it are deleted too. A new topic with the same name is a "
        "different one.",
        method="delete_topic", command="topic delete", dry_run=True, asks=True, errors=("TOPIC_NOT_FOUND",),
        routes=(
            Operation(
                "deleteTopic", "DELETE", "/v1/topics/{topic}",
                dialog=Dialog(
                    "Delete {topic}", "Delete topic",
                    "This cannot be undone. Committed offsets of groups in it are deleted too.", "{topic}",
                ),
            ),
        ),
    ),
    Act(
        "AddPartitions", "operator", "alter topic", "Add partitions to a topic",
        "This cannot be undone. Many keys map to another partition afterwards: the order of a key's records does not "
        "hold across the change.",
        method="add_partitions", command="topic alter", dry_run=True,
        errors=("TOPIC_NOT_FOUND", "LIMIT_EXCEEDED", "NOT_LEADER"),
        routes=(
            Operation(
                "addPartitions", "POST", "/v1/topics/{topic}/partitions",
                dialog=Dialog(
                    "Add partitions to {topic}", "Add partitions",
                    "The partition of a key depends on their number. Order by key is not kept across this change.",
                ),
            ),
        ),
    ),
    Act(
        "DeleteRecords", "admin", "delete topic", "Delete the oldest records of a topic",
        "Those before an offset or a time. This cannot be undone.",
        method="delete_records", command="topic delete-records", dry_run=True, asks=True,
        errors=("TOPIC_NOT_FOUND", "PARTITION_NOT_FOUND", "NOT_LEADER"),
        routes=(
            Operation(
                "deleteRecords", "POST", "/v1/topics/{topic}/records/delete",
                dialog=Dialog(
                    "Delete records of {topic}", "Delete all records",
                    "This cannot be undone. Partitions, settings and offsets stay; new records are kept.",
                    "{topic}",
                ),
            ),
        ),
    ),
    Act(
        "MovePartition", "admin", "alter cluster", "Reassign the replicas of a partition",
        "Moves them to other brokers, or changes their number. The answer comes at the start; the partition shows the "
        "progress.",
        method="move_partition", command="topic move", dry_run=True,
        errors=("TOPIC_NOT_FOUND", "PARTITION_NOT_FOUND", "BROKER_NOT_FOUND"),
        wait="Return once the replicas are there and in sync.",
        routes=(Operation("movePartition", "POST", "/v1/topics/{topic}/partitions/{partition}/move"),),
    ),
    Act(
        "ElectLeader", "admin", "alter cluster", "Elect a leader that may lack records",
        "An unclean election, the last resort if all replicas with every record are damaged or will not return, or if "
        "a replica is in conflict with its leader. Refused otherwise while the partition has a leader. Records that "
        "the new leader lacks are lost: this has to be accepted.",
        method="elect_leader", command="topic elect", dry_run=True,
        errors=("TOPIC_NOT_FOUND", "PARTITION_NOT_FOUND", "BROKER_NOT_FOUND"),
        routes=(Operation("electLeader", "POST", "/v1/topics/{topic}/partitions/{partition}/elect-leader"),),
    ),
    # ---- groups
    Act(
        "ListGroups", "viewer", "", "List groups",
        "By name. Fails while a coordinator is being replaced: the list would be incomplete.",
        method="list_groups", command="group list", errors=_MOVING,
        routes=(Operation("listGroups", "GET", "/v1/groups"),),
    ),
    Act(
        "DescribeGroup", "viewer", "describe group", "Describe a group",
        "Shows its members, their partitions, and the lag of each.",
        method="describe_group", command="group describe", errors=("GROUP_NOT_FOUND", *_MOVING),
        routes=(Operation("describeGroup", "GET", "/v1/groups/{group}"),),
    ),
    Act(
        "GroupLag", "viewer", "describe group", "Show the lag of a group",
        "In records, as the age of the oldest one, and as the time to catch up; and its history.",
        method="group_lag", command="group lag", errors=("GROUP_NOT_FOUND", *_MOVING),
        routes=(Operation("getLag", "GET", "/v1/groups/{group}/lag"),),
    ),
    Act(
        "ResetGroup", "operator", "alter group", "Reset the committed offsets of a group",
        "The group must have no members. All are set, or none if one fails.",
        method="reset_group", command="group reset", dry_run=True,
        errors=("GROUP_NOT_FOUND", "TOPIC_NOT_FOUND", "GROUP_NOT_EMPTY", *_MOVING),
        routes=(
            Operation(
                "resetGroup", "POST", "/v1/groups/{group}/reset",
                dialog=Dialog("Reset offsets of {group}", "Reset offsets"),
            ),
        ),
    ),
    Act(
        "DeleteGroup", "admin", "delete group", "Delete a group",
        "Its committed offsets are deleted. The group must have no members.",
        method="delete_group", command="group delete", dry_run=True, asks=True,
        errors=("GROUP_NOT_FOUND", "GROUP_NOT_EMPTY", *_MOVING),
        routes=(
            Operation(
                "deleteGroup", "DELETE", "/v1/groups/{group}",
                dialog=Dialog(
                    "Delete group {group}", "Delete",
                    "Its committed offsets are deleted. A new group of this name starts without them.", "{group}",
                ),
            ),
        ),
    ),
    # ---- the cluster
    Act(
        "DescribeCluster", "viewer", "describe cluster", "Describe the cluster",
        "Its brokers and the size of its data.",
        method="describe_cluster", command="cluster",
        routes=(
            Operation("describeCluster", "GET", "/v1/cluster"),
            Operation(
                "listBrokers", "GET", "/v1/brokers", "List brokers",
                "Those that are alive, by id, page by page. The filter matches address and rack.",
            ),
        ),
    ),
    Act(
        "DrainBroker", "admin", "alter cluster", "Drain a broker",
        "Moves leadership away from it before it is stopped. It leads nothing until that is undone. The answer comes "
        "at the start: repeat until it leads no partition.",
        method="drain_broker", command="cluster drain", dry_run=True, errors=("BROKER_NOT_FOUND",),
        wait="Return once it leads nothing.",
        routes=(
            Operation(
                "drainBroker", "POST", "/v1/brokers/{broker}/drain", fixed={"undo": False},
                dialog=Dialog(
                    "Drain broker {broker}", "Drain",
                    "Leadership is handed over partition by partition; the broker stays as a follower. No data is "
                    "copied or lost. New topics avoid this broker if possible.",
                    "broker {broker}",
                ),
            ),
            Operation(
                "undoDrain", "POST", "/v1/brokers/{broker}/drain/undo", "Undo the drain of a broker",
                "Lets it lead partitions again.",
                fixed={"undo": True},
                dialog=Dialog(
                    "Undo drain of broker {broker}", "Undo drain",
                    "Partitions that prefer this broker return to it once the cluster has been stable for a while.",
                ),
            ),
        ),
    ),
    Act(
        "Resume", "admin", "alter cluster", "Resume what has failed on a broker",
        "Partitions, slots, groups and transactional ids that an unexpected error stopped, as a restart would. The "
        "answer lists those that fail again.",
        method="resume", command="cluster resume", dry_run=True, errors=("BROKER_NOT_FOUND",),
        routes=(
            Operation(
                "resumeBroker", "POST", "/v1/brokers/{broker}/resume",
                dialog=Dialog(
                    "Resume failed parts of broker {broker}", "Resume",
                    "Reopens partitions and reloads groups and transactions from the metadata store, as a restart "
                    "would. Parts that fail again are listed again.",
                ),
            ),
        ),
    ),
    Act(
        "Statistics", "viewer", "describe cluster", "Get the statistics of a broker",
        "All of its numbers, for diagnosis. Their names may change with every version.",
        method="statistics", command="cluster", always=True, errors=("BROKER_NOT_FOUND",),
        routes=(
            Operation("getStatistics", "GET", "/v1/brokers/{broker}/statistics"),
            Operation(
                "describeBroker", "GET", "/v1/brokers/{broker}", "Describe a broker",
                "Gets a broker and its most important numbers.",
            ),
        ),
    ),
    Act(
        "History", "viewer", "describe cluster", "Get the past figures of a broker", method="history", always=True,
        missing="the dashboard draws them; `/metrics` and Prometheus are for other programs",
    ),
    Act(
        "Inventory", "admin", "alter cluster", "List the content of a broker's data folder", always=True,
        missing="brokers request it of each other to recover a cluster",
    ),
    Act(
        "RecoverCluster", "admin", "alter cluster", "Have brokers accept a metadata store that was restored or emptied",
        "Chooses one replica of each partition, which the others follow. Shows what each choice would lose first.",
        method="recover_cluster", command="cluster recover", dry_run=True, always=True,
        missing="a gateway's client follows the metadata that this repairs",
    ),
    # ---- access
    Act(
        "AddRule", "admin", "alter cluster", "Add a rule that allows or denies operations",
        "Open streams see it within a second. A rule that denies overrides all that allow.",
        method="access.add_rule", command="acl add", errors=("LIMIT_EXCEEDED",),
        routes=(
            Operation(
                "addRule", "POST", "/v1/rules",
                dialog=Dialog(
                    "Add a rule", "Add rule",
                    "It holds within a second, for open streams too. A rule that denies overrides all that allow.",
                ),
            ),
        ),
    ),
    Act(
        "RemoveRule", "admin", "alter cluster", "Remove a rule",
        "Open streams see it within a second.",
        method="access.remove_rule", command="acl remove",
        routes=(
            Operation(
                "removeRule", "POST", "/v1/rules/remove",
                dialog=Dialog(
                    "Remove a rule", "Remove rule",
                    "It ends within a second. Streams that then may do less end, and their clients connect again.",
                ),
            ),
        ),
    ),
    Act(
        "ListRules", "admin", "describe cluster", "List rules",
        "Shows what each client may do, and whether brokers enforce it.",
        method="access.list_rules", command="acl list",
        routes=(Operation("listRules", "GET", "/v1/rules"),),
    ),
    Act(
        "ExplainAccess", "admin", "describe cluster", "Explain whether a client may do something",
        "Shows the rule that decides.",
        method="access.explain_access", command="acl explain",
        routes=(Operation("explainAccess", "GET", "/v1/rules/explain"),),
    ),
    Act(
        "GrantRole", "admin", "alter cluster", "Grant a role to a principal",
        "The rules for the role then hold for it.",
        method="access.grant_role", command="role grant", errors=("LIMIT_EXCEEDED",),
        routes=(
            Operation(
                "grantRole", "POST", "/v1/roles/grant",
                dialog=Dialog(
                    "Grant a role", "Grant role",
                    "The rules for the role then hold for the principal, within a second and for open streams too.",
                ),
            ),
        ),
    ),
    Act(
        "RevokeRole", "admin", "alter cluster", "Revoke a role of a principal",
        "Open streams see it within a second.",
        method="access.revoke_role", command="role revoke",
        routes=(
            Operation(
                "revokeRole", "POST", "/v1/roles/revoke",
                dialog=Dialog(
                    "Revoke a role", "Revoke role",
                    "It ends within a second. Streams that then may do less end, and their clients connect again.",
                ),
            ),
        ),
    ),
    Act(
        "ListRoles", "admin", "describe cluster", "List roles and their members",
        "Those that were granted; a token may have more.",
        method="access.list_roles", command="role list",
        routes=(Operation("listRoles", "GET", "/v1/roles"),),
    ),
    Act(
        "CheckAccess", "viewer", "", "Check what the caller may do",
        missing="gateways ask it for their users; for people `comet acl explain` says why",
    ),
    Act(
        "CreateAccessKey", "admin", "alter cluster", "Create an access key",
        "Shows it once, since brokers keep its digest alone. A principal has two at most: one replaces the other.",
        method="access.create_access_key", command="key create", errors=("LIMIT_EXCEEDED",),
        routes=(
            Operation(
                "createAccessKey", "POST", "/v1/access-keys",
                dialog=Dialog(
                    "Create an access key", "Create key",
                    "Its text is shown once: brokers keep its digest alone. A principal has two keys at most.",
                ),
            ),
        ),
    ),
    Act(
        "ListAccessKeys", "admin", "describe cluster", "List access keys",
        "Shows whose each is, and when it expires.",
        method="access.list_access_keys", command="key list",
        routes=(Operation("listAccessKeys", "GET", "/v1/access-keys"),),
    ),
    Act(
        "RevokeAccessKey", "admin", "alter cluster", "Revoke an access key",
        "Its open streams end within a second.",
        method="access.revoke_access_key", command="key revoke",
        routes=(
            Operation(
                "revokeAccessKey", "DELETE", "/v1/access-keys/{id}",
                dialog=Dialog(
                    "Revoke access key {id}", "Revoke key",
                    "This cannot be undone. Its open streams end within a second.", "{id}",
                ),
            ),
        ),
    ),
    # ---- quotas
    Act(
        "SetQuota", "admin", "alter cluster", "Set the quota of a principal",
        "In place of its earlier one. Clients that send or read faster are slowed down, within a second.",
        method="access.set_quota", command="quota set", errors=("LIMIT_EXCEEDED",),
        routes=(
            Operation(
                "setQuota", "PUT", "/v1/quotas/{principal}",
                dialog=Dialog(
                    "Set a quota", "Set quota",
                    "In place of the principal's earlier one, at each broker. Clients beyond it are slowed down.",
                ),
            ),
        ),
    ),
    Act(
        "ListQuotas", "admin", "describe cluster", "List quotas",
        "Shows what each principal may use of each broker.",
        method="access.list_quotas", command="quota list",
        routes=(Operation("listQuotas", "GET", "/v1/quotas"),),
    ),
    Act(
        "RemoveQuota", "admin", "alter cluster", "Remove the quota of a principal",
        "Then the one of `*` holds for it, if there is one.",
        method="access.remove_quota", command="quota remove",
        routes=(
            Operation(
                "removeQuota", "DELETE", "/v1/quotas/{principal}",
                dialog=Dialog(
                    "Remove the quota of {principal}", "Remove quota",
                    "Then the quota of * holds for it, if there is one.",
                ),
            ),
        ),
    ),
    # ---- market calendars
    Act(
        "ListCalendars", "viewer", "describe cluster", "List market calendars",
        "Shows until when the sessions of each are known.",
        method="calendars.list_calendars", command="calendar list",
        routes=(Operation("listCalendars", "GET", "/v1/calendars"),),
    ),
    Act(
        "GetCalendar", "viewer", "describe cluster", "Get a market calendar",
        "Shows its sessions, with their opening and closing times.",
        method="calendars.get_calendar", command="calendar show", errors=("CALENDAR_NOT_FOUND",),
        routes=(Operation("getCalendar", "GET", "/v1/calendars/{calendar}"),),
    ),
    Act(
        "PutCalendar", "admin", "alter cluster", "Store a market calendar",
        "In place of an earlier version of it. The answer lists the dates that differ.",
        method="calendars.put_calendar", command="calendar put", dry_run=True,
        errors=("CALENDAR_CHANGED", "LIMIT_EXCEEDED"),
        routes=(Operation("putCalendar", "PUT", "/v1/calendars/{calendar}"),),
    ),
    Act(
        "DeleteCalendar", "admin", "alter cluster", "Delete a market calendar",
        "Schedules that use it have no next time then.",
        method="calendars.delete_calendar", command="calendar delete", errors=("CALENDAR_CHANGED",),
        routes=(Operation("deleteCalendar", "DELETE", "/v1/calendars/{calendar}"),),
    ),
    # ---- schedules
    Act(
        "ListSchedules", "viewer", "", "List schedules",
        "Shows when each is due next, by topic and id.",
        method="schedules.list_schedules", command="schedule list",
        routes=(Operation("listSchedules", "GET", "/v1/schedules"),),
    ),
    Act(
        "GetSchedule", "viewer", "read topic", "Get a schedule",
        "Shows its record and its state.",
        method="schedules.get_schedule", command="schedule show", errors=("SCHEDULE_NOT_FOUND",),
        routes=(Operation("getSchedule", "GET", "/v1/schedules/{topic}/{schedule}"),),
    ),
    Act(
        "PutSchedules", "operator", "write topic", "Store a schedule",
        "A broker writes its record to the topic each time that it is due. A schedule with the same id is replaced.",
        method="schedules.put_schedule", command="schedule add", dry_run=True,
        errors=("CALENDAR_NOT_FOUND", "LIMIT_EXCEEDED", "RECORD_TOO_LARGE", "REVISION_MISMATCH", "TOPIC_NOT_FOUND"),
        routes=(Operation("putSchedule", "PUT", "/v1/schedules/{topic}/{schedule}"),),
    ),
    Act(
        "CancelSchedule", "operator", "write topic", "Cancel a schedule",
        "It never fires again.",
        method="schedules.cancel_schedule", command="schedule cancel", dry_run=True, asks=True,
        errors=("REVISION_MISMATCH", "SCHEDULE_NOT_FOUND"),
        routes=(
            Operation(
                "cancelSchedule", "DELETE", "/v1/schedules/{topic}/{schedule}",
                dialog=Dialog("Cancel schedule {schedule} of {topic}", "Cancel schedule", "It never fires again."),
            ),
        ),
    ),
    Act(
        "PauseSchedule", "operator", "write topic", "Pause a schedule",
        "It does not fire until it is resumed.",
        method="schedules.pause_schedule", command="schedule pause", dry_run=True,
        errors=("REVISION_MISMATCH", "SCHEDULE_NOT_FOUND"),
        routes=(
            Operation(
                "pauseSchedule", "POST", "/v1/schedules/{topic}/{schedule}/pause",
                dialog=Dialog("Pause schedule {schedule} of {topic}", "Pause", "It does not fire until it is resumed."),
            ),
        ),
    ),
    Act(
        "ResumeSchedule", "operator", "write topic", "Resume a paused schedule",
        "Times that are over are not made up for; one that was to fire once fires now if its time is over.",
        method="schedules.resume_schedule", command="schedule resume", dry_run=True,
        errors=("CALENDAR_NOT_FOUND", "REVISION_MISMATCH", "SCHEDULE_NOT_FOUND"),
        routes=(
            Operation(
                "resumeSchedule", "POST", "/v1/schedules/{topic}/{schedule}/resume",
                dialog=Dialog(
                    "Resume schedule {schedule} of {topic}", "Resume",
                    "Times that are over are not made up for; one that was to fire once fires now if its time is over.",
                ),
            ),
        ),
    ),
    Act(
        "RunSchedule", "operator", "write topic", "Run a schedule now",
        "It fires once, beside its times; one that was to fire once is over then. It must not be paused.",
        method="schedules.run_schedule", command="schedule run", dry_run=True,
        errors=("REVISION_MISMATCH", "SCHEDULE_NOT_FOUND"),
        routes=(
            Operation(
                "runSchedule", "POST", "/v1/schedules/{topic}/{schedule}/run",
                dialog=Dialog(
                    "Run schedule {schedule} of {topic} now", "Run now",
                    "It fires once, beside its times; one that was to fire once has fired then.",
                ),
            ),
        ),
    ),
    Act(
        "MoveSchedule", "operator", "write topic", "Give a schedule other times",
        "Its record stays.",
        method="schedules.move_schedule", command="schedule move", dry_run=True,
        errors=("CALENDAR_NOT_FOUND", "REVISION_MISMATCH", "SCHEDULE_NOT_FOUND"),
        routes=(
            Operation(
                "moveSchedule", "POST", "/v1/schedules/{topic}/{schedule}/move",
                dialog=Dialog("Move schedule {schedule} of {topic}", "Move", "It gets other times. Its record stays."),
            ),
        ),
    ),
)  # fmt: skip

ACTS: Final[Mapping[str, Act]] = {row.name: row for row in _ROWS}
OPERATIONS: Final[Mapping[str, tuple[Act, Operation]]] = {
    route.id: (row, route) for row in _ROWS for route in row.routes
}


def dialogs() -> Iterator[tuple[str, dict[str, Any]]]:
    """The operations that ask for confirmation, with the texts and the call, as pages get them."""
    for operation, (_, route) in OPERATIONS.items():
        if route.dialog is not None:
            texts = {"title": route.dialog.title, "action": route.dialog.action, "note": route.dialog.note}
            yield operation, {"method": route.method, "path": route.path, **texts, "typed": route.dialog.typed}
