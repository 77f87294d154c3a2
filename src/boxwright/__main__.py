"""The `boxwright` program, also as `python -m boxwright`."""

import sys


def run() -> None:
    """Run the program; Ctrl-C ends it in one line from its first import on."""
    try:
        from boxwright.cli.main import main

        main()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201  # the console may not be imported yet
        sys.exit(130)


if __name__ == "__main__":
    run()
