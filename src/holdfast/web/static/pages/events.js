// The event log, live: the newest first, with filters in the address.
import { go, html, query, useData, useEffect, useLive, useRef, useState } from "../lib.js";
import { Failed, Head, JobLink, Link, Panel, Table, Time, exact, jobsPath } from "../ui.js";

const MOST = 300;
const BAD = ["failed", "recovered", "batch_abandoned"];

export default function Events({ parameters }) {
  const [events, setEvents] = useState([]);
  const [paused, setPaused] = useState(false);
  const filter = parameters.q || "";
  const job = /^\d+$/.test(parameters.job || "") ? parameters.job : "";
  const first = useData(`/events${query({ limit: 200, job })}`);
  const [older, setOlder] = useState(null);
  const before = useData(older ? `/events${query({ limit: 200, job, before: older })}` : null);
  useEffect(() => { if (first.data) setEvents((now) => merge(now, first.data.items)); }, [first.data]);
  useEffect(() => { if (before.data) setEvents((now) => merge(now, before.data.items)); }, [before.data]);
  const arrived = useRef({ events: [], timer: null }); // drawn together, a few times a second
  useEffect(() => () => clearTimeout(arrived.current.timer), []);
  useLive("events", (name, data) => {
    if (name === "event" && !paused && (!job || data.job_id === Number(job))) {
      const box = arrived.current;
      box.events.push(data);
      box.timer ||= setTimeout(() => { const more = box.events; box.events = []; box.timer = null; setEvents((now) => merge(now, more)); }, 400);
    }
    if (name === "reset") first.reload();
  });
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const text = (one) => `${one.event} ${one.actor || ""} ${one.job_id || ""} ${one.queue || ""} ${one.task || ""} ${JSON.stringify(one.detail)}`.toLowerCase();
  const shown = events.filter((one) => words.every((word) => text(one).includes(word)));
  const narrow = (q) => go(`/events${query({ q, job })}`, { replace: true });
  const oldest = events.length ? events[events.length - 1].id : 0;
  return html`<${Head} title="Events"><input aria-label="Filter events" placeholder="Filter: failed mail ada" value=${filter} onInput=${(event) => narrow(event.target.value)} />${job ? html`<span class="chip">job ${job}<button aria-label="Remove the filter" onClick=${() => go(`/events${query({ q: filter })}`)}>×</button></span>` : ""}<button aria-pressed=${paused} onClick=${() => setPaused(!paused)}>${paused ? "Go on" : "Pause"}</button><//>
    <${Failed} error=${first.error || before.error} /><${Panel} plain><${Table} label="Events" rows=${first.data ? shown : null} error=${first.error} empty=${html`<b>No event${filter || job ? " matches" : " yet"}</b>Every change of a job, queue or schedule appears here.`} columns=${[
      ["When", (row) => html`<${Time} at=${row.at} />`], ["Event", (row) => html`<span class="strong ${BAD.includes(row.event) ? "bad" : ""}">${row.event.replaceAll("_", " ")}</span>`], ["Job", (row) => html`${row.job_id ? html`<${JobLink} id=${row.job_id} task=${row.task} queue=${row.queue} />` : ""}${row.queue ? html`<div class="small"><${Link} to=${jobsPath({ queue: row.queue })} class="muted"><span class="cut">${row.queue}</span><//></div>` : ""}`, "nowrap"], ["Attempt", (row) => row.attempt || "", "right"], ["By", (row) => html`<span class="cut" title=${row.actor || ""}>${row.actor || ""}</span>`],
      ["Detail", (row) => html`<span class="muted small">${Object.entries(row.detail).filter(([, value]) => value !== null && value !== "").map(([key, value]) => `${key.replaceAll("_", " ")} ${typeof value === "string" && /^\d{4}-\d\d-\d\dT/.test(value) ? exact(value) : typeof value === "object" ? JSON.stringify(value) : value}`).join(" · ")}</span>`, "wrap"], ["#", (row) => html`<span class="muted">${row.id}</span>`, "right"]]} /><//>
    ${oldest > 1 && events.length < MOST ? html`<p class="row"><button onClick=${() => setOlder(oldest)}>Older</button></p>` : ""}`;
}

function merge(now, more) {
  const known = new Set(now.map((one) => one.id));
  return [...more.filter((one) => !known.has(one.id)), ...now].sort((a, b) => b.id - a.id).slice(0, MOST);
}
