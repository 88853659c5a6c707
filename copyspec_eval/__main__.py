"""`python -m copyspec_eval`, the same as the command `copyspec-eval`."""

import sys

from copyspec_eval.cli import main

if __name__ == "__main__":
    sys.exit(main())
