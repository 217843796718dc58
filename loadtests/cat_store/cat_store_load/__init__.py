"""
The cat store under load: two hundred customers, storms of duplicates, and replicas that die and pause meanwhile.

    cli        the command line: cat-store-load
    course     what happens when: calm blocks, the control, the storm with its troubles, the books
    plan       what a crowd of users is told
    shoppers   the users, for Locust; their process alone imports it, for Locust patches the standard library
    storm      how users come to send one order under one key at once
    crowd      the process of the users
    troubles   a replica is killed and started again, another one paused
    answers    what a request was answered with, as the users write it down
    settling   what nobody knows the outcome of is asked for until it is known, and the last invoices are exported
    ledger     what the database and accounting have in the end
    books      whether both fit together: nothing placed twice, invoiced twice, lost, or answered in two ways
    figures    times, ratios and processor time of each block
    verdict    what has to hold, and whether it does
    report     the tables and the JSON document
"""
