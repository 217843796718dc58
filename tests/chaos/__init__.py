"""
The failover suite: faults on real servers and real processes, each with the claim that it puts to the test.

A scenario is a function in `scenarios/`; it says how many times it repeats its fault, what it claims, and which
control must fail beside the claim, so that a zero means something. Every process writes what it sees as a history,
which `tenure.testing.history` checks. `python -m chaos` (`uv run poe chaos`) runs them and writes the report.
"""
