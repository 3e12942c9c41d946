// The five questions at a glance: how many, in what state, stuck on whom, failing why, kept how long.
import { html, query, useData, useLive, useState } from "../lib.js";
import { Badge, Chart, Empty, Failed, Head, JobLink, Link, Panel, Table, Time, bytes, duration, jobsPath, number } from "../ui.js";

const RANGES = [["15 min", 900, 60], ["1 h", 3600, 60], ["24 h", 86400, 900], ["7 d", 604800, 7200]];
const STATES = ["ready", "running", "scheduled", "blocked", "failed", "cancelled", "succeeded"];

export default function Overview() {
  const [range, setRange] = useState(1);
  const [turn, setTurn] = useState(0);
  const first = useData("/stats");
  const [stats, setStats] = useState(null);
  const [, since, step] = RANGES[range];
  const timeline = useData(`/timeline${query({ since, step })}`, turn);
  const doctor = useData("/doctor");
  useLive("events,stats", (name, data) => { if (name === "stats") { setStats(data); setTurn((n) => n + 1); } });
  const now = stats || first.data;
  if (!now) return html`<${Head} title="Overview" /><${Failed} error=${first.error} /><p class="loading">Loading…</p>`;
  const counts = {};
  for (const one of now.counts.items) counts[one.status] = one.count === null || counts[one.status] === null ? null : (counts[one.status] || 0) + one.count;
  const empty = !now.counts.items.length;
  const alive = now.workers.filter((worker) => worker.alive);
  const points = timeline.data?.items || [];
  const times = points.map((one) => Date.parse(one.at) / 1000);
  const series = (pick) => points.map(pick);
  const perMinute = (name) => series((one) => (one[name] * 60) / step);
  return html`<${Head} title="Overview">${RANGES.map(([label], index) => html`<button aria-pressed=${range === index} onClick=${() => setRange(index)}>${label}</button>`)}<//>
    <${Failed} error=${first.error || timeline.error} />
    ${empty ? html`<${Panel}><${Empty}>No job was enqueued yet. Enqueue one: <code>holdfast send inbox '{"text": "hello"}' --db …</code>, or <code>my_task.enqueue(…)</code><//><//>` : ""}
    <div class="cards">${STATES.filter((state) => counts[state] !== undefined || ["ready", "running", "failed"].includes(state)).map((state) => html`<${Link} to=${jobsPath({ status: state })} class="card"><div class="value">${number(counts[state] === undefined ? 0 : counts[state])}</div><div class="label"><${Badge} state=${state} /></div><//>`)}
      <${Link} to="/workers" class="card"><div class="value">${alive.length}</div><div class="label">live workers</div><//></div>
    <div class="grid">
      <${Panel} title="Jobs per minute"><${Chart} label="Jobs that ended per minute" times=${times} series=${[
        { label: "succeeded", color: "--ok", values: perMinute("succeeded"), fill: true }, { label: "retried", color: "--warn", values: perMinute("retried") }, { label: "failed", color: "--bad", values: perMinute("failed") }]} /><//>
      <${Panel} title="How long jobs run"><${Chart} label="Run time" format=${duration} times=${times} series=${[
        { label: "p50", color: "--ok", values: series((one) => one.run.p50) }, { label: "p95", color: "--info", values: series((one) => one.run.p95) }, { label: "p99", color: "--bad", values: series((one) => one.run.p99) }]} /><//>
      <${Panel} title="How long jobs wait"><${Chart} label="Waiting time" format=${duration} times=${times} series=${[
        { label: "p50", color: "--ok", values: series((one) => one.wait.p50) }, { label: "p95", color: "--info", values: series((one) => one.wait.p95) }, { label: "p99", color: "--bad", values: series((one) => one.wait.p99) }]} /><//>
      <${Panel} title="In their state for longest"><${Table} label="Oldest jobs" rows=${now.oldest.slice(0, 8)} rowKey=${(row) => row.job_id} empty="Nothing runs or waits." columns=${[
        ["Job", (row) => html`<${JobLink} id=${row.job_id} task=${row.task} queue=${row.queue} />`], ["State", (row) => html`<${Badge} state=${row.status} />`],
        ["For", (row) => duration(row.age), "right nowrap"], ["On", (row) => (row.worker ? `${row.worker.host} ${row.worker.pid}` : row.queue)]]} /><//>
      <${Panel} title="Top errors" more=${html`<${Link} to="/errors">all<//>`}><${Table} label="Top errors" rows=${now.failures.slice(0, 6)} rowKey=${(row) => `${row.error_code} ${row.task} ${row.fingerprint}`} empty="No attempt has failed." columns=${[
        ["Error", (row) => html`<${Link} to=${jobsPath({ status: "failed", error: row.error_code })}>${row.error_code}<//>`], ["Task", (row) => row.task || row.queue], ["Times", (row) => number(row.count), "right"], ["Last", (row) => html`<${Time} at=${row.last_seen} />`]]} /><//>
      <${Panel} title="Doctor">${doctor.data ? html`<p class="muted">${doctor.data.summary}</p>${doctor.data.findings.map((one) => html`<p><${Badge} state=${one.severity} /> ${one.meaning}${one.fix ? html`<br /><span class="muted">Fix: <code>${one.fix}</code></span>` : ""}</p>`)}` : html`<p class="loading">Checking…</p>`}<//>
      <${Panel} title="Storage and retention" wide><dl class="facts"><dt>Database</dt><dd>${bytes(now.storage.database_bytes)}, log ${bytes(now.storage.wal_bytes)}, free on the disk ${bytes(now.storage.disk_free_bytes)}</dd>
        <dt>Kept</dt><dd>${now.retention.rules || "unknown"}</dd></dl><//>
    </div>`;
}
