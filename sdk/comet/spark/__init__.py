"""Comet topics in Spark: a source and a sink, for batches and streams, found by name.

    spark.read.format("comet").option("subscribe", "quotes").load()
    spark.readStream.format("comet").option("subscribe", "quotes").load()
    df.write.format("comet").option("topic", "bars").mode("append").save()
    df.writeStream.format("comet").option("topic", "bars").option("checkpointLocation", …).start()

Needs no registration and no jar: Spark's Python workers run this package and the SDK.

    options         the source's options, named as those of Spark's Kafka source if they mean the same     (pure)
    planning        the ranges of offsets to read, their parts, and the limit of a batch                   (pure)
    columns         from the log's columns to those of a frame, without touching a record
    value_types     the columns of values, from DDL or a model                                             (pure)
    decoder         JSON values to Arrow structs
    coalesce        joins small batches
    ranges          reads a range from its leader, checked, as Arrow batches; in the executors
    snapshots       reads the last record of each key of a range; in the executors
    cluster         the driver's requests to brokers
    group_progress  commits a stream's progress to a group
    source          the classes that Spark calls to read

    sink_options    the sink's options                                                                     (pure)
    write_unit      the unit that is written once, and its note                                            (pure)
    rows            from the columns of a frame to the arguments of a producer
    writing         a task that writes, in a transaction or without; in the executors
    task_end        whether a task's input is complete
    sink            the classes that Spark calls to write

    connection_options  the options of a connection, with the files of TLS
    parsing             parses options                                                                     (pure)

For programs:

    session             a session on this machine that ends with its JVM, from `local`
    local               Spark on this machine: a Java, and the settings of that session
    update_writer       writes the changed rows of a query, from the driver: for foreachBatch
    query_supervisor    starts queries one after the other, restarts failed ones, reports their states
    query_state         the state of a query, as a record                                                  (pure)
    query_reports       the reports of queries in a topic: written, and read as one line; needs no Spark
    joins               each row with the latest row of another frame: an as-of join

Needs the extra `spark`.
"""

from comet.spark.local import session

__all__ = ["session"]
