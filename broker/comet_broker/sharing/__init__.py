"""Share groups: the leader of a partition gives its records to any number of members, one by one."""

from comet_broker.sharing.stream import Sharing
from comet_broker.sharing.table import ShareStatus, ShareTable

__all__ = ["ShareStatus", "ShareTable", "Sharing"]
