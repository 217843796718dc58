"""
C29, the soak: holders at work for an hour, and a random fault every few seconds, on real servers.

`python -m chaos.soak --minutes 60` (`uv run poe soak`). Every process campaigns, takes and gives back, runs jobs,
stands for an election and answers requests with idempotency keys, through a fault proxy of its own. Its history is cut
into windows: at the end of each everybody gives back what it has, so that every window is a whole history, which is
checked by another process and then thrown away. One process is never killed: it is what memory, descriptors, tasks,
timers and connections are measured on.
"""
