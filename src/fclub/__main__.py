"""`python -m fclub`."""

from fclub.cli.main import main

if __name__ == "__main__":
    main()
