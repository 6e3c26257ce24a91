"""`python -m phasegrad`."""

import sys

from phasegrad.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
