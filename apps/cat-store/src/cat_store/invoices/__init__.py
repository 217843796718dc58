"""Invoices: the nightly export to the accounting system."""
