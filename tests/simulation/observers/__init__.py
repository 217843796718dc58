"""Who looks on, on true time, and knows what may not be."""
