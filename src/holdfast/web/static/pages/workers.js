import { html, may, post, useData, useEffect, useState, useTick } from "../lib.js";
import { Action, Age, Badge, Bar, Empty, Failed, Head, JobLink, Panel, Table, Time, bytes, number } from "../ui.js";

const MOST = 500; // running jobs that are read
const SHOWN = 12; // of one worker

function Worker({ worker, jobs, reload }) {
  const [all, setAll] = useState(false);
  const shown = all ? jobs : jobs.slice(0, SHOWN);
  const stop = html`<${Action} label="Stop" title="Ask worker ${worker.id} to stop" explain="It takes no more jobs, and ends when those that it runs have finished." run=${(given) => post(`/workers/${encodeURIComponent(worker.id)}/stop`, given)} done=${reload} said=${() => "Asked the worker to stop"} />`;
  return html`<${Panel} title=${html`<code>${worker.id}</code>`} more=${html`<${Badge} state=${worker.stop_at ? "stopping" : worker.state} />${may("operator") && !worker.stop_at ? stop : ""}`}>
    <div class="row"><${Bar} label="${worker.running} of ${worker.concurrency} slots" parts=${[["use", Math.min(worker.running, worker.concurrency)], ["rest", Math.max(0, worker.concurrency - worker.running)]]} /><span class="small">${number(Math.min(worker.running, worker.concurrency))} of ${number(worker.concurrency)} busy${worker.running > worker.concurrency ? `, ${number(worker.running - worker.concurrency)} claimed` : ""}</span></div>
    <dl class="facts small"><dt>Process</dt><dd>${worker.pid} on ${worker.host}</dd><dt>Since</dt><dd><${Time} at=${worker.started_at} /></dd><dt>Heartbeat</dt><dd><${Time} at=${worker.heartbeat_at} /></dd>
      <dt>Memory</dt><dd>${bytes(worker.memory)}</dd><dt>Version</dt><dd>${worker.version || "–"}</dd><dt>Queues</dt><dd>${worker.queues ? worker.queues.map((name) => `${name}${worker.limits[name] !== undefined ? ` (at most ${worker.limits[name]})` : ""}`).join(", ") : "all"}</dd>
      ${worker.stop_at ? html`<dt>Asked to stop</dt><dd><${Time} at=${worker.stop_at} /></dd>` : ""}</dl>
    <h3>Runs now</h3>${jobs.length ? html`<${Table} label="Jobs of worker ${worker.id}" rows=${shown} columns=${[
      ["Job", (job) => html`<${JobLink} id=${job.id} task=${job.task} queue=${job.queue} />`], ["Attempt", (job) => `${job.attempt}/${job.max_attempts}`, "right"], ["Progress", (job) => (job.progress === null ? "" : `${Math.round(job.progress * 100)} %`), "right"], ["For", (job) => html`<${Age} seconds=${job.started_at ? (Date.now() - Date.parse(job.started_at)) / 1000 : null} since=${job.started_at} />`, "right nowrap"]]} />
      ${jobs.length > SHOWN ? html`<button class="link small" onClick=${() => setAll(!all)}>${all ? "Show fewer" : `Show ${number(jobs.length - SHOWN)} more`}</button>` : ""}` : html`<p class="muted small">Nothing: it waits for jobs.</p>`}<//>`;
}

export default function Workers() {
  const [turn, setTurn] = useState(0);
  useEffect(() => { const timer = setInterval(() => document.hidden || setTurn((n) => n + 1), 5000); return () => clearInterval(timer); }, []);
  const again = `${useTick(2)} ${turn}`;
  const { data, error, reload } = useData("/workers", again);
  const running = useData(`/jobs?status=running&limit=${MOST}`, again);
  const workers = data?.items || [];
  const live = workers.filter((one) => one.alive);
  const gone = workers.filter((one) => !one.alive);
  const jobs = (id) => (running.data?.items || []).filter((job) => job.worker === id);
  return html`<${Head} title="Workers" /><${Failed} error=${error || running.error} />
    ${data && !live.length ? html`<${Panel}><${Empty}><b>No worker is running</b>Start one: <code>holdfast worker module:app</code><//><//>` : ""}${data || error ? "" : html`<p class="loading">Loading…</p>`}
    <div class="grid">${live.map((worker) => html`<${Worker} key=${worker.id} worker=${worker} jobs=${jobs(worker.id)} reload=${reload} />`)}</div>
    ${gone.length ? html`<${Panel} title="Ended"><${Table} label="Ended workers" rows=${gone.slice(0, 20)} columns=${[
      ["Worker", (row) => html`<code>${row.id}</code>`], ["State", (row) => html`<${Badge} state=${row.state} />`], ["Process", (row) => `${row.pid} on ${row.host}`], ["Version", (row) => row.version || "–"], ["Started", (row) => html`<${Time} at=${row.started_at} />`], ["Ended", (row) => html`<${Time} at=${row.ended_at} />`]]} /><//>` : ""}`;
}
