// The event log, live: the newest first, with filters in the address.
import { call, go, html, query, useData, useEffect, useLive, useRef, useState } from "../lib.js";
import { Failed, Head, JobLink, Link, Panel, Table, Time, counted, exact, jobsPath } from "../ui.js";

const MOST = 300; // until older ones are asked for
const PAGE = 500, PAGES = 10; // that one click searches for something that matches
const BAD = ["failed", "recovered", "batch_abandoned"];

export default function Events({ parameters }) {
  const [events, setEvents] = useState([]);
  const [paused, setPaused] = useState(false);
  const filter = parameters.q || "";
  const job = /^\d+$/.test(parameters.job || "") ? parameters.job : "";
  const first = useData(`/events${query({ limit: 200, job })}`);
  const most = useRef(MOST);
  const [searching, setSearching] = useState(false);
  const [ended, setEnded] = useState(false);
  const [problem, setProblem] = useState(null);
  const add = (more) => setEvents((now) => merge(now, more, most.current));
  useEffect(() => { if (first.data) add(first.data.items); }, [first.data]);
  const arrived = useRef({ events: [], timer: null }); // drawn together, a few times a second
  useEffect(() => () => clearTimeout(arrived.current.timer), []);
  useLive("events", (name, data) => {
    if (name === "event" && !paused && (!job || data.job_id === Number(job))) {
      const box = arrived.current;
      box.events.push(data);
      box.timer ||= setTimeout(() => { const more = box.events; box.events = []; box.timer = null; add(more); }, 400);
    }
    if (name === "reset") first.reload();
  });
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const text = (one) => `${one.event} ${one.actor || ""} ${one.job_id || ""} ${one.queue || ""} ${one.task || ""} ${JSON.stringify(one.detail)}`.toLowerCase();
  const matches = (one) => words.every((word) => text(one).includes(word));
  const shown = events.filter(matches);
  const searchOlder = async () => {
    const found = [];
    let before = events[events.length - 1].id;
    setSearching(true);
    try {
      for (let page = 0; page < PAGES && (!found.length || !found.some(matches)); page += 1) {
        const { items } = await call(`/events${query({ limit: PAGE, job, before })}`);
        setEnded(items.length < PAGE);
        if (!items.length) break;
        found.push(...items);
        before = items[0].id;
      }
      setProblem(null);
    } catch (error) { setProblem(error); }
    most.current = Math.max(most.current, events.length + found.length);
    add(found);
    setSearching(false);
  };
  const narrow = (q) => go(`/events${query({ q, job })}`, { replace: true });
  return html`<${Head} title="Events"><input aria-label="Filter events" placeholder="Filter: failed mail ada" value=${filter} onInput=${(event) => narrow(event.target.value)} />${job ? html`<span class="chip">job ${job}<button aria-label="Remove the filter" onClick=${() => go(`/events${query({ q: filter })}`)}>×</button></span>` : ""}<button aria-pressed=${paused} onClick=${() => setPaused(!paused)}>${paused ? "Go on" : "Pause"}</button><//>
    <${Failed} error=${first.error || problem} /><${Panel} plain><${Table} label="Events" rows=${first.data ? shown : null} error=${first.error} empty=${html`<b>${words.length && events.length ? `None of the newest ${counted(events.length, "event")} matches` : job ? "No event matches" : "No event yet"}</b>Every change of a job, queue or schedule appears here.`} columns=${[
      ["When", (row) => html`<${Time} at=${row.at} />`], ["Event", (row) => html`<span class="strong ${BAD.includes(row.event) ? "bad" : ""}">${row.event.replaceAll("_", " ")}</span>`], ["Job", (row) => html`${row.job_id ? html`<${JobLink} id=${row.job_id} task=${row.task} queue=${row.queue} />` : ""}${row.queue ? html`<div class="small"><${Link} to=${jobsPath({ queue: row.queue })} class="muted"><span class="cut">${row.queue}</span><//></div>` : ""}`, "nowrap"], ["Attempt", (row) => row.attempt || "", "right"], ["By", (row) => html`<span class="cut" title=${row.actor || ""}>${row.actor || ""}</span>`],
      ["Detail", (row) => html`<span class="muted small">${Object.entries(row.detail).filter(([, value]) => value !== null && value !== "").map(([key, value]) => `${key.replaceAll("_", " ")} ${typeof value === "string" && /^\d{4}-\d\d-\d\dT/.test(value) ? exact(value) : typeof value === "object" ? JSON.stringify(value) : value}`).join(" · ")}</span>`, "wrap"], ["#", (row) => html`<span class="muted">${row.id}</span>`, "right"]]} /><//>
    ${events.length && events[events.length - 1].id > 1 && !ended ? html`<p class="row"><button disabled=${searching} onClick=${searchOlder}>${searching ? "Searching…" : words.length ? "Search older events" : "Older"}</button></p>` : ""}`;
}

function merge(now, more, most) {
  const known = new Set(now.map((one) => one.id));
  return [...more.filter((one) => !known.has(one.id)), ...now].sort((a, b) => b.id - a.id).slice(0, most);
}
