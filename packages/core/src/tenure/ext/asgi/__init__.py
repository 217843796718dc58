"""HTTP idempotency for any ASGI application, without a framework."""

from tenure.ext.asgi._canonical import canonical_json
from tenure.ext.asgi._guard import DEFAULT_NAMESPACE, DEFAULT_PROBLEM_BASE, RequestGuard
from tenure.ext.asgi._inner_scope import CONTEXT_KEY
from tenure.ext.asgi._middleware import IdempotencyMiddleware
from tenure.ext.asgi._options import UNSCOPED, IdempotencyOptions, Principal, Unscoped
from tenure.ext.asgi._problems import PROBLEMS, Problem, problem_of
from tenure.ext.asgi._quota import ClientQuota

__all__ = [
    "CONTEXT_KEY",
    "DEFAULT_NAMESPACE",
    "DEFAULT_PROBLEM_BASE",
    "PROBLEMS",
    "UNSCOPED",
    "ClientQuota",
    "IdempotencyMiddleware",
    "IdempotencyOptions",
    "Principal",
    "Problem",
    "RequestGuard",
    "Unscoped",
    "canonical_json",
    "problem_of",
]
