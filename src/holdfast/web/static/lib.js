// Everything that pages share besides components: the API, routes, the live stream, and formats.
import { useEffect, useLayoutEffect, useRef, useState } from "./vendor/preact-htm.js";
export * from "./vendor/preact-htm.js";

export const ROOT = document.documentElement.dataset.root || "";
const API = `${ROOT}/api/v1`;
export const session = { me: null };

// --- the API ---

export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || `The server answered ${status}.`);
    this.status = status;
    this.code = body.code || "HTTPError";
  }
}

// shared: the server may answer with what it told another page within the last second.
export async function call(path, { method = "GET", body, signal, shared = false } = {}) {
  const headers = { accept: "application/json" };
  if (shared) headers["cache-control"] = "max-age=1";
  if (method !== "GET") headers["content-type"] = "application/json";
  if (session.me?.csrf) headers["x-holdfast-csrf"] = session.me.csrf;
  let response;
  try {
    response = await fetch(API + path, {
      method, headers, signal, credentials: "same-origin",
      body: method === "GET" ? undefined : JSON.stringify(body || {}),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { detail: "The server cannot be reached.", code: "Unreachable" });
  }
  const data = await response.json().catch((error) => {
    if (error.name === "AbortError") throw error;
    return {};
  });
  const problem = response.ok ? null : new Problem(response.status, data);
  if (response.status === 401 && path !== "/login" && path !== "/me") loginNeeded(problem);
  if (problem) throw problem;
  return data;
}

const loginNeeded = (problem) => window.dispatchEvent(new CustomEvent("login-needed", { detail: problem }));

export const post = (path, body) => call(path, { method: "POST", body });

export function query(parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(given).toString();
  return text ? `?${text}` : "";
}

// Loads a path, and again when `again` changes. Keeps the old data while it loads, but not an error of another path.
export function useData(path, again = 0) {
  const [state, setState] = useState({ data: null, error: null, failed: null });
  const [turn, setTurn] = useState(0);
  const before = useRef({});
  useLayoutEffect(() => { // asks at once, not after the next drawing
    if (!path) return undefined;
    const stop = new AbortController();
    const shared = before.current.path === path && before.current.turn === turn; // an event asks for it, not a person
    before.current = { path, turn };
    call(path, { signal: stop.signal, shared })
      .then((data) => stop.signal.aborted || setState({ data, error: null, failed: null }))
      .catch((error) => {
        if (error.name !== "AbortError") setState((old) => ({ ...old, error, failed: path }));
      });
    return () => stop.abort();
  }, [path, again, turn]);
  return { data: state.data, error: state.failed === path ? state.error : null, reload: () => setTurn((n) => n + 1) };
}

// --- the live stream: one connection per page, none while the tab is hidden ---

export const live = { status: "off", detail: "", last: null, listeners: new Set(), wanted: new Map(), source: null, topics: "" };

function tell(name, data) {
  for (const listener of [...live.listeners]) listener(name, data);
}

function become(status, detail = "") {
  if (live.status === status && live.detail === detail) return;
  Object.assign(live, { status, detail });
  tell("status");
}

function connect() {
  live.source?.close();
  live.source = null;
  if (!live.topics || document.hidden) return;
  const source = new EventSource(`${API}/stream${query({ topics: live.topics, after: live.last })}`);
  live.source = source;
  source.onopen = () => { become("on"); };
  source.onerror = () => {
    become("lost", "The server cannot be reached.");
    if (source.readyState !== EventSource.CLOSED) return; // it tries again by itself
    setTimeout(() => live.source === source && connect(), 3000);
    // The server refused, and an event source does not tell why. The session may have ended, as it does at a restart.
    call("/me").catch((problem) => { if (problem.status === 401) loginNeeded(problem); });
  };
  for (const name of ["event", "stats", "ready", "reset", "unavailable"]) {
    source.addEventListener(name, (message) => {
      const data = JSON.parse(message.data);
      if (message.lastEventId) live.last = Number(message.lastEventId);
      if (name === "unavailable") become("lost", data.detail);
      else become("on");
      tell(name, data);
    });
  }
}

document.addEventListener("visibilitychange", connect);

// Calls `listen(name, data)` for what happens. Returns nothing; the connection lives as long as the page.
export function useLive(topics, listen) {
  const latest = useRef(listen);
  latest.current = listen;
  useEffect(() => {
    const listener = (name, data) => latest.current(name, data);
    live.listeners.add(listener);
    live.wanted.set(listener, topics);
    // One stream for all of them. While much happens, a page is told to load anew instead of each event.
    const all = [...new Set([...live.wanted.values()].join().replaceAll("events", "changes").split(","))].sort().join();
    if (live.topics !== all || !live.source || live.source.readyState === EventSource.CLOSED) {
      live.topics = all;
      connect();
    }
    return () => { live.listeners.delete(listener); live.wanted.delete(listener); };
  }, [topics]);
}

// A number that changes at most once per `seconds` when events arrive: pass it to useData as `again`.
export function useTick(seconds = 2) {
  const [tick, setTick] = useState(0);
  const state = useRef({ timer: null, at: 0 });
  useLive("events", (name) => {
    if (name !== "event" && name !== "reset") return;
    const now = state.current;
    if (now.timer) return;
    const wait = Math.max(0, now.at + seconds * 1000 - Date.now());
    now.timer = setTimeout(() => { now.timer = null; now.at = Date.now(); setTick((n) => n + 1); }, wait);
  });
  useEffect(() => () => clearTimeout(state.current.timer), []);
  return tick;
}

// --- routes: real URLs, so that every view can be bookmarked and opened in a new tab ---

export function here() {
  const path = location.pathname.slice(ROOT.length) || "/";
  return { path, parameters: Object.fromEntries(new URLSearchParams(location.search)) };
}

export function go(path, { replace = false } = {}) {
  const same = ROOT + path === location.pathname + location.search; // so that going back leads somewhere else
  history[replace || same ? "replaceState" : "pushState"](null, "", ROOT + path);
  window.dispatchEvent(new Event("moved"));
  if (!replace) window.scrollTo(0, 0);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
  if (link.target || link.origin !== location.origin || !link.pathname.startsWith(ROOT)) return;
  event.preventDefault();
  go(link.pathname.slice(ROOT.length) + link.search);
});

export function useRoute() {
  const [route, setRoute] = useState(here());
  useLayoutEffect(() => {
    const moved = () => setRoute(here());
    window.addEventListener("popstate", moved);
    window.addEventListener("moved", moved);
    return () => { window.removeEventListener("popstate", moved); window.removeEventListener("moved", moved); };
  }, []);
  return route;
}

// --- a search for jobs, as text: `queue:mail key:"a, b"` ---

export const QUALIFIED = /(\w+(?:\.[\w-]+)*):(?:"((?:[^"\\]|\\.)*)"|(\S*))|\S+/g;
export const quoted = (value) => (/[\s",\\]/.test(value) ? `"${String(value).replace(/["\\]/g, "\\$&")}"` : value);
export const unquoted = (value) => value.replace(/\\(.)/g, "$1");
// In the API a comma separates several values.
export const exactly = (value) => String(value).replaceAll(",", "\\,");

// --- formats ---

const NUMBER = new Intl.NumberFormat("en");
export const number = (value) => (value === null || value === undefined ? "unknown" : NUMBER.format(value));
export const counted = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const value = Math.abs(seconds);
  if (value === 0) return "0 s";
  if (value < 0.001) return `${Math.round(value * 1e6)} µs`;
  if (value < 1) return `${(value * 1000).toFixed(value < 0.01 ? 1 : 0)} ms`;
  if (value < 60) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} m ${Math.floor(value % 60)} s`;
  if (value < 86400) return `${Math.floor(value / 3600)} h ${Math.floor((value % 3600) / 60)} m`;
  return `${Math.floor(value / 86400)} d ${Math.floor((value % 86400) / 3600)} h`;
}

export function ago(text) {
  if (!text) return "–";
  const seconds = (Date.now() - Date.parse(text)) / 1000;
  if (Math.abs(seconds) < 1) return "now";
  return seconds > 0 ? `${duration(seconds)} ago` : `in ${duration(seconds)}`;
}

export const exact = (text) => (text ? new Date(text).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" }) : "");

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let size = value;
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) { size /= 1024; unit += 1; }
  return `${size.toFixed(unit && size < 10 ? 1 : 0)} ${units[unit]}`;
}

export const rank = { viewer: 1, operator: 2, admin: 3 };
export const may = (role) => !session.me?.read_only && rank[session.me?.role || "viewer"] >= rank[role];
