"""Frameworks: tenure under ASGI applications and schedulers of several kinds. Nothing of core imports it."""
