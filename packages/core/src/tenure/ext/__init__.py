"""Frameworks: tenure under ASGI applications and Litestar. Nothing of core imports it."""
