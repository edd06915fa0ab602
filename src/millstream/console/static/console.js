// What the text fields show, by their ids, that are in the same dialog or card as an element.
function millstreamTyped(element) {
  const fields = element.closest(".ms-dialog, .ms-card")?.querySelectorAll("input[id], textarea[id]") ?? [];
  const texts = [...fields].filter((field) => !field.closest(".q-select"));
  return Object.fromEntries(texts.map((field) => [field.id, field.value]));
}

// Puts values into the URL of this page; null removes one. With `push`, as a new step of the browser's history.
function millstreamUrl(values, push) {
  const url = new URL(location.href);
  for (const [name, value] of Object.entries(values)) {
    if (value === null) url.searchParams.delete(name);
    else url.searchParams.set(name, value);
  }
  if (url.href === location.href) return;
  history[push ? "pushState" : "replaceState"]({}, "", url.href);
}
// A page reads its state from the URL when it is built.
window.addEventListener("popstate", () => location.reload());

// Without TLS, browsers have no clipboard API on other addresses than localhost.
// Saved filters of records, in this browser. With a text: saves it, or forgets it.
function millstreamFilters(text, kept) {
  const name = "millstream-filters";
  let filters = [];
  try { filters = JSON.parse(localStorage.getItem(name)) ?? []; } catch { /* not ours: begin again */ }
  if (!Array.isArray(filters)) filters = [];
  if (text !== undefined) {
    filters = filters.filter((each) => each !== text);
    if (kept) filters.unshift(text);
    localStorage.setItem(name, JSON.stringify(filters.slice(0, 50)));
  }
  return filters;
}

async function millstreamCopy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = Object.assign(document.createElement("textarea"), { value: text, className: "ms-copied-text" });
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  Quasar.Notify.create({ message: "Copied", color: "positive", timeout: 1200, position: "bottom-right" });
}

// Adds points to the lines of a chart. `sent`: the time of the last point that was sent before; `first`: of the oldest one
// to keep; `now`: the end of the axis. The lines of a chart are those of its options, until points were added.
function millstreamChart(id, [sent, first, now, lines]) {
  const element = getElement(id);
  if (!element?.chart) return;
  if (element.millstreamOptions !== element.options) {
    element.millstreamOptions = element.options;
    element.millstreamLines = new Map(element.options.series.map((line) => [line.name, [...line.data]]));
  }
  const known = element.millstreamLines;
  const last = Math.max(0, ...[...known.values()].map((rows) => rows.at(-1)?.[0] ?? 0));
  if (last < sent) return emitEvent(`chart-${id}`);
  const series = lines.map(([name, rows]) => {
    const old = known.get(name) ?? [];
    const end = old.at(-1)?.[0] ?? 0;
    const data = [...old, ...rows.filter(([at]) => at > end)].filter(([at]) => at >= first);
    known.set(name, data);
    return { name, data };
  });
  element.chart.setOption({ xAxis: { max: now }, series });
}

// Says at once that the connection with the gateway is lost, and soon that the gateway is silent: it sends something at
// least every two seconds.
(() => {
  const SILENT_MS = 6000;
  let heard = Date.now();
  let socket = null;
  const box = Object.assign(document.createElement("div"), { className: "ms-gone", hidden: true });
  box.setAttribute("role", "alert");
  box.dataset.testid = "gateway-gone";
  document.addEventListener("DOMContentLoaded", () => document.body.append(box));
  const show = (text) => {
    if (box.hidden && text) box.textContent = text;
    box.hidden = !text;
  };
  const look = () => {
    if (window.socket && window.socket !== socket) {
      socket = window.socket;
      socket.onAny(() => { heard = Date.now(); show(""); });
      socket.on("disconnect", look);
    }
    if (!socket) return;
    const since = new Date(heard).toLocaleTimeString();
    const rest = `The page shows the state of ${since}, and continues by itself when the gateway is back.`;
    if (!socket.connected && socket.everConnected) show(`The connection with the gateway is lost. ${rest}`);
    else if (Date.now() - heard > SILENT_MS) show(`The gateway does not respond. ${rest}`);
    if (socket.connected) socket.everConnected = true;
  };
  setInterval(look, 500);
})();

// Keys: what they do is done here, without asking the gateway.
(() => {
  const typing = (target) =>
    target.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName) || target.closest?.(".cm-editor");

  const move = (step) => {
    const links = [...document.querySelectorAll("a.ms-row-link")].filter((each) => each.offsetParent !== null);
    if (!links.length) return;
    const at = links.indexOf(document.activeElement);
    links[Math.max(0, Math.min(links.length - 1, at + step))].focus();
  };

  let went = -Infinity; // when g was pressed
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    if (event.key === "Escape" && !document.querySelector(".q-dialog__inner, .q-menu"))
      document.querySelector(".ms-panel [data-panel-close]")?.click();
    if (event.key === "Escape" || document.querySelector(".q-dialog__inner")) return;
    if (event.timeStamp - went < 1200) {
      went = -Infinity;
      const link = document.querySelector(`a[data-go="${CSS.escape(event.key)}"]`);
      if (link) {
        event.preventDefault();
        link.click();
      }
      return;
    }
    const keys = {
      g: () => (went = event.timeStamp),
      j: () => move(1),
      k: () => move(-1),
      c: () => document.activeElement?.matches("a.ms-row-link") && millstreamCopy(document.activeElement.innerText),
      y: () => millstreamCopy(location.href),
      d: () => document.querySelector("[data-theme]")?.click(),
      "/": () => document.querySelector("[data-filter]")?.focus(),
      "?": () => document.querySelector("[data-help]")?.click(),
    };
    if (keys[event.key]) {
      event.preventDefault();
      keys[event.key]();
    }
  });
})();
