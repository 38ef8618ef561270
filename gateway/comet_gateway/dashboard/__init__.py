"""The dashboard behind its pages: facts from the brokers, HTML, live pages and channels, sessions of browsers."""
