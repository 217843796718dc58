"""Orders: what customers placed, and which invoice batch each one went out in."""
