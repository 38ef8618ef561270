"""Topics as tables: Arrow, pandas and Polars, read and written; and files that are replayed as records."""
