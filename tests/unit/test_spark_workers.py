"""What a worker of Spark's keeps from one task to the next."""

from __future__ import annotations

import gc

import comet
from comet.spark.options import SourceOptions
from comet.spark.ranges import reader_of


def test_what_was_imported_is_no_garbage_to_look_for_after_each_task() -> None:
    options = SourceOptions(bootstrap="localhost:1", topics=("quotes",))
    before = gc.get_freeze_count()
    try:
        reader = reader_of(options)
        assert gc.get_freeze_count() > before
        assert reader_of(options) is reader
    finally:
        gc.unfreeze()
        comet.sync.call(reader.close())
