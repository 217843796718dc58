"""The tables that the replicas tell each other's live pages through."""

from datetime import datetime
from typing import Any, Final

from sqlalchemy import BigInteger, DateTime, Identity, String, Text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from cat_store.database.registry import Model

__all__ = ["LONGEST_ADDRESS", "LONGEST_KIND", "EventRow", "ReplicaRow"]

LONGEST_ADDRESS: Final = 300
LONGEST_KIND: Final = 100


class ReplicaRow(Model):
    """
    One replica, as it told of itself last. Each writes its own row alone.

    Attributes:
        leads: The elections that it leads: token by key.
        tokens: The last token that it was given for each of the keys that it took lately.
        backend_pid: The server process of the session that writes this row. A killed replica's session ends with it, a
            paused one's does not: that tells the two apart, and silence alone could not.
        backend_start: When that session began: process ids come again.
        stopped_at: When it said goodbye.
    """

    __tablename__ = "live_replicas"

    instance: Mapped[str] = mapped_column(String(100), primary_key=True)
    address: Mapped[str] = mapped_column(String(LONGEST_ADDRESS))
    locks: Mapped[bool]
    leads: Mapped[dict[str, Any]] = mapped_column(JSONB)
    tokens: Mapped[dict[str, Any]] = mapped_column(JSONB)
    backend_pid: Mapped[int]
    backend_start: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    started_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    seen_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    stopped_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))


class EventRow(Model):
    """
    Something that happened on one replica.

    Attributes:
        at: When, on the database's clock: the replicas' own ones differ.
        kind: Its name for machines, such as `stock.reconciled` or `tenure.LeaseLost`.
        times: How often it happened since it was told last.
    """

    __tablename__ = "live_events"

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    instance: Mapped[str] = mapped_column(String(100))
    level: Mapped[str] = mapped_column(String(10))
    kind: Mapped[str] = mapped_column(String(LONGEST_KIND))
    message: Mapped[str] = mapped_column(Text)
    times: Mapped[int]
