"""
tenure in a Litestar application: one plugin for locks and idempotency.

    pip install "tenure[litestar]"
"""

from tenure.ext.asgi import UNSCOPED, ClientQuota, IdempotencyOptions
from tenure.ext.litestar._plugin import TenurePlugin

__all__ = ["UNSCOPED", "ClientQuota", "IdempotencyOptions", "TenurePlugin"]
