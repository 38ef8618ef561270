"""Share groups: the leader of a partition gives its records to any number of members, one by one."""
