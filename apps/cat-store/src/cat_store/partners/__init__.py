"""
The shop's two partners, the accounting system and the warehouse, as one small service of their own.

They count what they are asked to do, which is where a job that ran twice shows, and they have switches to be slow,
to fail, or to hold a request open.
"""
