"""What administrators do by hand."""
