"""What a record says: tables, a chart, and a check against what is promised."""
