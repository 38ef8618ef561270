"""Copies topics of a Kafka cluster into Comet, each record once.

    block           partitions whose positions are committed together, and their note    (pure)
    topic_config    the properties of a client, and the settings of a topic              (pure)
    reader          reads Kafka, by librdkafka
    copier          writes what was read in transactions that carry the positions

Needs the extra `kafka`. Used by `comet import kafka`.
"""
