"""`python -m fclub`."""

from fclub.cli.main import main

main()
