import { html, query, useData, useState, useTick } from "../lib.js";
import { Empty, Failed, Head, JobLink, Link, Panel, Time, jobsPath, number } from "../ui.js";

const RANGES = [["1 h", 3600], ["24 h", 86400], ["7 d", 604800], ["all", ""]];

export default function Errors() {
  const [range, setRange] = useState(3);
  const tick = useTick(5);
  const { data, error } = useData(`/failures${query({ since: RANGES[range][1], limit: 100 })}`, tick);
  return html`<${Head} title="Errors">${RANGES.map(([label], index) => html`<button aria-pressed=${range === index} onClick=${() => setRange(index)}>${label}</button>`)}<//>
    <${Failed} error=${error} />${data && !data.items.length ? html`<${Panel}><${Empty}>No attempt has failed in this time.<//><//>` : ""}
    <div class="stack">${(data?.items || []).map((one) => html`<${Panel} key=${`${one.error_code} ${one.queue} ${one.task} ${one.fingerprint}`}>
      <div class="row"><h2><${Link} to=${jobsPath({ status: "failed", error: one.error_code, task: one.task })}>${one.error_code}<//></h2><span>${one.task || "messages"} on ${one.queue}</span><span class="grow"></span><b>${number(one.count)} times</b></div>
      <p class="muted small">first <${Time} at=${one.first_seen} />, last <${Time} at=${one.last_seen} />, last job <${JobLink} id=${one.last_job_id} /></p>
      ${one.traceback ? html`<details><summary>Traceback</summary><pre>${one.traceback}</pre></details>` : ""}<//>`)}</div>`;
}
