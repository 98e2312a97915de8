"""`python -m selattn` is the command `selattn`."""

from selattn.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
