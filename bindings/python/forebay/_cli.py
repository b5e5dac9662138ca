"""The command `forebay`."""

import signal
import sys

from forebay import _forebay


def main() -> int:
    """Runs the command line and gives its exit code."""
    # The command runs in compiled code, where Python's own handler would wait for its end: Ctrl-C ends it at once.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _forebay.run_cli(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
