"""Topics as tables: Arrow, pandas and Polars, read and written."""
