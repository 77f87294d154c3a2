"""`python -m boxwright`."""

from boxwright.cli.main import main

if __name__ == "__main__":
    main()
