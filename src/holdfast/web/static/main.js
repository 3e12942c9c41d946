// The frame of the page: navigation, routes, theme, login and keys.
import { ROOT, call, go, here, html, post, render, session, useEffect, useLayoutEffect, useRoute, useState } from "./lib.js";
import { Failed, Link } from "./ui.js";

const GROUPS = [
  ["Work", [["/", "Overview", "overview"], ["/jobs", "Jobs", "jobs"], ["/inbox", "Inbox", "inbox"], ["/batches", "Batches", "batches"], ["/schedules", "Schedules", "schedules"]]],
  ["Health", [["/queues", "Queues", "queues"], ["/tasks", "Tasks", "tasks"], ["/errors", "Errors", "errors"], ["/workers", "Workers", "workers"]]],
  ["System", [["/events", "Events", "events"], ["/storage", "Storage", "storage"]]],
];
const PAGES = GROUPS.flatMap(([, pages]) => pages);
const modules = {};
const views = {}; // of the modules that are loaded

function load(name) {
  modules[name] ||= import(`./pages/${name}.js`).then((module) => { views[name] = module.default; }, () => { delete modules[name]; });
  return modules[name];
}

const nameOf = (path) => (/^\/jobs\/\d+$/.test(path) ? "job" : PAGES.find(([one]) => one === path)?.[2]);

function Page({ route }) {
  const found = nameOf(route.path);
  const id = found === "job" ? Number(route.path.split("/")[2]) : undefined;
  const [, arrived] = useState(null);
  useEffect(() => {
    let stale = false;
    if (found && !views[found]) load(found).then(() => stale || arrived(found));
    return () => { stale = true; };
  }, [found]);
  if (!found) return html`<div class="empty"><h1>There is no such page</h1><p><${Link} to="/">Overview<//></p></div>`;
  if (!views[found]) return html`<p class="loading">Loading…</p>`;
  return html`<${views[found]} key=${id ?? found} id=${id} parameters=${route.parameters} />`;
}

const KEYS = [["/", "search jobs"], ["j / k", "next / previous row"], ["Enter", "open the row"], ["x", "choose the job of the row"], ["g o", "overview"], ["g j", "jobs"], ["g i", "inbox"], ["g q", "queues"], ["g t", "tasks"], ["g e", "errors"], ["g w", "workers"], ["g s", "schedules"], ["g b", "batches"], ["g l", "events"], ["g d", "storage"], ["?", "this help"]];
const PLACES = { o: "/", j: "/jobs", i: "/inbox", q: "/queues", t: "/tasks", e: "/errors", w: "/workers", s: "/schedules", b: "/batches", l: "/events", d: "/storage" };

// Moves the focus to the first link of the next or previous row, or to the next panel's. The jobs page does it itself.
function moveFocus(step) {
  const rows = [...document.querySelectorAll(".main tbody tr, .main .stack > .panel, .main .timeline li")].map((row) => row.querySelector("a[href], summary, button")).filter(Boolean);
  if (!rows.length) return;
  const here = rows.findIndex((link) => link === document.activeElement || link.closest("tr, .panel, li")?.contains(document.activeElement));
  rows[Math.min(rows.length - 1, Math.max(0, here < 0 ? 0 : here + step))].focus();
}

function useKeys(showHelp) {
  useLayoutEffect(() => {
    let before = "";
    const pressed = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog[open]")) return;
      if (before === "g" && PLACES[event.key]) go(PLACES[event.key]);
      else if (event.key === "/") {
        event.preventDefault();
        const field = document.querySelector("input.search");
        session.searching = !field;
        if (field) field.focus(); else go("/jobs");
      } else if (event.key === "?") showHelp();
      else if ((event.key === "j" || event.key === "k") && here().path !== "/jobs") moveFocus(event.key === "j" ? 1 : -1);
      before = event.key;
    };
    document.addEventListener("keydown", pressed);
    return () => document.removeEventListener("keydown", pressed);
  }, []);
}

function Help() {
  return html`<dialog id="help" aria-label="Keyboard"><h2>Keyboard</h2><dl class="facts">${KEYS.map(([key, text]) => html`<dt><code>${key}</code></dt><dd>${text}</dd>`)}</dl>
    <p><button onClick=${(event) => event.target.closest("dialog").close()}>Close</button></p></dialog>`;
}

function Login({ done }) {
  const [error, setError] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    try {
      session.me = await post("/login", Object.fromEntries(new FormData(event.target)));
      done();
    } catch (problem) { setError(problem); }
  };
  useEffect(() => { document.title = "Log in – Holdfast"; }, []);
  return html`<main class="main" style=${{ maxWidth: "380px", margin: "8vh auto" }}><section class="panel"><h1>Holdfast</h1><form class="stack" onSubmit=${submit}>
    <label>Name<br /><input name="name" autocomplete="username" required style=${{ width: "100%" }} /></label>
    <label>Password<br /><input name="password" type="password" autocomplete="current-password" required style=${{ width: "100%" }} /></label>
    <${Failed} error=${error} /><button class="primary">Log in</button></form></section></main>`;
}

function theme() {
  const order = [null, "light", "dark"];
  const next = order[(order.indexOf(localStorage.getItem("theme")) + 1) % 3];
  if (next) localStorage.setItem("theme", next); else localStorage.removeItem("theme");
  applyTheme();
  window.dispatchEvent(new Event("themed"));
}

function applyTheme() {
  const chosen = localStorage.getItem("theme");
  if (chosen) document.documentElement.dataset.theme = chosen; else delete document.documentElement.dataset.theme;
}

function Shell() {
  const route = useRoute();
  const [open, setOpen] = useState(false);
  const [, again] = useState(0);
  const help = () => document.getElementById("help")?.showModal();
  useKeys(help);
  useEffect(() => setOpen(false), [route.path]);
  const leave = () => post("/logout").finally(() => location.reload());
  return html`<a class="skip" href="#content">Skip to the content</a><div class="shell">
    <header class="side ${open ? "open" : ""}">
      <div class="row"><${Link} to="/" class="brand"><img src="${ROOT}/static/icon.svg" alt="" />Holdfast<//>
      <button class="menu" aria-expanded=${open} onClick=${() => setOpen(!open)}>Menu</button></div>
      <nav aria-label="Pages">${GROUPS.map(([name, pages]) => html`<span class="group">${name}</span>${pages.map(([path, label]) => html`<${Link} to=${path} aria-current=${route.path === path || (path !== "/" && route.path.startsWith(`${path}/`)) ? "page" : undefined}>${label}<//>`)}`)}</nav>
      <div class="foot"><span>${session.me.name} · ${session.me.read_only ? "read only" : session.me.role}</span>
        <span class="row"><button class="link small" onClick=${() => { theme(); again((n) => n + 1); }} title="Light, dark or as the system">Theme: ${localStorage.getItem("theme") || "system"}</button><button class="link small" onClick=${help}>Keys</button>
        ${session.me.csrf ? html`<button class="link small" onClick=${leave}>Log out</button>` : ""}</span></div>
    </header><main class="main" id="content" tabindex="-1"><${Page} route=${route} /></main></div><${Help} />`;
}

const needsLogin = (error) => error?.code === "LoginNeeded"; // and not one of the application around this page

// `first`: what the server said about the user while the page was loading.
function App({ first }) {
  const [state, setState] = useState(first.me ? "in" : needsLogin(first.error) ? "out" : "loading");
  const [problem, setProblem] = useState(first.error);
  const told = ({ me, error }) => { setState(me ? "in" : needsLogin(error) ? "out" : "loading"); setProblem(error); };
  useEffect(() => {
    const out = (event) => told({ error: event.detail });
    window.addEventListener("login-needed", out);
    return () => window.removeEventListener("login-needed", out);
  }, []);
  useEffect(() => {
    if (state !== "loading") return undefined;
    const timer = setInterval(() => who().then(told), 3000);
    return () => clearInterval(timer);
  }, [state]);
  if (state === "in") return html`<${Shell} />`;
  if (state === "out") return html`<${Login} done=${() => setState("in")} />`;
  return html`<main class="main"><${Failed} error=${problem} /></main>`;
}

const who = () => call("/me").then((me) => { session.me = me; return { me }; }).catch((error) => ({ error }));

applyTheme();
const place = document.getElementById("app");
const page = nameOf(here().path);
Promise.all([who(), page && load(page)]).then(([first]) => {
  place.replaceChildren();
  render(html`<${App} first=${first} />`, place);
});
