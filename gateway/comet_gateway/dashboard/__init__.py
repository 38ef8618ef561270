"""The dashboard behind its pages: facts from the brokers, HTML, the live channel, sessions of browsers."""
