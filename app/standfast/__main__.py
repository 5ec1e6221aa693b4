"""`python -I -m standfast`: the same commands as the `standfast` script."""

import sys

from standfast.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
