"""
A deterministic simulation of the shipped engine: instances, a store, a network and a clock each, in one process.

One integer is one execution, bit for bit. `python -m simulation --seed N` prints what happened; `--seeds 2000` looks
for a seed under which something happened that must not; `--planted` proves that it would be found.
"""
