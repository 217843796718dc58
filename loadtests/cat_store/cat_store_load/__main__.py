"""`python -m cat_store_load`."""

import sys

from cat_store_load.cli import main

if __name__ == "__main__":
    sys.exit(main())
