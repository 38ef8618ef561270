"""Comet topics as Spark's: a source and a sink, for batches and for streams, found by their name.

    spark.read.format("comet").option("subscribe", "quotes").load()
    spark.readStream.format("comet").option("subscribe", "quotes").load()
    df.write.format("comet").option("topic", "bars").mode("append").save()
    df.writeStream.format("comet").option("topic", "bars").option("checkpointLocation", …).start()

Nothing has to be registered, no jar found: what runs in Spark's Python workers is this package and the SDK.

    options     what can be asked for, under the names of Spark's Kafka source where they mean the same      (pure)
    planning    ranges of offsets: what is to be read, in how many parts, how far this time                  (pure)
    columns     from the log's columns to the columns of a frame, without touching a record
    joining     small batches put together first
    ranges      one range from its leader, checked, as Arrow batches; in the executors
    cluster     what the driver asks brokers
    source      the classes that Spark calls to read

    sink_options    what a write can be asked for                                                              (pure)
    units           what is written once, and how that is known                                                (pure)
    rows            from the columns of a frame to what a producer takes
    writing         one task that writes, in a transaction or without; in the executors
    ending          whether a task's input came to its end, or only stopped
    sink            the classes that Spark calls to write

    parsing     how options are read                                                                           (pure)

Needs the extra `spark`.
"""
