"""What is imported before the tests, as it warns of what is not theirs."""

import warnings

from sqlalchemy.exc import SADeprecationWarning

with warnings.catch_warnings():
    # advanced-alchemy 1.12 still uses a decorator that SQLAlchemy 2.1 deprecates; its first import warns of it.
    warnings.simplefilter("ignore", SADeprecationWarning)
    import advanced_alchemy.base  # noqa: F401
