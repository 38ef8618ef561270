"""Looking for records: what is asked of them, and a bounded walk through the log that finds those which answer."""
