"""
Everything that the shop's migrations look after, in one place.

A model that is not imported does not exist for Alembic, and the next autogenerate would drop its table.
"""

from sqlalchemy import MetaData

from cat_store.admin.controls import JobControlRow
from cat_store.database.locks import LockRow
from cat_store.database.records import RecordRow
from cat_store.database.registry import Model
from cat_store.inventory.alerts import FeedPlace
from cat_store.inventory.models import Product
from cat_store.live.models import EventRow, ReplicaRow
from cat_store.orders.models import Order, OrderLine

__all__ = [
    "EventRow",
    "FeedPlace",
    "JobControlRow",
    "LockRow",
    "Order",
    "OrderLine",
    "Product",
    "RecordRow",
    "ReplicaRow",
    "metadata",
]

metadata: MetaData = Model.metadata
