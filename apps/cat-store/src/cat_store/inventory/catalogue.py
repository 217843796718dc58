"""What the shop sells, for the demo and the tests: the seed of the products table and of the warehouse's shelves."""

from typing import NamedTuple

__all__ = ["CATALOGUE", "SALMON_KIBBLE", "CatalogueItem"]


class CatalogueItem(NamedTuple):
    """
    One product.

    Attributes:
        id: Its name in URLs and tables.
        name: Its name for people.
        price_cents: What it costs, in cents.
        on_shelf: How many the warehouse has at first.
    """

    id: str
    name: str
    price_cents: int
    on_shelf: int


SALMON_KIBBLE = "salmon-kibble-2kg"

CATALOGUE: tuple[CatalogueItem, ...] = (
    CatalogueItem(SALMON_KIBBLE, "Salmon kibble, 2 kg", 1899, 12),
    CatalogueItem("chicken-kibble-2kg", "Chicken kibble, 2 kg", 1699, 31),
    CatalogueItem("kitten-kibble-1kg", "Kitten kibble, 1 kg", 1199, 18),
    CatalogueItem("tuna-pate-12x85g", "Tuna pâté, 12 x 85 g", 1399, 54),
    CatalogueItem("rabbit-pate-12x85g", "Rabbit pâté, 12 x 85 g", 1499, 7),
    CatalogueItem("freeze-dried-shrimp-50g", "Freeze-dried shrimp, 50 g", 649, 40),
    CatalogueItem("catnip-mouse", "Catnip mouse", 399, 120),
    CatalogueItem("feather-wand", "Feather wand", 899, 22),
    CatalogueItem("sisal-post-60cm", "Sisal post, 60 cm", 3999, 5),
    CatalogueItem("clumping-litter-10l", "Clumping litter, 10 l", 1299, 64),
    CatalogueItem("fountain-2l", "Drinking fountain, 2 l", 4499, 9),
    CatalogueItem("carrier-medium", "Carrier, medium", 5999, 3),
)
