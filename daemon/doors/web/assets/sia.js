// Enhances pages that also work without scripts: converts times to the reader's zone and refreshes live parts.
"use strict";

const TICK = 1000; // ms between updates of "in 12 min"
const EVERY = 15000; // ms between refreshes without events
const AT_MOST = 1000; // minimum ms between refreshes
const REST = 20; // pause as a multiple of the last refresh's duration, to spare a slow daemon
const WITHIN = 30000; // timeout of a refresh in ms
const AGAIN = 5000; // ms before the event stream is reopened

const FAR = 30 * 86400; // s from which a time is shown as a date
const dates = new Intl.DateTimeFormat(undefined, { dateStyle: "medium" });
const clock = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

// The daemon's time in ms; a simulated one runs fast.
let daemon = { now: Date.now(), at: performance.now(), speed: 1 };
const now = () => daemon.now + (performance.now() - daemon.at) * daemon.speed;

function heed(root) {
  const said = root.getElementById("as-of")?.dataset;
  if (said) daemon = { now: 1000 * said.now, at: performance.now(), speed: Number(said.speed) };
}

// "in 12 min", "3 h 20 min ago": the rule of `relative` in views/html.py.
function relative(when) {
  const away = Math.abs(when - now()) / 1000;
  if (away >= FAR) return dates.format(when);
  if (away < 1) return "now";
  return when > now() ? `in ${distance(away)}` : `${distance(away)} ago`;
}

function distance(seconds) {
  const of = (unit) => Math.floor(seconds / unit);
  if (seconds < 60) return `${of(1)} s`;
  if (seconds < 3600) return `${of(60)} min`;
  if (seconds >= 2 * 86400) return `${of(86400)} d`;
  const minutes = of(60) % 60;
  return minutes && seconds < 36000 ? `${of(3600)} h ${minutes} min` : `${of(3600)} h`;
}

// Without storage the choice lasts as long as the page.
let exact = false;
try {
  exact = localStorage.getItem("sia-exact") === "yes";
} catch {}

function localise(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const when = new Date(time.dateTime);
    if (isNaN(when)) continue;
    const full = clock.format(when);
    const always = time.classList.contains("exact");
    const words = always || exact ? full : relative(when);
    const title = always || exact ? relative(when) : full;
    if (time.textContent !== words) time.textContent = words;
    if (time.title !== title) time.title = title;
  }
}

function offerExact() {
  const button = document.getElementById("exact");
  if (!button) return;
  button.hidden = false;
  button.setAttribute("aria-pressed", exact);
  button.addEventListener("click", () => {
    exact = !exact;
    button.setAttribute("aria-pressed", exact);
    try {
      localStorage.setItem("sia-exact", exact ? "yes" : "no");
    } catch {}
    localise(document);
  });
}

// Fields for times hold UTC without scripts, and the reader's time zone with them.
const TIMES = 'input[type="datetime-local"]';

function fillTimes() {
  const asked = new URL(location).searchParams;
  for (const field of document.querySelectorAll(TIMES)) {
    const when = momentOf(asked.get(field.name) ?? field.defaultValue);
    field.value = isNaN(when) ? "" : local(when);
    const zone = field.labels[0]?.querySelector(".utc");
    if (zone) zone.hidden = true;
  }
}

// Parse a time of an address: seconds since the epoch, or ISO 8601, in UTC if it has no offset.
function momentOf(text) {
  if (/^[0-9.]+$/.test(text)) return new Date(1000 * text);
  return new Date(/(Z|[+-]\d\d:?\d\d)$/i.test(text) ? text : `${text}Z`);
}

function local(when) {
  const here = new Date(when - 60000 * when.getTimezoneOffset());
  return here.toISOString().slice(0, 19);
}

function inAddress(when) {
  return when.toISOString().replace(".000Z", "Z");
}

function sendTimes({ target, formData }) {
  for (const field of target.querySelectorAll(TIMES)) {
    if (field.value) formData.set(field.name, inAddress(new Date(field.value)));
    else formData.delete(field.name);
  }
}

// Show another range of time, in seconds since the epoch, or the usual one; Back leaves it.
function move(from, to) {
  const url = new URL(location);
  for (const [name, time] of [["from", from], ["to", to]]) {
    if (time === undefined) url.searchParams.delete(name);
    else url.searchParams.set(name, inAddress(new Date(1000 * Math.round(time))));
  }
  history.pushState(null, "", url);
  moved();
}

function moved() {
  fillTimes();
  look();
}

window.sia = { move }; // for charts.js

// Update a node in place. Unchanged nodes stay, so focus, selection and scroll position survive.
function become(old, made) {
  if (old.nodeType !== made.nodeType || old.nodeName !== made.nodeName || old.id !== made.id) {
    old.replaceWith(made);
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== made.nodeValue) old.nodeValue = made.nodeValue;
    return;
  }
  for (const { name } of [...old.attributes]) {
    const kept = name === "open" && old.nodeName === "DETAILS"; // keep what the reader opened
    if (!kept && !made.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of made.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  fill(old, made);
}

// Elements with an id are matched by id, so an open row keeps its state when it moves. All others
// are matched by position.
function fill(old, made) {
  const after = [...made.childNodes], known = new Map();
  const wanted = new Set(after.map((child) => child.id));
  for (const child of [...old.children].filter((each) => each.id)) {
    if (wanted.has(child.id)) known.set(child.id, child);
    else child.remove();
  }
  let at = old.firstChild;
  for (const child of after) {
    const same = child.id ? known.get(child.id) : at?.id ? null : at;
    known.delete(child.id);
    while (same && at && at !== same && !at.id) at = leave(at);
    if (same && at === same) at = at.nextSibling;
    else old.insertBefore(same ?? child, at);
    if (same) become(same, child);
  }
  while (at) at = leave(at);
}

function leave(node) {
  const next = node.nextSibling;
  node.remove();
  return next;
}

function show(text) {
  const made = new DOMParser().parseFromString(text, "text/html");
  heed(made);
  localise(made);
  for (const old of document.querySelectorAll("[data-live][id]")) {
    const part = made.getElementById(old.id);
    if (part) become(old, part);
  }
  document.dispatchEvent(new Event("sia:shown")); // for charts
}

let looking = false, again = false, due = 0, next = 0;

function notice(words) {
  const cut = document.getElementById("cut");
  cut.textContent = words; // without CSS, hidden elements are visible
  cut.hidden = !words;
}

// Return the message for a failed answer; a page about a problem shows its own.
function wordsOf(answer) {
  const { away, gone } = document.getElementById("cut").dataset;
  if (answer.status >= 500) return away;
  return answer.ok || document.querySelector("[data-problem]") ? "" : gone;
}

async function look() {
  due = 0;
  if (document.hidden) return;
  if (looking) {
    again = true;
    return;
  }
  looking = true;
  const began = Date.now();
  try {
    const signal = AbortSignal.timeout(WITHIN);
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, signal });
    if (answer.status === 401) return location.reload();
    if (answer.ok) show(await answer.text());
    notice(wordsOf(answer));
  } catch {
    notice(document.getElementById("cut").dataset.away);
  } finally {
    looking = false;
    next = began + Math.max(AT_MOST, REST * (Date.now() - began));
    if (again) soon();
    again = false;
  }
}

function soon() {
  due ||= setTimeout(look, Math.max(0, next - Date.now()));
}

// The stream only triggers a refresh; the new state comes from the page itself.
async function follow(address) {
  while (!document.hidden) {
    const stop = new AbortController();
    const leave = () => document.hidden && stop.abort();
    document.addEventListener("visibilitychange", leave);
    try {
      const headers = { Accept: "text/event-stream" };
      const answer = await fetch(address, { headers, signal: stop.signal });
      const reader = answer.ok ? answer.body.getReader() : null;
      soon(); // events before the connection are not sent
      for (let said; reader && !(said = await reader.read()).done; ) {
        if (new TextDecoder().decode(said.value).includes("data:")) soon();
      }
    } catch {
      // disconnected: reconnect below
    }
    document.removeEventListener("visibilitychange", leave);
    soon(); // show why, if the page knows
    await new Promise((go) => setTimeout(go, AGAIN));
  }
}

// A page about a temporary problem reloads itself.
function tryAgain() {
  const wait = document.querySelector("[data-again]");
  if (!wait) return;
  wait.querySelector("[hidden]").hidden = false;
  setTimeout(() => location.reload(), 1000 * wait.dataset.again);
}

document.addEventListener("DOMContentLoaded", () => {
  tryAgain();
  fillTimes();
  document.addEventListener("formdata", sendTimes);
  window.addEventListener("popstate", moved);
  heed(document);
  localise(document);
  offerExact();
  setInterval(() => document.hidden || localise(document), TICK);
  const address = document.body.dataset.events;
  if (!address) return;
  let following = false;
  const begin = async () => {
    if (document.hidden || following) return;
    following = true;
    await follow(address);
    following = false;
  };
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) {
      soon();
      begin();
    }
  });
  setInterval(soon, EVERY);
  begin();
});
