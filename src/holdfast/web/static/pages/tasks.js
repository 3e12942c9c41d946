import { html, query, useData, useTick } from "../lib.js";
import { Bar, Failed, Head, Link, Name, Panel, Segments, Table, duration, jobsPath, number, usePeriod } from "../ui.js";

const RANGES = [["1 h", 3600], ["24 h", 86400], ["7 d", 604800]];
const MOST = 6;

// With which attempt jobs ended, as columns.
function Attempts({ counts }) {
  const found = Object.entries(counts).map(([attempt, count]) => [Number(attempt), count]).sort((a, b) => a[0] - b[0]);
  if (!found.length) return html`<span class="muted">–</span>`;
  const total = found.reduce((sum, [, count]) => sum + count, 0);
  const high = Math.max(...found.map(([, count]) => count));
  const words = found.slice(0, MOST).map(([attempt, count]) => `attempt ${attempt}: ${number(count)}`).join(", ");
  const first = (counts[1] || 0) / total;
  return html`<span class="row nowrap"><span class="columns" role="img" aria-label=${words} title=${words}>${found.slice(0, MOST).map(([, count]) => html`<i style=${{ height: `${Math.max(2, (22 * count) / high)}px` }}></i>`)}</span>
    <span class="small muted">${Math.round(first * 100)} % first</span></span>`;
}

export default function Tasks({ parameters }) {
  const [range, setRange] = usePeriod(parameters, RANGES, 1);
  const tick = useTick(5);
  const since = query({ since: RANGES[range][1], whole: true });
  const attempts = useData(`/attempts${since}`, tick);
  const latency = useData(`/latency${since}`, tick);
  const speed = (row) => latency.data?.items.find((one) => one.queue === row.queue && one.task === row.task);
  const percent = (kind, share) => (row) => html`<span class=${share === "p50" ? "" : "muted"}>${duration(speed(row)?.[kind][share])}</span>`;
  const rate = (row) => (row.failure_rate ? html`<span class=${row.keeps_failing ? "bad strong" : ""}>${(row.failure_rate * 100).toFixed(row.failure_rate < 0.1 ? 1 : 0)} %</span>` : html`<span class="muted">0 %</span>`);
  const total = (row) => row.succeeded + row.retried + row.failed;
  return html`<${Head} title="Tasks"><${Segments} label="Period" options=${RANGES} chosen=${range} choose=${setRange} /><//>
    <${Failed} error=${attempts.error || latency.error} /><${Panel} plain><${Table} label="Tasks" rows=${attempts.data?.items} error=${attempts.error} rowKey=${(row) => `${row.queue} ${row.task}`} empty=${html`<b>No attempt ended in this time</b>Start a worker: <code>holdfast worker module:app</code>`} columns=${[
      ["Task", (row) => html`<${Link} to=${jobsPath({ task: row.task, queue: row.task ? "" : row.queue })}><${Name} text=${row.task || "messages"} /><//><div class="muted small"><${Name} text=${row.queue} /></div>`],
      ["Attempts", (row) => html`<${Bar} label="${row.succeeded} succeeded, ${row.retried} retried, ${row.failed} failed" parts=${[["ok", row.succeeded], ["warn", row.retried], ["bad", row.failed]]} /><span class="small muted">${number(total(row))}</span>`],
      ["Retried", (row) => html`<span class=${row.retried ? "" : "muted"}>${number(row.retried)}</span>`, "right"], ["Failed", (row) => (row.failed ? html`<${Link} to=${jobsPath({ task: row.task, queue: row.queue, status: "failed" })}>${number(row.failed)}<//>` : html`<span class="muted">0</span>`), "right"],
      ["Failure rate", rate, "right"], ["Ended with", (row) => html`<${Attempts} counts=${row.by_attempt} />`],
      ["Run p50", percent("run", "p50"), "right nowrap"], ["p95", percent("run", "p95"), "right nowrap"], ["p99", percent("run", "p99"), "right nowrap"],
      ["Wait p50", percent("wait", "p50"), "right nowrap"], ["p95", percent("wait", "p95"), "right nowrap"], ["p99", percent("wait", "p99"), "right nowrap"]]} /><//>`;
}
