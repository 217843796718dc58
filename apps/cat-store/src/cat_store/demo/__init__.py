"""
The story, played on real servers and real processes: `cat-store demo`.

    options    what was asked for
    shop       customers who order, and a look at the stock
    partners   the partners' process, statements and switches
    stage      servers, partners and replicas, started and ended
    journal    what the replicas log, as it comes
    scenes     what happens, scene by scene, and what was measured
    customer   a customer that repeats its order
    retries    the scene of the repeated orders
    facts      the report, and what has to hold in it
    view       the live view
    story      the order of the scenes
"""
