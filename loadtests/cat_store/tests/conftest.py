"""What the tests of the load share: a first import without its warning."""

import warnings

from sqlalchemy.exc import SADeprecationWarning

with warnings.catch_warnings():
    # advanced-alchemy 1.12 still uses a decorator that SQLAlchemy 2.1 deprecates; its first import warns of it.
    warnings.simplefilter("ignore", SADeprecationWarning)
    import advanced_alchemy.base  # noqa: F401 -- imported for its effect
