import { html, may, post, useData, useTick } from "../lib.js";
import { Action, Bar, Failed, Head, JobLink, Panel, Stat, Time, bytes, counted, number } from "../ui.js";

const said = (report) => (report.before_bytes > report.after_bytes ? `The file shrank by ${bytes(report.before_bytes - report.after_bytes)}${report.free_bytes ? `; ${bytes(report.free_bytes)} are still free in it` : ""}` : "There was no free space to return");

export default function StoragePage() {
  const tick = useTick(5);
  const storage = useData("/storage", tick);
  const retention = useData("/retention", tick);
  const [size, kept] = [storage.data, retention.data];
  if (!size || !kept) return html`<${Head} title="Storage" /><${Failed} error=${storage.error || retention.error} /><p class="loading">Loading…</p>`;
  const used = size.database_bytes - size.free_bytes_in_file;
  const again = () => { storage.reload(); retention.reload(); };
  return html`<${Head} title="Storage">${may("admin") ? html`<${Action} label="Vacuum" title="Return free space to the disk" explain="In small steps, for at most some seconds, while workers continue. Repeat it if there is more." run=${(given) => post("/vacuum", given)} done=${again} said=${said} />` : ""}<//><${Failed} error=${storage.error || retention.error} />
    <div class="stats"><${Stat} value=${bytes(size.database_bytes)} label="database" /><${Stat} value=${bytes(size.free_bytes_in_file)} label="free inside it" /><${Stat} value=${bytes(size.wal_bytes)} label="write-ahead log" /><${Stat} value=${bytes(size.disk_free_bytes)} label="free on the disk" /></div>
    <div class="grid">
    <${Panel} title="Space in the file"><${Bar} label="${bytes(used)} used, ${bytes(size.free_bytes_in_file)} free" parts=${[["use", used], ["rest", size.free_bytes_in_file]]} /><dl class="facts"><dt>Used</dt><dd>${bytes(used)}</dd><dt>Free, reused by new jobs</dt><dd>${bytes(size.free_bytes_in_file)}</dd></dl>
      <p class="muted small">On the command line: <code>holdfast vacuum</code>; <code>--full</code> rewrites the whole file.</p><//>
    <${Panel} title="Retention"><dl class="facts"><dt>Keeps</dt><dd>${kept.rules || "unknown: the rules are from another version"}</dd><dt>Deleted by workers</dt><dd>${kept.automatic ? "yes, in the background" : "no"}</dd>
      <dt>Expired now</dt><dd>${kept.more_due ? "at least " : ""}${counted(kept.due, "job")}</dd><dt>Next to expire</dt><dd>${kept.next_job_id ? html`job <${JobLink} id=${kept.next_job_id} /> <${Time} at=${kept.next_at} />` : "none"}</dd>
      <dt>Last pruned</dt><dd>${kept.last_pruned_at ? html`<${Time} at=${kept.last_pruned_at} />, ${counted(kept.last_pruned_jobs, "job")}` : "never"}</dd>${kept.left_behind ? html`<dt>Orphaned rows</dt><dd class="bad">${number(kept.left_behind)}: see holdfast doctor</dd>` : ""}</dl>
      <p class="muted small">To see what pruning would delete: <code>holdfast prune --dry-run</code></p><//></div>`;
}
