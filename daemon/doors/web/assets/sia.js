// Pages work without this: it has times in the reader's zone, and what is live looked at again.
"use strict";

const EVERY = 15000; // ms between two looks where nobody says that anything happened
const AT_MOST = 1000; // ms between two looks, however much happens
const REST = 20; // times as long as the last look took: a daemon that is slow is asked less
const WITHIN = 30000; // ms in which an answer is to come
const AGAIN = 5000; // ms until events are followed again after a cut

const clock = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

function localise(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const when = new Date(time.dateTime);
    if (isNaN(when)) continue;
    time.title = time.textContent;
    time.textContent = clock.format(when);
  }
}

// Make one node like another, leaving alone what is alike: focus, selection and scrolling stay.
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
    const kept = name === "open" && old.nodeName === "DETAILS"; // the reader opened it
    if (!kept && !made.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of made.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  fill(old, made);
}

// What has an id is the same wherever it stands: a row that moves stays open with what was typed
// there, and no other becomes it. The others are matched in the order in which they stand.
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
  localise(made);
  for (const old of document.querySelectorAll("[data-live][id]")) {
    const part = made.getElementById(old.id);
    if (part) become(old, part);
  }
}

let looking = false, again = false, due = 0, next = 0;

function told(works) {
  const cut = document.getElementById("cut");
  cut.textContent = works ? "" : cut.dataset.words; // a browser without style sees what is hidden
  cut.hidden = works;
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
    told(answer.ok);
  } catch {
    told(false);
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

// A stream only says that something happened; what is so now, the page itself is asked.
async function follow(address) {
  while (!document.hidden) {
    const stop = new AbortController();
    const leave = () => document.hidden && stop.abort();
    document.addEventListener("visibilitychange", leave);
    try {
      const headers = { Accept: "text/event-stream" };
      const answer = await fetch(address, { headers, signal: stop.signal });
      const reader = answer.ok ? answer.body.getReader() : null;
      soon(); // what happened since the page was made is not told
      for (let said; reader && !(said = await reader.read()).done; ) {
        if (new TextDecoder().decode(said.value).includes("data:")) soon();
      }
    } catch {
      // cut off: it is followed again
    }
    document.removeEventListener("visibilitychange", leave);
    soon(); // what cut it off may be seen there
    await new Promise((go) => setTimeout(go, AGAIN));
  }
}

document.addEventListener("DOMContentLoaded", () => {
  localise(document);
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
