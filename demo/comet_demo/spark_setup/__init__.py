"""The way to the Spark job: where Spark is missing, it is installed while quotes already move. Needs no Spark."""
