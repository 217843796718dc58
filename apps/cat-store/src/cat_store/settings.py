"""
The settings of a replica: read from the environment once, checked before anything is opened.

Every variable that is wrong is reported, each with what it is for and what would do: who starts a container wants
one list, not one restart a mistake. No message holds the value of a URL, for a URL may hold a password.
"""

import difflib
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cat_store import parse

__all__ = ["PREFIX", "VARIABLES", "Settings", "SettingsError", "Variable", "read_one"]

PREFIX = "CAT_STORE_"


class SettingsError(Exception):
    """
    The environment does not describe a replica.

    Attributes:
        problems: One sentence for each variable that is missing, malformed or unknown.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(["The settings are not complete:", *(f"  {problem}" for problem in self.problems)])


@dataclass(frozen=True, slots=True)
class Variable:
    """
    One variable of the environment.

    Attributes:
        name: The variable, without its prefix.
        read: Turns its text into the setting; raises ValueError with what would do.
        meaning: What it is for.
        default: Its text where the environment does not have it; None for a variable that must be there.
    """

    name: str
    read: Callable[[str], Any]
    meaning: str
    default: str | None = None

    @property
    def full_name(self) -> str:
        """The variable as the environment has it."""
        return PREFIX + self.name


VALKEY_SCHEMES = ("valkey", "valkeys", "valkey+cluster", "valkeys+cluster", "redis", "rediss", "redis+sentinel")
"""The schemes of the stores that tenure-valkey brings."""

VARIABLES: Mapping[str, Variable] = {
    "database_url": Variable(
        "DATABASE_URL", parse.url("postgresql+asyncpg"), "the shop's PostgreSQL, with its orders and its locks"
    ),
    "locks_url": Variable(
        "LOCKS_URL",
        parse.optional(parse.store("postgresql+asyncpg", *VALKEY_SCHEMES)),
        "where the locks are, if not in the shop's database",
        "",
    ),
    "valkey_url": Variable("VALKEY_URL", parse.url("redis", "rediss"), "the Valkey that holds the schedule"),
    "idempotency_url": Variable(
        "IDEMPOTENCY_URL",
        parse.optional(parse.store("postgresql+asyncpg", *VALKEY_SCHEMES)),
        "where the records of idempotency keys are, if not in the shop's database",
        "",
    ),
    "idempotency_retention_s": Variable(
        "IDEMPOTENCY_RETENTION", parse.retention, "how long a repeated request gets the first answer", "86400"
    ),
    "idempotency_lock_ttl_s": Variable(
        "IDEMPOTENCY_LOCK_TTL", parse.seconds, "how soon a request may be repeated after its replica was killed", "30"
    ),
    "accounting_url": Variable("ACCOUNTING_URL", parse.url("http", "https"), "the accounting system"),
    "warehouse_url": Variable("WAREHOUSE_URL", parse.url("http", "https"), "the warehouse"),
    "instance": Variable(
        "INSTANCE", parse.name, "the name of this replica, stable across restarts", socket.gethostname()
    ),
    "host": Variable("HOST", parse.host, "the interface that the web server listens on", "127.0.0.1"),
    "port": Variable("PORT", parse.port, "the web server's port; 0 for any that is free", "3001"),
    "address": Variable(
        "ADDRESS",
        parse.optional(parse.url("http", "https")),
        "where browsers and the other replicas reach this one, if not at its host and port",
        "",
    ),
    "admin_token": Variable(
        "ADMIN_TOKEN", parse.optional(parse.secret), "what an administrator sends; without it nobody is one", ""
    ),
    "locks": Variable("LOCKS", parse.switch, "whether jobs run under locks; off shows why they should", "on"),
    "lock_ttl_s": Variable("LOCK_TTL", parse.seconds, "how long a lease lives without a renewal", "30"),
    "drain_s": Variable(
        "DRAIN", parse.seconds, "how long a stopping replica waits for requests, and for running jobs", "20"
    ),
    "start_within_s": Variable(
        "START_WITHIN",
        parse.seconds,
        "how long a starting replica waits for its servers and partners to answer",
        "30",
    ),
    "invoice_export_cron": Variable("INVOICE_EXPORT_CRON", parse.cron, "when invoices are exported", "0 2 * * *"),
    "stock_reconciliation_cron": Variable(
        "STOCK_RECONCILIATION_CRON", parse.cron, "when stock is counted", "*/5 * * * *"
    ),
    "record_purge_cron": Variable(
        "RECORD_PURGE_CRON", parse.cron, "when old records of idempotency keys are deleted", "*/10 * * * *"
    ),
    "timezone": Variable("TIMEZONE", parse.timezone, "the time zone of the crons", "Europe/Warsaw"),
    "log_level": Variable("LOG_LEVEL", parse.one_of("debug", "info", "warning", "error"), "what is logged", "info"),
    "log_format": Variable("LOG_FORMAT", parse.one_of("text", "json"), "lines for people or for machines", "text"),
    "rehearsal": Variable(
        "REHEARSAL", parse.switch, "whether the replica pauses and dies when told to; demo only", "off"
    ),
    "lock_history": Variable(
        "LOCK_HISTORY", parse.optional(str), "the file that takes down every call to the lock store; demo only", ""
    ),
    "demo_url": Variable(
        "DEMO_URL", parse.optional(parse.url("http")), "what the buttons of the page go through; demo only", ""
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a replica needs to know. URLs and the token are left out of its `repr`."""

    database_url: str = field(repr=False)
    valkey_url: str = field(repr=False)
    accounting_url: str = field(repr=False)
    warehouse_url: str = field(repr=False)
    instance: str
    locks_url: str | None = field(default=None, repr=False)
    idempotency_url: str | None = field(default=None, repr=False)
    idempotency_retention_s: float = 86_400.0
    idempotency_lock_ttl_s: float = 30.0
    host: str = "127.0.0.1"
    port: int = 3001
    address: str | None = None
    admin_token: str | None = field(default=None, repr=False)
    locks: bool = True
    lock_ttl_s: float = 30.0
    drain_s: float = 20.0
    start_within_s: float = 30.0
    invoice_export_cron: str = "0 2 * * *"
    stock_reconciliation_cron: str = "*/5 * * * *"
    record_purge_cron: str = "*/10 * * * *"
    timezone: str = "Europe/Warsaw"
    log_level: str = "info"
    log_format: str = "text"
    rehearsal: bool = False
    lock_history: str | None = None
    demo_url: str | None = field(default=None, repr=False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "Settings":
        """
        Read and check every variable.

        Args:
            environment: Where to read; None for the process's own.

        Raises:
            SettingsError: Variables are missing, malformed, or not ours although they carry our prefix.
        """
        environment = os.environ if environment is None else environment
        problems = _unknown(environment)
        values = {setting: _read(variable, environment, problems) for setting, variable in VARIABLES.items()}
        if problems:
            raise SettingsError(problems)
        return cls(**values)


def _unknown(environment: Mapping[str, str]) -> list[str]:
    """A mistyped variable would leave its setting at the default, and nobody would know."""
    known = [variable.full_name for variable in VARIABLES.values()]
    problems = []
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else "take it out, or see the README for what there is."
            problems.append(f"{name} is no setting: {hint}")
    return problems


def read_one(setting: str, environment: Mapping[str, str] | None = None) -> Any:
    """
    Read a single setting, for a command that needs no other.

    Raises:
        SettingsError: Its variable is missing or malformed.
    """
    problems: list[str] = []
    value = _read(VARIABLES[setting], os.environ if environment is None else environment, problems)
    if problems:
        raise SettingsError(problems)
    return value


def _read(variable: Variable, environment: Mapping[str, str], problems: list[str]) -> Any:
    text = environment.get(variable.full_name, "").strip() or variable.default
    if text is None:
        problems.append(f"{variable.full_name} is missing: it names {variable.meaning}.")
        return None
    try:
        return variable.read(text)
    except ValueError as error:
        problems.append(f"{variable.full_name} ({variable.meaning}) {error}.")
        return None
