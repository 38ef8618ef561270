"""The Comet broker: the log, the stream and the metadata behind them. Not a public API."""

from comet.wire.tuning import tune_process

tune_process()  # here, because it must come before the first import of grpc
