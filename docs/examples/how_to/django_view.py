"""A Django view under a lock; Django is configured here, so that the file is a program."""

import django
from django.conf import settings
from django.http import HttpRequest, JsonResponse
from django.test import RequestFactory
from django.views.decorators.http import require_POST

from tenure import LockNotAcquiredError
from tenure.sync import Locks

settings.configure(ALLOWED_HOSTS=["testserver"], DEFAULT_CHARSET="utf-8")
django.setup()

# In settings.py or a module of yours, once a process: gunicorn's workers open stores of their own.
locks = Locks("memory://", allow_in_memory=True, ttl="30s")


@require_POST
def ship(request: HttpRequest, order_id: int) -> JsonResponse:
    try:
        with locks.hold(f"order:{order_id}", wait=2) as lease:
            lease.raise_unless_held()
            return JsonResponse({"order": order_id, "token": lease.token})
    except LockNotAcquiredError:
        return JsonResponse({"title": "Somebody else is at work on this"}, status=409)


if __name__ == "__main__":
    assert ship(RequestFactory().post("/orders/7/ship"), 7).status_code == 200
    locks.close()
