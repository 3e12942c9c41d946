// The graph around a job, drawn as SVG: blockers to the left, what waits for it to the right, its chain in a row.
import { ROOT, counted, html, number } from "./lib.js";

const WIDTH = 190, HEIGHT = 48, COLUMN = 246, ROW = 62, PAD = 8;
const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// Gives each node a column: after all of its sources. The graph has no cycles; the bound is for damaged data.
function layers(nodes, edges) {
  const column = new Map(nodes.map((node) => [node.id, 0]));
  for (let round = 0; round < nodes.length; round += 1) {
    let moved = false;
    for (const { source, target } of edges) {
      if (column.has(source) && column.has(target) && column.get(target) <= column.get(source)) {
        column.set(target, column.get(source) + 1);
        moved = true;
      }
    }
    if (!moved) break;
  }
  return column;
}

export function Graph({ graph, here }) {
  const { nodes, edges } = graph;
  const column = layers(nodes, edges);
  const rows = {};
  const place = new Map();
  for (const node of [...nodes].sort((a, b) => (a.id === here ? -1 : b.id === here ? 1 : a.id - b.id))) {
    const at = column.get(node.id);
    rows[at] = (rows[at] || 0) + 1;
    place.set(node.id, { x: PAD + at * COLUMN, y: PAD + (rows[at] - 1) * ROW });
  }
  // An edge that skips columns passes below their nodes, in a lane that it shares with others from the same source.
  const lanes = new Map();
  const lane = (source, at) => {
    const name = `${source} ${at}`;
    if (!lanes.has(name)) {
      rows[at] = (rows[at] || 0) + 1;
      lanes.set(name, PAD + (rows[at] - 1) * ROW + HEIGHT / 2);
    }
    return lanes.get(name);
  };
  const curve = (x1, y1, x2, y2) => { const half = Math.max(24, (x2 - x1) / 2); return `C${x1 + half},${y1} ${x2 - half},${y2} ${x2},${y2}`; };
  const paths = edges.map(({ source, target }) => {
    const from = place.get(source), to = place.get(target);
    if (!from || !to) return "";
    let x = from.x + WIDTH, y = from.y + HEIGHT / 2, drawn = `M${x},${y}`;
    for (let at = column.get(source) + 1; at < column.get(target); at += 1) {
      const left = PAD + at * COLUMN, height = lane(source, at);
      drawn += ` ${curve(x, y, left, height)} H${left + WIDTH}`;
      x = left + WIDTH;
      y = height;
    }
    return `${drawn} ${curve(x, y, to.x - 5, to.y + HEIGHT / 2)}`;
  });
  const width = (Math.max(...column.values()) + 1) * COLUMN - (COLUMN - WIDTH) + 2 * PAD;
  const height = Math.max(...Object.values(rows)) * ROW - (ROW - HEIGHT) + 2 * PAD;
  const words = `${counted(nodes.length, "job")} and ${number(edges.length)} ${edges.length === 1 ? "dependency" : "dependencies"}`;
  return html`<div class="graph" tabindex="0" role="region" aria-label="Graph of ${words}"><svg width=${width} height=${height} viewBox="0 0 ${width} ${height}">
    <defs><marker id="arrow" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="var(--muted)" /></marker></defs>
    ${edges.map((edge, index) => html`<path class="edge ${edge.kind}" d=${paths[index]} marker-end="url(#arrow)"><title>${edge.source} ${edge.kind === "continues" ? "continued with" : "blocks"} ${edge.target}</title></path>`)}
    ${nodes.map((node) => {
      const { x, y } = place.get(node.id);
      const label = `job ${node.id}, ${node.task || "message"}, ${node.status}`;
      const box = html`<g class="node ${node.id === here ? "here" : ""}" transform="translate(${x},${y})"><title>${label}${node.error_code ? `, ${node.error_code}` : ""}</title>
        <rect width=${WIDTH} height=${HEIGHT} rx="8" /><g class="s-${node.status}"><circle cx="15" cy="17" r="4" /></g>
        <text x="27" y="21">${node.id} ${cut(node.task || "message", 20)}</text>
        <text class="sub" x="27" y="38">${node.status}${node.external ? ", external" : ""}${node.more ? `, ${node.more} more` : ""}</text></g>`;
      return node.status === "deleted" || node.id === here ? box : html`<a href="${ROOT}/jobs/${node.id}" aria-label=${label}>${box}</a>`;
    })}</svg></div>`;
}
