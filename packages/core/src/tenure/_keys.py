"""Keys: what a lock may be named. The same rules in every store, checked before anything is sent."""

from tenure.errors import ConfigurationError

MAX_KEY_LENGTH = 500
"""Characters. Of any script: at most 2000 bytes in UTF-8, below what a PostgreSQL index row can hold."""

MAX_OWNER_LENGTH = 200
MAX_INSTANCE_LENGTH = 100
MAX_FINGERPRINT_LENGTH = 200


def check_key(key: str) -> str:
    """
    Refuse a key that some store could not keep apart from another.

    Args:
        key: 1 to 500 characters of any Unicode, compared exactly: no normalisation, no collation, case
            kept.

    Raises:
        ConfigurationError: The key is no `str`, empty, too long, or holds NUL or a lone surrogate.
    """
    return _check(key, "key", MAX_KEY_LENGTH)


def check_owner(owner: str) -> str:
    """
    Refuse an owner that some store could not record. The message never holds the owner.

    Raises:
        ConfigurationError: The owner is no `str`, empty, over 200 characters, or holds NUL or a lone
            surrogate.
    """
    return _check(owner, "owner", MAX_OWNER_LENGTH)


def check_instance(name: str) -> str:
    """
    Refuse an instance name that would not read back from an owner.

    Raises:
        ConfigurationError: The name is no `str`, empty, over 100 characters, or holds NUL or a lone
            surrogate.
    """
    return _check(name, "instance", MAX_INSTANCE_LENGTH)


def check_fingerprint(fingerprint: str) -> str:
    """
    Refuse a fingerprint that some store could not record. The message never holds it.

    Raises:
        ConfigurationError: The fingerprint is no `str`, empty, over 200 characters, or holds NUL or a lone
            surrogate.
    """
    return _check(fingerprint, "fingerprint", MAX_FINGERPRINT_LENGTH)


def _check(value: str, name: str, longest: int) -> str:
    # What nearly every value is comes first: each of the looks below is one call in C, and no loop of Python's.
    if type(value) is str and 0 < len(value) <= longest and value.isascii() and "\0" not in value:
        return value
    # The messages hold no value: an owner must not be logged, and a key of 10 MB should not be either.
    if not isinstance(value, str):
        raise ConfigurationError(f"The {name} is of type {type(value).__name__}: it must be a str.")
    if not value:
        raise ConfigurationError(f"The {name} is empty: give it 1 to {longest} characters.")
    if len(value) > longest:
        raise ConfigurationError(
            f"The {name} has {len(value)} characters: it may have {longest}. Shorten it, or hash its tail."
        )
    if "\0" in value:
        raise ConfigurationError(f"The {name} holds a NUL character, which PostgreSQL cannot store: leave it out.")
    try:
        str.encode(value)
    except UnicodeEncodeError:
        # From none: the error of the codec holds the value.
        raise ConfigurationError(
            f"The {name} holds a lone surrogate, which has no UTF-8 form: decode the text that it came "
            "from with errors='replace' or 'strict'."
        ) from None
    return value
