"""Products and their stock: the reconciliation with the warehouse's counts."""
