"""Colours that can be read: every pair of text and ground, in light and in dark."""

import re

import pytest

from cat_store.live.page import ASSETS

# WCAG 2.2 AA, for text of any size.
ENOUGH = 4.5

PAIRS = [
    ("ink", "page"),
    ("ink", "card"),
    ("ink", "soft"),
    ("quiet", "page"),
    ("quiet", "card"),
    ("quiet", "soft"),
    ("accent", "card"),
    ("accent-ink", "accent"),
    ("gone", "card"),
    ("gone", "page"),
    ("paused", "card"),
    *((state, f"{state}-soft") for state in ("up", "paused", "gone")),
    *((f"hue-{number}", ground) for number in range(1, 7) for ground in (f"hue-{number}-soft", "card", "page")),
]


def colours_of(theme: str) -> dict[str, str]:
    css = ASSETS["live.css"].content.decode()
    light, dark = re.findall(r":root \{(.*?)\n *\}", css, re.DOTALL)
    found = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", light))
    return found | dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", dark)) if theme == "dark" else found


def luminance_of(colour: str) -> float:
    def linear(value: int) -> float:
        part = value / 255
        return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4

    red, green, blue = (linear(int(colour[at : at + 2], 16)) for at in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), PAIRS)
def test_text_stands_out_from_its_ground(theme: str, text: str, ground: str) -> None:
    colours = colours_of(theme)
    one, other = sorted((luminance_of(colours[text]), luminance_of(colours[ground])), reverse=True)
    assert (one + 0.05) / (other + 0.05) >= ENOUGH


def test_the_assets_ask_for_nothing_from_elsewhere() -> None:
    for name, asset in ASSETS.items():
        urls = set(re.findall(rb"https?://[^\"'\s)]+", asset.content)) - {b"http://www.w3.org/2000/svg"}
        assert urls == set(), name
        assert b"@import" not in asset.content
