import pytest

from cat_store.settings import VARIABLES, Settings, SettingsError

COMPLETE = {
    "CAT_STORE_DATABASE_URL": "postgresql+asyncpg://shop:secret@db:5432/shop",
    "CAT_STORE_VALKEY_URL": "redis://valkey:6379/0",
    "CAT_STORE_ACCOUNTING_URL": "http://partners:3100/accounting",
    "CAT_STORE_WAREHOUSE_URL": "http://partners:3100/warehouse",
}


def problems_of(**changes: str) -> list[str]:
    environment = {**COMPLETE, **{f"CAT_STORE_{name}": value for name, value in changes.items()}}
    with pytest.raises(SettingsError) as caught:
        Settings.from_environment(environment)
    return caught.value.problems


def test_four_urls_are_all_that_a_replica_must_be_told() -> None:
    settings = Settings.from_environment(COMPLETE)
    assert settings.locks
    assert settings.lock_ttl_s == 30
    assert settings.invoice_export_cron == "0 2 * * *"
    assert settings.stock_reconciliation_cron == "*/5 * * * *"
    assert settings.timezone == "Europe/Warsaw"
    assert settings.instance
    assert (settings.host, settings.port) == ("127.0.0.1", 3001)
    assert settings.admin_token is None
    assert settings.idempotency_url is None
    assert settings.idempotency_retention_s == 86_400


def test_every_missing_variable_is_reported_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_environment({})
    assert [problem.split()[0] for problem in caught.value.problems] == list(COMPLETE)
    assert "CAT_STORE_WAREHOUSE_URL is missing: it names the warehouse." in str(caught.value)


def test_an_empty_variable_counts_as_missing() -> None:
    assert problems_of(DATABASE_URL="  ") == [
        "CAT_STORE_DATABASE_URL is missing: it names the shop's PostgreSQL, with its orders and its locks."
    ]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("DATABASE_URL", "mysql://db/shop", "has the scheme 'mysql': it must begin with postgresql+asyncpg://"),
        ("DATABASE_URL", "postgresql+asyncpg:///shop", "has no host"),
        ("DATABASE_URL", "postgresql+asyncpg://db:port/shop", "is no URL"),
        ("VALKEY_URL", "valkey", "has the scheme 'none': it must begin with redis:// or rediss://"),
        ("ACCOUNTING_URL", "accounting.example", "has the scheme 'none'"),
        ("WAREHOUSE_URL", "ftp://warehouse", "has the scheme 'ftp'"),
        ("INSTANCE", "cat store 1", "must have at most 100 letters"),
        ("INSTANCE", "c" * 101, "must have at most 100 letters"),
        ("LOCKS", "maybe", "is 'maybe': write on or off"),
        ("PORT", "http", "is 'http': write a number from 0 (any free port) to 65535"),
        ("PORT", "65536", "write a number from 0"),
        ("PORT", "-1", "write a number from 0"),
        ("HOST", "http://here/", "is no address to listen on"),
        ("ADMIN_TOKEN", "two words of somebody", "must have 16 to 200 printable ASCII characters and no space"),
        ("ADMIN_TOKEN", "żółw-administrator", "must have 16 to 200 printable ASCII characters"),
        ("ADMIN_TOKEN", "x" * 15, "must have 16 to 200 printable ASCII characters"),
        ("ADMIN_TOKEN", "x" * 201, "must have 16 to 200 printable ASCII characters"),
        (
            "IDEMPOTENCY_URL",
            "http://valkey",
            "is no URL of a store: it must begin with postgresql+asyncpg://, valkey://",
        ),
        ("IDEMPOTENCY_URL", "valkey://", "is no URL of a store"),
        ("IDEMPOTENCY_RETENTION", "0", "must be more than 0 seconds"),
        ("IDEMPOTENCY_RETENTION", "2592001", "must be at most 2592000 seconds, thirty days"),
        ("IDEMPOTENCY_RETENTION", "24h", "is '24h': write seconds as a number"),
        ("IDEMPOTENCY_LOCK_TTL", "86401", "must be at most 86400 seconds, a day"),
        ("RECORD_PURGE_CRON", "hourly", "write a cron expression of five fields"),
        ("LOCK_TTL", "soon", "is 'soon': write seconds as a number"),
        ("LOCK_TTL", "-3", "must be more than 0 seconds"),
        ("LOCK_TTL", "0", "must be more than 0 seconds"),
        ("LOCK_TTL", "nan", "must be more than 0 seconds"),
        ("LOCK_TTL", "30000000", "must be at most 86400 seconds"),
        ("DRAIN", "-1", "must be more than 0 seconds"),
        ("INVOICE_EXPORT_CRON", "at two", "write a cron expression of five fields"),
        ("INVOICE_EXPORT_CRON", "61 2 * * *", "write a cron expression of five fields"),
        ("STOCK_RECONCILIATION_CRON", "@hourly", "write a cron expression of five fields"),
        ("TIMEZONE", "Europe/Catopolis", "write a time zone's name"),
        ("TIMEZONE", "../etc/passwd", "write a time zone's name"),
        ("LOG_LEVEL", "loud", "write one of debug, info, warning, error"),
        ("LOG_FORMAT", "xml", "write one of text, json"),
        ("REHEARSAL", "2", "write on or off"),
    ],
)
def test_a_malformed_variable_is_reported_with_what_would_do(name: str, value: str, said: str) -> None:
    (problem,) = problems_of(**{name: value})
    assert problem.startswith(f"CAT_STORE_{name} (")
    assert said in problem


def test_a_mistyped_variable_is_not_ignored() -> None:
    assert problems_of(LOCK_TLL="3") == ["CAT_STORE_LOCK_TLL is no setting: did you mean CAT_STORE_LOCK_TTL?"]


def test_no_error_and_no_repr_holds_a_password() -> None:
    (problem,) = problems_of(DATABASE_URL="postgres://shop:secret@db/shop")
    assert "secret" not in problem
    (problem,) = problems_of(ADMIN_TOKEN="a secret of administrators")
    assert "secret" not in problem
    held = {
        "CAT_STORE_ADMIN_TOKEN": "secret-of-administrators",
        "CAT_STORE_IDEMPOTENCY_URL": "valkey://:secret@cache",
        "CAT_STORE_LOCKS_URL": "valkey://:secret@cache",
    }
    assert "secret" not in repr(Settings.from_environment(COMPLETE | held))


def test_every_setting_has_its_variable() -> None:
    assert set(VARIABLES) == set(Settings.__dataclass_fields__)
