"""What the shop's models have in common: a registry of their own, which no other application's tables get into."""

from advanced_alchemy.base import CommonTableAttributes, create_registry
from sqlalchemy.ext.asyncio import AsyncAttrs
from sqlalchemy.orm import DeclarativeBase

__all__ = ["Model"]


class Model(CommonTableAttributes, AsyncAttrs, DeclarativeBase):
    """The parent of every model. advanced-alchemy's own bases share one registry in a process, whoever uses them."""

    registry = create_registry()
