// Bulk operations that run, and the last ones that ended: their progress, and a button that stops them.
import { html, may, post, useData, useEffect, useState, useTick } from "../lib.js";
import { Action, Badge, Failed, Time, number } from "../ui.js";

const RECENT_MS = 10 * 60 * 1000;

// started: the ids of those that were started here.
export function Operations({ started }) {
  const [turn, setTurn] = useState(0);
  const { data, error, reload } = useData("/operations?limit=10", `${useTick(2)} ${turn}`);
  useEffect(() => { if (started.length) reload(); }, [started.length]);
  const shown = (data?.items || []).filter((one) => one.state === "running" || started.includes(one.id) || Date.now() - Date.parse(one.finished_at) < RECENT_MS);
  const running = shown.some((one) => one.state === "running");
  useEffect(() => {
    if (!running) return undefined;
    const timer = setInterval(() => document.hidden || setTurn((n) => n + 1), 1000);
    return () => clearInterval(timer);
  }, [running]);
  const told = error?.status ? error : null; // that the server is gone is told by what this is a part of
  if (!shown.length) return html`<${Failed} error=${told} />`;
  return html`<section class="panel operations" aria-label="Bulk operations"><${Failed} error=${told} />${shown.map((one) => html`<div class="row" key=${one.id}>
    <${Badge} state=${one.state} /><span>${one.action.replace("_", " ")}: ${number(one.changed)} of ${one.matched_all ? "" : "at least "}${number(one.matched)}</span>
    <progress max="1" value=${one.progress} aria-label="Progress of operation ${one.id}"></progress>
    <span class="muted small">by ${one.actor}${one.reason ? `: ${one.reason}` : ""}, <${Time} at=${one.created_at} />${one.error ? ` – ${one.error}` : ""}</span><span class="grow"></span>
    ${one.state === "running" && may("operator") ? html`<${Action} label="Stop" title="Stop operation ${one.id}" explain="The jobs that it has changed are not changed back." run=${(given) => post(`/operations/${one.id}/stop`, given)} done=${reload} />` : ""}</div>`)}</section>`;
}
