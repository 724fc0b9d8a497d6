"""`python -m fmhagen`: the command line."""

from fmhagen.cli import main

main()
