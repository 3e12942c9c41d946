// The five questions at a glance: how many, in what state, stuck on whom, failing why, kept how long.
import { html, query, useData, useEffect, useLive, useState } from "../lib.js";
import { Age, Badge, Chart, Empty, Failed, Head, JobLink, Link, Name, Panel, Segments, Spark, Stat, Table, Time, bytes, counted, duration, jobsPath, number, usePeriod } from "../ui.js";

const RANGES = [["15 min", 900, 60], ["1 h", 3600, 60], ["24 h", 86400, 3600], ["7 d", 604800, 7200]];
const STATES = ["ready", "running", "scheduled", "blocked", "failed", "cancelled", "succeeded"];
const ALWAYS = ["ready", "running", "scheduled", "failed", "succeeded"];
const REFRESH_MS = 60000; // charts move on although nothing happens

function sums(items) {
  const counts = {};
  for (const one of items) counts[one.status] = one.count === null || counts[one.status] === null ? null : (counts[one.status] || 0) + one.count;
  return counts;
}

export default function Overview({ parameters }) {
  const [range, setRange] = usePeriod(parameters, RANGES, 1);
  const [turn, setTurn] = useState(0);
  const first = useData("/stats");
  const [stats, setStats] = useState(null);
  const now = stats || first.data;
  const [, since, step] = RANGES[range];
  const timeline = useData(now && `/timeline${query({ since, step })}`, turn); // the counts come first
  const errors = useData(now && `/failures${query({ since: 86400, limit: 6, parts: 24 })}`, turn);
  const doctor = useData(now && "/doctor");
  useLive("events,stats", (name, data) => { if (name === "stats") { setStats(data); setTurn((n) => n + 1); } });
  useEffect(() => { const timer = setInterval(() => document.hidden || setTurn((n) => n + 1), REFRESH_MS); return () => clearInterval(timer); }, []);
  if (!now) return html`<${Head} title="Overview" /><${Failed} error=${first.error} /><p class="loading">Loading…</p>`;
  const counts = sums(now.counts.items);
  const alive = now.workers.filter((worker) => worker.alive);
  const busy = alive.reduce((sum, one) => sum + Math.min(one.running, one.concurrency), 0);
  const slots = alive.reduce((sum, one) => sum + one.concurrency, 0);
  const points = timeline.data?.items || [];
  const times = points.map((one) => Date.parse(one.at) / 1000);
  const perMinute = (name) => points.map((one) => (one[name] * 60) / step);
  const shares = (kind) => [["p50", "--ok"], ["p95", "--info"], ["p99", "--bad"]].map(([label, color]) => ({ label, color, values: points.map((one) => one[kind][label]) }));
  const oldest = now.oldest.filter((one) => one.status === "ready").sort((a, b) => b.age - a.age)[0];
  const found = (doctor.data?.findings || []).filter((one) => one.severity !== "ok");
  const passed = (doctor.data?.findings || []).filter((one) => one.severity === "ok");
  return html`<${Head} title="Overview"><${Segments} label="Period" options=${RANGES} chosen=${range} choose=${setRange} /><//>
    <${Failed} error=${first.error || timeline.error} />
    ${now.counts.items.length ? "" : html`<${Panel}><${Empty}><b>No job was enqueued yet</b>Enqueue one: <code>my_task.enqueue(…)</code>, or send a message: <code>holdfast send inbox '{"text": "hello"}'</code><//><//>`}
    ${now.counts.items.length && !alive.length ? html`<div class="note warning"><b>No worker is running.</b> Start one: <code>holdfast worker module:app</code></div>` : ""}
    <div class="stats">${STATES.filter((state) => counts[state] !== undefined || ALWAYS.includes(state)).map((state) => html`<${Stat} to=${jobsPath({ status: state })} value=${number(counts[state] === undefined ? 0 : counts[state])}><${Badge} state=${state} /><//>`)}
      <${Stat} value=${html`<${Age} seconds=${oldest?.age} since=${oldest?.since} />`} label="oldest waiting" />
      <${Stat} to="/workers" value=${alive.length} label=${alive.length ? `${alive.length === 1 ? "worker" : "workers"}, ${busy} of ${number(slots)} busy` : "workers"} /></div>
    <div class="grid three">
      <${Panel} title="Jobs per minute"><${Chart} label="Jobs that ended per minute" times=${times} period=${since} series=${[
        { label: "succeeded", color: "--ok", values: perMinute("succeeded"), fill: true }, { label: "retried", color: "--warn", values: perMinute("retried") }, { label: "failed", color: "--bad", values: perMinute("failed") }]} /><//>
      <${Panel} title="How long jobs wait"><${Chart} label="Waiting time" format=${duration} times=${times} period=${since} series=${shares("wait")} /><//>
      <${Panel} title="How long jobs run"><${Chart} label="Run time" format=${duration} times=${times} period=${since} series=${shares("run")} /><//>
    </div>
    <div class="grid">
      <${Panel} title="In their state for longest" more=${html`<${Link} to="/workers" class="small">Workers<//>`}><${Table} label="Oldest jobs" rows=${now.oldest.slice(0, 7)} rowKey=${(row) => row.job_id} empty="Nothing runs or waits." columns=${[
        ["Job", (row) => html`<${JobLink} id=${row.job_id} task=${row.task} queue=${row.queue} />`], ["State", (row) => html`<${Badge} state=${row.status} />`],
        ["On", (row) => html`<${Name} text=${row.worker ? `${row.worker.host} ${row.worker.pid}` : row.queue} />`], ["For", (row) => html`<${Age} seconds=${row.age} since=${row.since} />`, "right nowrap"]]} /><//>
      <${Panel} title="Top errors, 24 h" more=${html`<${Link} to="/errors" class="small">All errors<//>`}><${Table} label="Top errors" rows=${errors.data ? errors.data.items : null} error=${errors.error} rowKey=${(row) => `${row.error_code} ${row.task} ${row.queue} ${row.fingerprint}`} empty="No attempt has failed in the last 24 hours." columns=${[
        ["Error", (row) => html`<${Link} to=${jobsPath({ status: "failed", error: row.error_code, task: row.task })}>${row.error_code}<//><div class="muted small"><${Name} text=${row.task || row.queue} />, <${Time} at=${row.last_seen} /></div>`], ["Trend", (row) => html`<${Spark} kind="bad" values=${row.trend} label="How often in 24 h" />`], ["Times", (row) => number(row.count), "right"]]} /><//>
      <${Panel} title="Doctor" more=${doctor.data ? html`<${Badge} state=${found.length ? doctor.data.severity : "ok"} />` : ""}>${doctor.data ? html`<p class="muted">${doctor.data.summary}</p>${found.map((one) => html`<p><${Badge} state=${one.severity} /> ${one.meaning}${one.fix ? html`<br /><span class="muted">Fix: <code>${one.fix}</code></span>` : ""}</p>`)}${passed.length ? html`<details class="small"><summary class="muted">${counted(passed.length, "check")} passed</summary><ul>${passed.map((one) => html`<li>${one.meaning}</li>`)}</ul></details>` : ""}` : html`<${Failed} error=${doctor.error} />${doctor.error ? "" : html`<p class="loading">Checking…</p>`}`}<//>
      <${Panel} title="Storage and retention" more=${html`<${Link} to="/storage" class="small">Storage<//>`}><dl class="facts"><dt>Database</dt><dd>${bytes(now.storage.database_bytes)}, free in it ${bytes(now.storage.free_bytes_in_file)}</dd><dt>Log</dt><dd>${bytes(now.storage.wal_bytes)}</dd><dt>Free on the disk</dt><dd>${bytes(now.storage.disk_free_bytes)}</dd>
        <dt>Kept</dt><dd>${now.retention.rules || "unknown"}</dd><dt>Expired now</dt><dd>${now.retention.more_due ? "at least " : ""}${counted(now.retention.due, "job")}</dd></dl><//>
    </div>`;
}
