"""
The live page at `/`: who is up, who holds what until when, what happened, and what the partners were asked to do.

Every replica serves it, from what all of them share:

    models      two tables: a row a replica, and the last few hundred events
    log         what one replica notes: events of tenure's, and the shop's own log lines
    heartbeat   writes both tables while a replica is up
    facts       what is read, as values
    reading     reads it: the shop's database, the locks, the partners
    source      one part of it, read in bounded time, its last value kept
    picture     from facts to what is shown (pure)
    markup      HTML that escapes what it is given (pure)
    sections    from the picture to HTML, section by section (pure)
    frames      versions of the page, and what a viewer is missing (pure)
    poller      one look at everything a second while somebody watches, however many they are
    page        the document around the sections, its assets and its headers
    origins     who may read the stream, and who may press a button (pure)
    demo_link   the wire to the demo's supervisor
    actions     what the demo's buttons do
    controller  the routes
    part        all of it, as one part of a replica
"""
