import { html, query, useData, useState, useTick } from "../lib.js";
import { Failed, Head, Link, Panel, Table, duration, jobsPath, number } from "../ui.js";

const RANGES = [["1 h", 3600], ["24 h", 86400], ["7 d", 604800]];

export default function Tasks() {
  const [range, setRange] = useState(1);
  const tick = useTick(5);
  const since = query({ since: RANGES[range][1] });
  const attempts = useData(`/attempts${since}`, tick);
  const latency = useData(`/latency${since}`, tick);
  const speed = (row) => latency.data?.items.find((one) => one.queue === row.queue && one.task === row.task);
  const percent = (kind, share) => (row) => duration(speed(row)?.[kind][share]);
  return html`<${Head} title="Tasks">${RANGES.map(([label], index) => html`<button aria-pressed=${range === index} onClick=${() => setRange(index)}>${label}</button>`)}<//>
    <${Failed} error=${attempts.error} /><${Panel}><${Table} label="Tasks" rows=${attempts.data?.items} rowKey=${(row) => `${row.queue} ${row.task}`} empty="No attempt ended in this time." columns=${[
      ["Task", (row) => html`<${Link} to=${jobsPath({ task: row.task, queue: row.task ? "" : row.queue })}>${row.task || "messages"}<//>`], ["Queue", (row) => row.queue],
      ["Succeeded", (row) => number(row.succeeded), "right"], ["Retried", (row) => number(row.retried), "right"], ["Failed", (row) => number(row.failed), "right"],
      ["Failure rate", (row) => `${(row.failure_rate * 100).toFixed(1)} %`, "right"], ["Ended with attempt", (row) => Object.entries(row.by_attempt).map(([attempt, count]) => `${attempt}: ${number(count)}`).join(", ")],
      ["Run p50", percent("run", "p50"), "right nowrap"], ["p95", percent("run", "p95"), "right nowrap"], ["p99", percent("run", "p99"), "right nowrap"], ["Wait p50", percent("wait", "p50"), "right nowrap"], ["p95", percent("wait", "p95"), "right nowrap"]]} /><//>`;
}
