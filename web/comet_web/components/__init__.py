"""Parts of pages: numbers, tables, charts, navigation."""
