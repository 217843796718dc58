"""The cat store: an online shop for cat food whose scheduled jobs run once, on three replicas."""
