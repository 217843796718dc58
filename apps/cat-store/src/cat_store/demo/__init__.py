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
    listening  the scene of the alert feed
    long_count the scene of the count that outlasts its ticks
    by_hand    the scene of the export by hand
    night      the scene of the night that has 02:00 twice
    facts      the report, and what has to hold in it
    view       the live view
    control    the way from a replica's page to the process that started the replicas
    supervisor what the page's buttons do to the stage
    page       the live page in a browser
    story      the order of the scenes
"""
