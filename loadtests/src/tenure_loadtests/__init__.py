"""
What a lease costs: tenure beside its floors, its peers and its limits, measured in one run.

`worker` and `contenders` run in the contenders' own processes, some of them in environments without tenure: they import
nothing but the standard library and what the contender is made of. `driver`, `scenarios`, `report` and `guard` run in
the process that the person started.
"""
