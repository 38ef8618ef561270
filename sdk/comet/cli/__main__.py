"""`python -m comet.cli`, if the `comet` script is not on the path."""

from comet.cli import main

main()
