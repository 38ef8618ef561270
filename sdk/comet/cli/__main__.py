"""`python -m comet.cli`, for where the `comet` script is not on the path."""

from comet.cli import main

main()
