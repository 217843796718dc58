/* The live page: reads the stream, counts down, presses buttons, and goes on at the next replica when its own has died. */
"use strict";
(() => {
  const HOME = location.origin;
  const SILENT_MS = 5000; // a replica tells something every two seconds; a paused one tells nothing and keeps its connection
  const AGAIN_MS = 1000; // between two replicas that do not answer
  const HOME_EVERY_MS = 3000; // how often a page that reads elsewhere looks whether its own replica is back
  const KEPT_EVENTS = 100;
  const ENDING_MS = 1000; // a countdown this low is shown as ending

  const body = document.body;
  const byId = (id) => document.getElementById(id);
  const [link, linkText, server, hold, said, changes, away, events] =
    ["link", "link-text", "server", "hold", "said", "changes", "away", "events"].map(byId);
  const others = (body.dataset.addresses || "").split(" ").filter((each) => each && each !== HOME);
  const origins = [HOME, ...others]; // those that the page's policy lets it read from
  const busy = new Set(); // ids of the buttons whose answer is awaited

  let stream = null;
  let at = 0; // which of the origins is read
  let heard = performance.now();
  let failures = 0; // in a row
  let offset = performance.now() - Number(body.dataset.now); // from the server's clock to this page's
  let held = false;

  // --- the stream -----------------------------------------------------------------------------------------------

  function connect(index) {
    stream?.close();
    at = index;
    heard = performance.now();
    const mine = new EventSource(`${origins[index]}/live/stream`);
    stream = mine;
    mine.addEventListener("open", () => { heard = performance.now(); });
    mine.addEventListener("page", (event) => {
      if (mine !== stream) return;
      failures = 0;
      heard = performance.now();
      take(JSON.parse(event.data));
      show("live");
    });
    mine.addEventListener("beat", () => { heard = performance.now(); });
    mine.addEventListener("bye", () => { if (mine === stream) next(); });
    mine.addEventListener("error", () => { if (mine === stream) next(); });
  }

  function next() {
    stream?.close();
    stream = null;
    failures += 1;
    show("seeking");
    const index = (at + 1) % origins.length;
    // The next one at once, and a pause when all of them were asked.
    setTimeout(() => { if (!stream && !held) connect(index); }, failures % origins.length ? 50 : AGAIN_MS);
  }

  function show(state) {
    link.dataset.link = state;
    const elsewhere = at !== 0;
    linkText.textContent = { live: elsewhere ? "read from" : "live, from", seeking: "looking for a replica after", held: "held, page of" }[state];
    if (state === "live") server.textContent = nameOf(origins[at]);
    away.hidden = !(elsewhere && state === "live");
    if (away.hidden) return;
    const go = document.createElement("a");
    go.href = `${origins[at]}/`;
    go.textContent = `Go on at ${nameOf(origins[at])}`;
    away.replaceChildren(`${body.dataset.instance} does not answer. What it would show is read from ${nameOf(origins[at])}; the buttons wait for it. `, go);
  }

  function nameOf(origin) {
    if (origin === HOME) return body.dataset.instance;
    const shown = [...document.querySelectorAll(".replica h3 a")].find((each) => each.origin === origin);
    return shown?.textContent || names.get(origin) || origin.replace(/^https?:\/\//, "");
  }
  const names = new Map();

  setInterval(() => {
    if (stream && performance.now() - heard > SILENT_MS) next();
  }, 1000);

  setInterval(async () => {
    if (at === 0 || !stream) return;
    try {
      // Answered by a replica that is up; one that is paused takes the connection and says nothing.
      const answer = await fetch("/live/assets/cat.svg", { cache: "no-store", signal: AbortSignal.timeout(2000) });
      if (answer.ok && at !== 0) connect(0);
    } catch { /* not yet */ }
  }, HOME_EVERY_MS);

  // --- what comes -----------------------------------------------------------------------------------------------

  function take(news) {
    offset = performance.now() - news.now;
    const states = statesOf();
    for (const [name, html] of Object.entries(news.sections)) swap(name, html);
    if (news.sections.replicas) tellChanges(states, statesOf());
    takeEvents(news.events, news.reset);
    for (const each of document.querySelectorAll(".replica h3 a")) names.set(each.origin, each.textContent);
    tick();
  }

  function swap(name, html) {
    const section = document.querySelector(`[data-section="${name}"]`);
    if (!section) return;
    const focused = section.contains(document.activeElement) ? document.activeElement.id : "";
    section.innerHTML = html; // escaped by the server, and the page's policy runs nothing that stands in it
    for (const id of busy) mark(byId(id), true);
    if (focused) (byId(focused) || section.querySelector("button, a"))?.focus({ preventScroll: true });
  }

  function takeEvents(items, reset) {
    const known = new Set([...events.children].map((each) => each.dataset.id));
    const box = document.createElement("ol");
    box.innerHTML = items.filter((each) => reset || !known.has(String(each.id))).map((each) => each.html).join("");
    const fresh = [...box.children];
    if (reset) {
      events.replaceChildren(...fresh);
      return;
    }
    for (const each of fresh) each.classList.add("new");
    // Who has scrolled down to read stays where they are.
    const from = events.scrollHeight - events.scrollTop;
    const reading = events.scrollTop > 0;
    events.prepend(...fresh);
    while (events.children.length > KEPT_EVENTS) events.lastElementChild.remove();
    if (reading) events.scrollTop = events.scrollHeight - from;
  }

  function statesOf() {
    return new Map([...document.querySelectorAll("[data-replica][data-state]")].map((each) => [each.dataset.replica, each.dataset.state]));
  }

  // Read out, and not shown: the cards show it, and what a button answered is to stay.
  function tellChanges(before, now) {
    const changed = [...now].filter(([name, state]) => before.has(name) && before.get(name) !== state);
    if (changed.length) changes.textContent = changed.map(([name, state]) => `${name} is ${state}.`).join(" ");
  }

  function say(text, failed = false) {
    said.classList.toggle("failed", failed);
    said.textContent = text;
  }

  // --- countdowns -----------------------------------------------------------------------------------------------

  function wait(ms) { // as the server says it
    const seconds = Math.max(0, ms) / 1000;
    if (seconds < 10) return `${seconds.toFixed(1)} s`;
    if (seconds < 120) return `${seconds.toFixed(0)} s`;
    if (seconds < 7200) return `${(seconds / 60).toFixed(0)} min`;
    return `${(seconds / 3600).toFixed(0)} h`;
  }

  function tick() {
    if (held) return;
    const now = performance.now() - offset;
    for (const each of document.querySelectorAll("[data-ends]")) {
      const left = Number(each.dataset.ends) - now;
      if (each.tagName === "PROGRESS") {
        each.value = Math.max(0, left);
        each.parentElement.classList.toggle("ending", left < ENDING_MS);
      } else each.textContent = left > 0 ? wait(left) : "ending";
    }
    for (const each of document.querySelectorAll("[data-since]")) {
      const since = now - Number(each.dataset.since);
      each.textContent = since < 10000 ? `${Math.max(0, Math.floor(since / 1000))} s` : wait(since);
    }
  }

  hold.hidden = false;
  hold.addEventListener("click", () => {
    held = !held;
    hold.setAttribute("aria-pressed", String(held));
    if (!held) {
      connect(at);
      return;
    }
    stream?.close(); // the next one begins with everything, and nothing is kept meanwhile
    stream = null;
    show("held");
  });

  // --- buttons --------------------------------------------------------------------------------------------------

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-action]");
    if (button && !busy.has(button.id)) press(button.id, button.dataset.action, button.dataset.replica);
  });

  async function press(id, action, replica) {
    if (at !== 0) {
      say(`${body.dataset.instance}, whose page this is, does not answer. Go on at ${nameOf(origins[at])}, or wait for it.`, true);
      return;
    }
    busy.add(id);
    mark(byId(id), true);
    try {
      const answer = await fetch(`/live/actions/${action}`, {
        method: "POST",
        headers: { "Content-Type": "application/json", "X-Cat-Store-Live": "1" },
        body: JSON.stringify(replica ? { replica } : {}),
      });
      const told = await answer.json().catch(() => ({}));
      if (answer.ok) say(told.message);
      else say(told.detail || `${body.dataset.instance} answered with ${answer.status}.`, true);
    } catch {
      say(`${body.dataset.instance} gave no answer. Whether it did what the button says is not known.`, true);
    } finally {
      busy.delete(id);
      mark(byId(id), false);
    }
  }

  function mark(button, waits) {
    if (!button) return;
    button.setAttribute("aria-busy", String(waits));
    // Not disabled: that would take the focus away from whoever uses the keyboard.
    button.classList.toggle("waits", waits);
  }

  connect(0);
  tick();
  setInterval(tick, 200);
})();
