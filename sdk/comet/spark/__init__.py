"""Comet topics as Spark's: a source for batches and for streams, found by its name.

    spark.read.format("comet").option("subscribe", "quotes").load()
    spark.readStream.format("comet").option("subscribe", "quotes").load()

Nothing has to be registered, no jar found: what runs in Spark's Python workers is this package and the SDK.

    options     what can be asked for, under the names of Spark's Kafka source where they mean the same      (pure)
    planning    ranges of offsets: what is to be read, in how many parts, how far this time                  (pure)
    columns     from the log's columns to the columns of a frame, without touching a record
    ranges      one range from its leader, checked, as Arrow batches; in the executors
    cluster     what the driver asks brokers
    source      the classes that Spark calls

Needs the extra `spark`.
"""
