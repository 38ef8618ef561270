"""The Comet broker: the log, the stream and the metadata behind them. Not a public API."""
