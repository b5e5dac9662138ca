"""Where the command `forebay` begins.

It stands beside the package, not in it: what the package imports takes a while, and Ctrl-C must end the command quietly
from the first moment on, not with a traceback of an import.
"""


def main() -> int:
    """Runs the command line and gives its exit code."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from forebay import _cli

    return _cli.main()
