"""`python -m cat_store`: the same as `cat-store`, for processes that are started from a process."""

from cat_store.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
