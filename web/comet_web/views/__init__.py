"""What each page says: pure functions from facts to documents, one module a page."""
