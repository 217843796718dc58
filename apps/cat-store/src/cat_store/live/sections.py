"""From the picture to HTML, section by section. Everything from outside goes through `h`, which escapes it."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from cat_store.live.facts import COUNTED_UP_TO, OrderFact, PartnersFact, ShopFacts
from cat_store.live.markup import EMPTY, Child, Html, h, join
from cat_store.live.picture import EventView, LeaseView, Picture, ReplicaView

__all__ = ["SECTIONS", "event_item", "wait_text"]

_KINDS: Final = {"lease": "job's lease", "run": "run lock", "leadership": "leadership", "slot": "slot"}
_STATES: Final = {"up": "up", "paused": "paused", "gone": "gone"}
_NUMBERS: Final = frozenset({"Total", "Stock"})
_MODULE: Final = re.compile(r"\bcat_store(?:\.\w+)*:")
"""The sentences name jobs with their modules, which say nothing to a reader of the page."""


def notices(picture: Picture) -> Html:
    """What is wrong at the moment, above everything else."""
    lines: list[Html] = []
    if picture.unlocked:
        names = ", ".join(picture.unlocked)
        each = f"{names} runs" if len(picture.unlocked) == 1 else f"Each of {names} runs"
        lines.append(
            h("p", h("strong", "The locks are off. "), f"{each} every job at every tick.", class_="notice alarm")
        )
    lines += [h("p", trouble, class_="notice") for trouble in picture.troubles]
    return join(lines)


def replicas(picture: Picture) -> Html:
    """One card a replica."""
    return h("ul", (_replica(view, demo=picture.demo is not None) for view in picture.replicas), class_="cards")


def _replica(view: ReplicaView, *, demo: bool) -> Html:
    name: Child = view.instance
    if view.origin is not None and view.state == "up" and not view.here:
        name = h("a", view.instance, href=f"{view.origin}/")
    return h(
        "li",
        h(
            "div",
            h("h3", h("span", class_="dot", aria_hidden="true"), name),
            h("span", _STATES[view.state], class_=f"state {view.state}"),
            class_="row",
        ),
        h("p", _since(view), class_="since"),
        _held_by(view),
        _replica_buttons(view) if demo else EMPTY,
        class_=f"card replica hue-{view.hue} is-{view.state}",
        data_replica=view.instance,
        data_state=view.state,
    )


def _since(view: ReplicaView) -> Html:
    said: list[Child] = []
    if view.since_ms is None:
        said.append("never heard of")
    else:
        word = "up for" if view.state == "up" else "silent for"
        said += [f"{word} ", h("span", wait_text(view.elapsed_ms), data_since=view.since_ms)]
    if view.here:
        said.append(", writes this page")
    if view.state == "up" and not view.locks:
        said.append(", without locks")
    return join(said)


def _held_by(view: ReplicaView) -> Html:
    if not (view.leads or view.holds):
        return h("p", "holds nothing", class_="holds none")
    leads = (h("li", h("b", "leads "), _key(key)) for key in view.leads)
    # Nobody takes a lease from one that is silent: it runs out.
    still = None if view.state == "up" else h("li", "holds until it runs out", class_="quiet")
    return h("ul", still, leads, (h("li", _key(key)) for key in view.holds), class_="holds")


def _key(key: str) -> Html:
    """A key, with places to break a line at."""
    return h("code", (join((part, h("wbr"))) for part in re.split(r"(?<=[:@/.-])", key)))


def _replica_buttons(view: ReplicaView) -> Html:
    offered = {
        "up": (("pause", "Pause"), ("kill", "Kill"), ("stop", "Stop")),
        "paused": (("resume", "Resume"), ("kill", "Kill")),
        "gone": (("start", "Start"),),
    }[view.state]
    buttons = (
        h(
            "button",
            label,
            type="button",
            id=f"{action}-{view.instance}",
            class_="danger" if action == "kill" else None,
            data_action=action,
            data_replica=view.instance,
            aria_label=f"{label} {view.instance}",
        )
        for action, label in offered
    )
    return h("div", buttons, class_="buttons")


def leases(picture: Picture) -> Html:
    """Who holds what until when."""
    if picture.leases is None:
        why = "cannot list its locks" if picture.place.locks else "is not used: the locks are off on this replica"
        return h("p", f"The store {why}.", class_="empty")
    if not picture.leases:
        return h("p", "Nobody holds anything yet. The first tick of a job takes its lease.", class_="empty")
    head = _head("Key", "Holder", "Token", "Ends in")
    rows = (_lease(view) for view in picture.leases)
    return h("table", h("thead", head), h("tbody", rows), class_="stack")


def _head(*titles: str) -> Html:
    return h("tr", (h("th", title, scope="col", class_="number" if title in _NUMBERS else None) for title in titles))


def _lease(view: LeaseView) -> Html:
    held = view.ends_at_ms is not None
    countdown: Child
    if held:
        countdown = h(
            "span",
            h(
                "progress",
                max=view.ttl_ms,
                value=min(view.left_ms, view.ttl_ms),
                data_ends=view.ends_at_ms,
                aria_label=f"what is left of {view.key}",
            ),
            h("span", wait_text(view.left_ms), class_="left", data_ends=view.ends_at_ms),
            class_="countdown",
        )
    else:
        countdown = h("span", "free", class_="free")
    holder = _chip(view.holder, view.hue) if held else h("span", f"last: {view.holder}", class_="quiet")
    return h(
        "tr",
        h("td", h("div", _key(view.key)), h("small", _KINDS[view.kind], class_=f"kind {view.kind}"), data_label="Key"),
        h("td", holder, data_label="Holder"),
        h("td", h("code", view.token, class_="token"), data_label="Token"),
        h("td", countdown, data_label="Ends in"),
        class_=None if held else "released",
    )


def _chip(instance: str, hue: int) -> Html:
    return h("span", instance, class_=f"chip hue-{hue}")


def partners(picture: Picture) -> Html:
    """What the partners were asked to do."""
    counted = picture.partners
    if counted is None:
        return h("p", "The partners have not told anything yet.", class_="empty")
    return h("dl", (_counter(*each) for each in _counters(counted)), class_="counters")


def _counters(counted: PartnersFact) -> Iterator[tuple[str, int, bool, str]]:
    yield "batches booked", counted.batches, False, "accounting"
    yield "invoices booked twice", counted.duplicate_invoices, counted.duplicate_invoices > 0, "accounting"
    yield "uploads recognised", counted.repeated_uploads, False, "accounting"
    yield "full counts", counted.full_counts, False, "warehouse"
    yield "counts going on", counted.open_counts, counted.open_counts > 1, "warehouse"
    yield "counts at once, at most", counted.most_counts, counted.most_counts > 1, "warehouse"
    if counted.feeds is not None:
        yield "feed connections", counted.feeds, counted.feeds > 1, "warehouse"
    if counted.most_feeds is not None:
        yield "feeds at once, at most", counted.most_feeds, counted.most_feeds > 1, "warehouse"
    if counted.refused_feeds is not None:
        yield "feeds refused", counted.refused_feeds, False, "warehouse"


def _counter(label: str, number: int, wrong: bool, partner: str) -> Html:
    return h(
        "div",
        h("dt", label, " ", h("small", partner)),
        h("dd", number, h("span", " (should not be)", class_="hidden") if wrong else None),
        class_="counter wrong" if wrong else "counter",
    )


def orders(picture: Picture) -> Html:
    """The last orders, and how many wait for an invoice."""
    shop = picture.shop
    if shop is None:
        return h("p", "The orders could not be read yet.", class_="empty")
    if not shop.orders:
        return join((_order_counts(shop), h("p", "No order yet.", class_="empty")))
    head = _head("Order", "Placed", "Total", "Invoice")
    rows = (_order(order, picture) for order in shop.orders)
    return join((_order_counts(shop), h("table", h("thead", head), h("tbody", rows), class_="plain")))


def _order_counts(shop: ShopFacts) -> Html:
    placed = f"more than {COUNTED_UP_TO}" if shop.placed > COUNTED_UP_TO else str(shop.placed)
    begun = f", {shop.begun} of them in a batch that was begun" if shop.begun else ""
    return h("p", h("b", placed), " placed, ", h("b", shop.due), f" due for an invoice{begun}", class_="sum")


def _order(order: OrderFact, picture: Picture) -> Html:
    at = order.placed_at.astimezone(picture.place.zone)
    if order.invoiced:
        invoice = h("span", order.batch, class_="batch")
    elif order.batch is not None:
        invoice = h("span", f"{order.batch}, begun", class_="quiet")
    else:
        invoice = h("span", "due", class_="due")
    return h(
        "tr",
        # Ids begin with the time and end at random: the ends tell them apart.
        h("td", h("code", f"…{order.id[-8:]}", title=order.id)),
        h("td", h("time", at.strftime("%H:%M:%S"), datetime=at.isoformat(timespec="seconds"))),
        h("td", f"{order.total_cents // 100}.{order.total_cents % 100:02d}", class_="number"),
        h("td", invoice),
    )


def stock(picture: Picture) -> Html:
    """The products, and which run's token wrote their stock."""
    shop = picture.shop
    if shop is None or not shop.stock:
        return h("p", "There are no products.", class_="empty")
    head = _head("Product", "Stock", "Token")
    rows = (
        h(
            "tr",
            h("td", item.name),
            h("td", item.in_stock, class_="number"),
            h("td", h("code", item.token or "none", class_="token")),
        )
        for item in shop.stock
    )
    return h("table", h("thead", head), h("tbody", rows), class_="plain")


def demo(picture: Picture) -> Html:
    """The buttons of the demo; nothing where there is no supervisor."""
    state = picture.demo
    if state is None:
        return EMPTY
    slow = state.count_delay_s > 0
    buttons = [
        _button("order", "Place an order"),
        _button("export", "Export on two replicas at once"),
        _button("hurry", "Let the count be quick again", on=True) if slow else _button("slow", "Slow down the count"),
        _button("lock", "Switch the locks on", on=True)
        if not state.locks
        else _button("unlock", "Switch the locks off", danger=True),
    ]
    news = None
    if state.busy:
        news = h("p", "The replicas are being restarted.", class_="news")
    elif state.news is not None:
        news = h("p", state.news.text, class_="news failed" if state.news.failed else "news")
    return h("div", h("div", buttons, class_="buttons"), news)


def _button(action: str, label: str, *, danger: bool = False, on: bool = False) -> Html:
    marks = " ".join(mark for mark, has in (("danger", danger), ("on", on)) if has)
    return h("button", label, type="button", id=f"do-{action}", class_=marks or None, data_action=action)


def event_item(view: EventView) -> Html:
    """One line of the log."""
    again = None if view.times == 1 else h("span", f"{view.times} times", class_="times")
    return h(
        "li",
        h("time", view.time, datetime=view.iso),
        _chip(view.instance, view.hue),
        h("span", _MODULE.sub("", view.message), " ", again, class_="said"),
        class_=f"event {view.level}" if view.level in _LEVELS else "event",
        data_id=view.id,
    )


_LEVELS: Final = frozenset({"debug", "info", "warning", "error", "critical"})


def wait_text(elapsed_ms: int) -> str:
    """Say how long something is: 2.4 s, 31 s, 5 min, 3 h. The page's script says it the same way."""
    seconds = max(0, elapsed_ms) / 1000
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h"


SECTIONS: Final[Mapping[str, Callable[[Picture], Html]]] = {
    "notices": notices,
    "demo": demo,
    "replicas": replicas,
    "leases": leases,
    "partners": partners,
    "orders": orders,
    "stock": stock,
}
"""Every section of the page by its name, which is its `data-section`."""
