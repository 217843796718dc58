"""Locks and records of requests on Valkey and Redis: the stores of `tenure`, on one server, a cluster or Sentinel."""

from tenure_valkey.errors import (
    ClientSettingsWarning,
    ForeignValueError,
    TokensExhaustedError,
    UnreadableReplyError,
    ValkeyStoreError,
)
from tenure_valkey.glide import GlideRunner
from tenure_valkey.idempotency_store import ValkeyIdempotencyStore
from tenure_valkey.lock_store import ValkeyLockStore
from tenure_valkey.opening import open_valkey_idempotency_store, open_valkey_store
from tenure_valkey.redis import RedisRunner
from tenure_valkey.redis_client import create_redis_client
from tenure_valkey.runner import FindsKeys, RunsMany, RunsOnPrimaries, Script, ScriptRunner
from tenure_valkey.subscriptions import Subscriber, Subscribes

__all__ = [
    "ClientSettingsWarning",
    "FindsKeys",
    "ForeignValueError",
    "GlideRunner",
    "RedisRunner",
    "RunsMany",
    "RunsOnPrimaries",
    "Script",
    "ScriptRunner",
    "Subscriber",
    "Subscribes",
    "TokensExhaustedError",
    "UnreadableReplyError",
    "ValkeyIdempotencyStore",
    "ValkeyLockStore",
    "ValkeyStoreError",
    "create_redis_client",
    "open_valkey_idempotency_store",
    "open_valkey_store",
]
