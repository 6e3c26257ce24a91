"""`python -m phasegrad`."""

import sys

from phasegrad.cli import main

if __name__ == "__main__":
    sys.exit(main())
