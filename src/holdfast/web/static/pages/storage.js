import { html, useData, useTick } from "../lib.js";
import { Failed, Head, JobLink, Panel, Time, bytes, number } from "../ui.js";

export default function StoragePage() {
  const { data, error } = useData("/stats", useTick(5));
  if (!data) return html`<${Head} title="Storage" /><${Failed} error=${error} /><p class="loading">Loading…</p>`;
  const kept = data.retention;
  const size = data.storage;
  return html`<${Head} title="Storage" /><${Failed} error=${error} /><div class="grid">
    <${Panel} title="Size"><dl class="facts"><dt>Database</dt><dd>${bytes(size.database_bytes)}</dd><dt>Free inside it</dt><dd>${bytes(size.free_bytes_in_file)}</dd><dt>Log</dt><dd>${bytes(size.wal_bytes)}</dd><dt>Free on the disk</dt><dd>${bytes(size.disk_free_bytes)}</dd></dl>
      <p class="muted small">To return free space to the disk: <code>holdfast vacuum</code></p><//>
    <${Panel} title="Retention"><dl class="facts"><dt>Kept</dt><dd>${kept.rules || "unknown: the rules are from another version"}</dd><dt>Deleted by workers</dt><dd>${kept.automatic ? "yes" : "no"}</dd>
      <dt>Expired now</dt><dd>${number(kept.due)}${kept.more_due ? " or more" : ""}</dd><dt>Next to expire</dt><dd>${kept.next_job_id ? html`<${JobLink} id=${kept.next_job_id} /> <${Time} at=${kept.next_at} />` : "–"}</dd>
      <dt>Last pruned</dt><dd>${kept.last_pruned_at ? html`<${Time} at=${kept.last_pruned_at} />, ${number(kept.last_pruned_jobs)} jobs` : "never"}</dd></dl>
      <p class="muted small">To see what pruning would delete: <code>holdfast prune --dry-run</code></p><//></div>`;
}
