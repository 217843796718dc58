"""
The shop's web interface, served by each replica in its own event loop.

    app        the Litestar application, put together from the domains' controllers
    server     uvicorn as a guest of the replica: it leaves signals and the end of the process to its host
    strict     request bodies, checked to the letter
    problems   every error as problem details (RFC 9457)
    retries    how routes take an Idempotency-Key
    health     whether this replica is alive, and whether it may take work
"""
