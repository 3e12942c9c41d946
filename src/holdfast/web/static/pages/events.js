// The event log, live: the newest first.
import { html, useData, useEffect, useLive, useState } from "../lib.js";
import { Failed, Head, JobLink, Panel, Table, Time } from "../ui.js";

const MOST = 500;

export default function Events() {
  const [events, setEvents] = useState([]);
  const [filter, setFilter] = useState("");
  const [paused, setPaused] = useState(false);
  const first = useData("/events?limit=100");
  useEffect(() => { if (first.data) setEvents((now) => merge(now, first.data.items)); }, [first.data]);
  useLive("events", (name, data) => {
    if (name === "event" && !paused) setEvents((now) => merge(now, [data]));
    if (name === "reset") first.reload();
  });
  const shown = events.filter((one) => !filter || `${one.event} ${one.actor} ${one.job_id}`.includes(filter));
  return html`<${Head} title="Events"><input aria-label="Filter events" placeholder="Filter" value=${filter} onInput=${(event) => setFilter(event.target.value)} /><button aria-pressed=${paused} onClick=${() => setPaused(!paused)}>${paused ? "Go on" : "Pause"}</button><//>
    <${Failed} error=${first.error} /><${Panel}><${Table} label="Events" rows=${first.data ? shown : null} empty="No event matches." columns=${[
      ["#", (row) => row.id, "right"], ["When", (row) => html`<${Time} at=${row.at} />`], ["Event", (row) => html`<b>${row.event}</b>`], ["Job", (row) => (row.job_id ? html`<${JobLink} id=${row.job_id} />` : "")],
      ["Attempt", (row) => row.attempt || "", "right"], ["By", (row) => row.actor || ""], ["Detail", (row) => html`<span class="muted small">${Object.entries(row.detail).map(([key, value]) => `${key} ${typeof value === "object" ? JSON.stringify(value) : value}`).join(" · ")}</span>`]]} /><//>`;
}

function merge(now, more) {
  const known = new Set(now.map((one) => one.id));
  return [...more.filter((one) => !known.has(one.id)), ...now].sort((a, b) => b.id - a.id).slice(0, MOST);
}
