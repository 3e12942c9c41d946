// Errors, grouped by the place in the code: how often, since when, the trend, which tasks, and a traceback.
import { exactly, go, html, may, post, query, useData, useTick } from "../lib.js";
import { Action, Copy, Empty, Failed, Head, JobLink, Link, Panel, Segments, Spark, Time, counted, jobsPath, number, usePeriod } from "../ui.js";

const RANGES = [["1 h", 3600], ["24 h", 86400], ["7 d", 604800], ["All", ""]];
const PARTS = 48;

// The API counts by code, task, queue and fingerprint. One traceback of several tasks is one group.
function grouped(items) {
  const groups = new Map();
  for (const one of items) {
    const key = one.fingerprint || `${one.error_code} ${one.task} ${one.queue}`;
    const group = groups.get(key);
    if (!group) { groups.set(key, { ...one, key, members: [one], trend: [...one.trend] }); continue; }
    group.members.push(one);
    group.count += one.count;
    one.trend.forEach((count, index) => { group.trend[index] += count; });
    if (one.first_seen < group.first_seen) group.first_seen = one.first_seen;
    if (one.last_seen > group.last_seen) { group.last_seen = one.last_seen; group.last_job_id = one.last_job_id; }
  }
  return [...groups.values()].sort((a, b) => b.count - a.count);
}

const matching = ({ count, is_complete: all }) => (count === 0 && all ? "No job failed with it for good: its jobs were retried, or are deleted." : `${all ? "" : "At least "}${counted(count, "failed job")} ${count === 1 ? "matches" : "match"}.`);

function Group({ group, range, done }) {
  const tasks = [...new Set(group.members.map((one) => one.task).filter(Boolean))];
  const queues = [...new Set(group.members.map((one) => one.queue))];
  const print = group.fingerprint;
  const filters = print ? { status: "failed", fingerprint: print } : { status: "failed", error: group.error_code, task: tasks.length === 1 ? tasks[0] : "", queue: queues.length === 1 ? queues[0] : "" };
  const selected = { action: "retry", filters: print ? { status: "failed", fingerprint: print } : { status: "failed", error_code: exactly(group.error_code), ...(tasks.length ? { task: tasks.map(exactly).join() } : {}), queue: queues.map(exactly).join() } };
  const last = (group.traceback || "").trim().split("\n").pop();
  return html`<${Panel} title=${html`<${Link} to=${jobsPath(filters)}>${group.error_code}<//>`} more=${html`<${Spark} kind="bad" values=${group.trend} label="How often in ${range}" /><b class="times">${number(group.count)} ×</b>`}>
    <p>${last ? html`<code>${last}</code>` : html`<span class="muted">No traceback: it was not raised by code, or it is hidden from viewers.</span>`}</p>
    <p class="muted small">${group.members.map((one, index) => html`${index ? ", " : ""}<${Link} to=${jobsPath({ ...filters, task: one.task || "", queue: one.queue })}>${one.task || "messages"}<//> on ${one.queue} (${number(one.count)})`)}</p>
    <p class="muted small">First <${Time} at=${group.first_seen} />, last <${Time} at=${group.last_seen} />, last job <${JobLink} id=${group.last_job_id} /></p>
    <div class="row"><button onClick=${() => go(jobsPath(filters))}>Show failed jobs</button>
      ${may("operator") ? html`<${Action} label="Retry all of these" title="Retry the failed jobs with ${group.error_code}" explain=${print ? "Every job that failed for good at this place in the code is retried." : `Every failed job of ${tasks.join(", ") || "these queues"} with this error code is retried.`} prepare=${async () => matching(await post("/operations/count", selected))} run=${({ reason }) => post("/operations", { ...selected, reason })} done=${done} said=${() => "They are retried in the background: the Jobs page shows the progress"} />` : ""}</div>
    ${group.traceback ? html`<details><summary class="small">Traceback</summary><div class="row"><span class="grow"></span><${Copy} text=${group.traceback} /></div><pre tabindex="0" role="region" aria-label="Traceback">${group.traceback}</pre></details>` : ""}<//>`;
}

export default function Errors({ parameters }) {
  const [range, setRange] = usePeriod(parameters, RANGES, 1);
  const tick = useTick(5);
  const { data, error, reload } = useData(`/failures${query({ since: RANGES[range][1], limit: 200, parts: PARTS })}`, tick);
  const groups = grouped(data?.items || []);
  return html`<${Head} title="Errors"><${Segments} label="Period" options=${RANGES} chosen=${range} choose=${setRange} /><//>
    <${Failed} error=${error} />${data || error ? "" : html`<p class="loading">Loading…</p>`}${data && !groups.length ? html`<${Panel}><${Empty}><b>No attempt has failed in this time</b>Errors of tasks and messages appear here, grouped by the place in the code.<//><//>` : ""}
    <div class="stack">${groups.map((group) => html`<${Group} key=${group.key} group=${group} done=${reload} range=${RANGES[range][1] ? RANGES[range][0] : "24 h"} />`)}</div>`;
}
